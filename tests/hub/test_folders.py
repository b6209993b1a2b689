"""Model folders: what is written comes back, and damaged or foreign folders are refused."""

import json
import shutil
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra.api import load
from electra.errors import UserError
from electra.hub import folders
from electra.hub.folders import (
    load_discriminator,
    load_encoder,
    load_generator,
    load_tokenizer_and_vocab,
    network_folders,
    read_config,
    transformers_config,
)
from electra.models.encoder import EncoderConfig
from electra.text.tokenizer import load_tokenizer
from electra.train import checkpoint

TEXT = "the old farmer went to the field to plough the barley ."


@pytest.fixture
def copied(finished, tmp_path):
    """Copies of both network folders, free to damage."""
    for name in ("discriminator", "generator"):
        shutil.copytree(checkpoint.checkpoints(finished)[-1] / name, tmp_path / name)
    return tmp_path


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(copied):
    """Users add tokens to the tokenizer and forget the model."""
    for name in ("discriminator", "generator"):
        tokenizer = load_tokenizer(copied / name)
        assert tokenizer.add_tokens(["barleycorn"]) == 1
        tokenizer.save(str(copied / name / "tokenizer.json"))
        with pytest.raises(UserError, match=r"has [0-9,]+ tokens and its model [0-9,]+: use"):
            load_tokenizer_and_vocab(copied / name)


def test_a_folder_of_another_network_or_with_damaged_weights_is_refused(copied, monkeypatch):
    with pytest.raises(UserError, match="not hold the weights of a discriminator"):
        load(copied / "generator").detect(TEXT)
    weights = copied / "discriminator" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged"):
        load(copied / "discriminator").detect(TEXT)
    monkeypatch.setattr(folders, "load_file", Mock(side_effect=FileNotFoundError("not allowed")))
    with pytest.raises(UserError, match="cannot be read"):
        load(copied / "discriminator").detect(TEXT)
    weights.unlink()
    (copied / "discriminator" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match="they can run code"):
        load(copied / "discriminator").detect(TEXT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "give an ELECTRA model"),
        ('{"model_type": "bert"}', "of the type 'bert'"),
        ('{"model_type": "electra"}', "has no 'num_hidden_layers'"),
        ('{"model_type": "electra", "hidden_act": "relu"}', "another activation"),
    ],
)
def test_other_configurations_are_refused(content, message, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)


def test_every_size_comes_back_from_a_folder(tmp_path):
    sizes = {"layers": 3, "hidden": 32, "heads": 4, "feed_forward": 48, "embedding": 16}
    sizes |= {"max_positions": 40, "vocab_size": 99, "vocab_multiple": 1}
    config = EncoderConfig(**sizes, dropout=0.25, attention_dropout=0.5, init_std=0.125)
    written = transformers_config(config, "ElectraForPreTraining", 0)
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert read_config(tmp_path) == config


def test_the_position_ids_of_old_transformers_versions_are_ignored(copied):
    folder = copied / "discriminator"
    before = load(folder).detect(TEXT)
    weights = load_file(folder / "model.safetensors")
    positions = torch.arange(read_config(folder).max_positions)[None]
    save_file(
        weights | {"electra.embeddings.position_ids": positions}, folder / "model.safetensors"
    )
    assert load(folder).detect(TEXT) == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden_size", "big", "hidden_size='big' is not a whole number"),
        ("num_hidden_layers", True, "num_hidden_layers=True is not a whole number"),
        ("hidden_size", 64.0, "hidden_size=64.0 is not a whole number"),
        ("hidden_dropout_prob", None, "hidden_dropout_prob=None is not a number"),
        ("vocab_size", 10**12, "parameters, but model.safetensors has only"),
        ("intermediate_size", 10**9, "parameters, but model.safetensors has only"),
        ("num_hidden_layers", 10**9, "parameters, but model.safetensors has only"),
    ],
)
def test_sizes_that_cannot_be(name, value, message, model_folder, tmp_path):
    """Refused before a network is built: 1 TB would not be refused by everybody's memory."""
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {name: value}))
    for read in (read_config, load_discriminator, network_folders):
        with pytest.raises(UserError, match=message):
            read(folder)


def test_another_architecture_is_named_before_its_head(model_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"model_type": "bert"}))
    with pytest.raises(UserError, match="of the type 'bert'"):
        network_folders(folder)


def test_a_network_of_terabytes_is_not_allocated(model_folder, tmp_path):
    """Neither beside weights of some bytes nor beside a pickle."""
    folder = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 10**12}))
    with pytest.raises(UserError, match="describes a network of"):
        load_discriminator(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    for load_network in (load_discriminator, load_encoder, load_generator):
        with pytest.raises(UserError, match="pickle form"):
            load_network(folder)


@pytest.mark.parametrize("value", [10**400, 2**63, -(10**30)])
def test_sizes_that_no_network_has(value, model_folder, tmp_path):
    folder = shutil.copytree(model_folder, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": value}))
    with pytest.raises(UserError, match="is not a whole number"):
        read_config(folder)


def test_a_config_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "config.json").write_text("[" * 10_000)
    with pytest.raises(UserError, match="not valid JSON"):
        read_config(tmp_path)
