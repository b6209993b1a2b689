"""Asking a model: the discriminator's verdicts and the generator's guesses."""

import json
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from electra import model_paths
from electra.errors import UserError
from electra.hub import folders, inference
from electra.hub.electric import mark_electric
from electra.hub.folders import (
    load_discriminator,
    load_generator,
    read_config,
    transformers_config,
)
from electra.hub.inference import detect, fill, score_sentences
from electra.model_paths import resolve_model
from electra.models.encoder import EncoderConfig
from electra.text.tokenizer import load_tokenizer, load_vocabulary
from electra.train import checkpoint

TEXT = "the old farmer went to the field to plough the barley ."


def network(run: Path, name: str) -> Path:
    return checkpoint.checkpoints(run)[-1] / name


@pytest.fixture
def copied(finished, tmp_path):
    """Both networks' folders, to be damaged."""
    for name in ("discriminator", "generator"):
        shutil.copytree(network(finished, name), tmp_path / name)
    return tmp_path


@torch.no_grad()
def test_verdicts_are_those_of_a_direct_pass(finished):
    folder = network(finished, "discriminator")
    encoding = load_tokenizer(folder).encode(TEXT)
    ids = torch.tensor([encoding.ids])
    chances = load_discriminator(folder)(ids, torch.zeros_like(ids)).sigmoid()[0, 1:-1]
    verdicts = detect(str(finished), TEXT)
    assert [v.token for v in verdicts] == encoding.tokens[1:-1]
    assert [v.replaced for v in verdicts] == pytest.approx(chances.tolist(), abs=1e-6)
    for verdict in verdicts:
        assert TEXT[verdict.start : verdict.end] == verdict.token.removeprefix("##")


def test_tokens_that_the_model_does_not_know_are_refused(copied):
    """Added to the tokenizer alone, as users do."""
    for name, asked in (("discriminator", detect), ("generator", fill)):
        tokenizer = load_tokenizer(copied / name)
        assert tokenizer.add_tokens(["barleycorn"]) == 1
        tokenizer.save(str(copied / name / "tokenizer.json"))
        with pytest.raises(UserError, match=r"has [0-9,]+ tokens and its model [0-9,]+: take"):
            asked(str(copied / name), "the [MASK] barleycorn")


@torch.no_grad()
def test_a_long_text_is_read_window_by_window(finished):
    """The position table has 64 places, of which two are [CLS] and [SEP]."""
    folder = network(finished, "discriminator")
    text = " ".join([TEXT] * 30)
    encoding = load_tokenizer(folder).encode(text, add_special_tokens=False)
    assert len(encoding.ids) > 3 * 62
    verdicts = detect(str(finished), text)
    assert [v.token for v in verdicts] == encoding.tokens
    assert [(v.start, v.end) for v in verdicts] == encoding.offsets
    vocab, discriminator = load_vocabulary(folder), load_discriminator(folder)
    for begin in (0, 62, 124):
        ids = torch.tensor([[vocab.cls, *encoding.ids[begin : begin + 62], vocab.sep]])
        chances = discriminator(ids, torch.zeros_like(ids)).sigmoid()[0, 1:-1].tolist()
        found = [v.replaced for v in verdicts[begin : begin + 62]]
        assert found == pytest.approx(chances, abs=1e-6)


@pytest.mark.parametrize("length", [61, 62, 63, 124])
def test_no_token_is_lost_at_the_edge_of_a_window(length, finished):
    text = " ".join(["the"] * length)
    assert len(detect(str(finished), text)) == length


@torch.no_grad()
def test_guesses_are_those_of_a_direct_pass(finished):
    folder = network(finished, "generator")
    text = "the old [MASK] went to the [MASK] ."
    tokenizer, vocab = load_tokenizer(folder), load_vocabulary(folder)
    ids = torch.tensor([tokenizer.encode(text).ids])
    places = (ids[0] == vocab.mask).nonzero().T
    logits = load_generator(folder)(ids, torch.zeros_like(ids), None, places)[0]
    guesses = fill(str(finished), text, top=7)
    assert [len(g) for g in guesses] == [7, 7]
    for row, found in zip(logits.softmax(-1), guesses, strict=True):
        best = row.topk(7)
        assert [g.token for g in found] == [tokenizer.id_to_token(i) for i in best.indices.tolist()]
        assert [g.probability for g in found] == pytest.approx(best.values.tolist(), abs=1e-6)


def test_a_mask_is_written_the_same_whatever_the_tokenizer_calls_it(copied):
    folder, text = copied / "generator", "the old [MASK] went to the [MASK] ."
    guesses = fill(str(folder), text)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        content = (folder / name).read_text(encoding="utf-8")
        (folder / name).write_text(content.replace("[MASK]", "<mask>"), encoding="utf-8")
    assert fill(str(folder), text) == guesses


def test_the_answers_are_the_same_each_time(finished):
    assert detect(str(finished), TEXT) == detect(str(finished), TEXT)  # no dropout


def test_ids_that_do_not_exist_are_never_proposed(copied):
    """A hole in the vocabulary, and rows of the table beyond its end, both made very likely."""
    folder = copied / "generator"
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    size = load_vocabulary(folder).size
    absent = [tokenizer["model"]["vocab"].pop(word) for word in ("farmer", "sailor")]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert set(load_vocabulary(folder).absent) == set(absent)
    weights = load_file(folder / "model.safetensors")
    table, bias = "electra.embeddings.word_embeddings.weight", "generator_lm_head.bias"
    weights[table] = torch.cat([weights[table], torch.zeros(6, weights[table].shape[1])])
    weights[bias] = torch.cat([weights[bias], torch.full((6,), 50.0)])
    weights[bias][absent] = 50.0
    save_file(weights, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": size + 6}
    (folder / "config.json").write_text(json.dumps(config))
    (guesses,) = fill(str(folder), "the old [MASK] .", top=10_000)
    assert len(guesses) == size - 2
    tokens = [g.token for g in guesses]
    assert not {"farmer", "sailor", "None"} & {*tokens}
    assert len(set(tokens)) == len(tokens)
    assert sum(g.probability for g in guesses) == pytest.approx(1, abs=1e-4)


def test_where_a_model_may_be(finished, copied, monkeypatch):
    last = checkpoint.checkpoints(finished)[-1]
    for name in ("discriminator", "generator"):
        for place in (finished, last, last / name):
            assert resolve_model(str(place), name) == last / name
    assert resolve_model(str(copied / "generator"), "generator") == copied / "generator"
    monkeypatch.chdir(finished.parent)
    assert resolve_model(finished.name, "generator").resolve() == (last / "generator").resolve()


def test_a_hub_name_is_fetched_without_pickles(finished, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(network(finished, "discriminator"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert detect("somebody/electra-tiny", TEXT) == detect(str(finished), TEXT)
    assert asked[0][0] == "somebody/electra-tiny"
    assert not [p for p in asked[0][1] if p.endswith((".bin", ".pt", "*"))]


def test_what_the_hub_refuses_is_one_line(monkeypatch):
    import huggingface_hub

    def download(*_, **__):
        raise OSError("404 Client Error.\nmany\nmore lines")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError) as caught:
        resolve_model("somebody/nothing", "discriminator")
    assert str(caught.value).endswith("the Hub did not give it: 404 Client Error.")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'electra\[hub\]'"):
        resolve_model("somebody/nothing", "discriminator")


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_empty_text_is_refused(text, finished):
    with pytest.raises(UserError, match="text is empty"):
        detect(str(finished), text)
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        fill(str(finished), text)


def test_a_text_without_a_mask_is_refused(finished):
    with pytest.raises(UserError, match=r"no \[MASK\] in the text"):
        fill(str(finished), TEXT)


def test_a_text_that_is_too_long_to_fill_is_refused(finished):
    with pytest.raises(UserError, match="the model takes 62: shorten it around the mask"):
        fill(str(finished), "[MASK] " + "the " * 62)
    assert fill(str(finished), "[MASK] " + "the " * 61)


@pytest.mark.parametrize("name", ["nowhere", "./no/where", "a/b/c", "~/x"])
def test_an_unknown_place_is_refused(name):
    with pytest.raises(UserError, match="no model at"):
        resolve_model(name, "discriminator")


def test_folders_without_a_model_are_refused(finished, copied, tmp_path, monkeypatch):
    (tmp_path / "letters").mkdir()
    with pytest.raises(UserError, match="neither a run nor a checkpoint"):
        resolve_model(str(tmp_path / "letters"), "discriminator")
    (tmp_path / "begun").mkdir()
    shutil.copy(finished / "config.yaml", tmp_path / "begun")
    with pytest.raises(UserError, match="no checkpoint yet"):
        resolve_model(str(tmp_path / "begun"), "discriminator")
    with pytest.raises(UserError, match="not the weights of a discriminator"):
        detect(str(copied / "generator"), TEXT)
    weights = copied / "discriminator" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(UserError, match="damaged"):
        detect(str(copied / "discriminator"), TEXT)
    monkeypatch.setattr(folders, "load_file", Mock(side_effect=FileNotFoundError("not allowed")))
    with pytest.raises(UserError, match="may not be read"):
        detect(str(copied / "discriminator"), TEXT)
    weights.unlink()
    (copied / "discriminator" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(UserError, match="they can run code"):
        detect(str(copied / "discriminator"), TEXT)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an ELECTRA"),
        ('{"model_type": "bert"}', "is a 'bert' model"),
        ('{"model_type": "electra"}', "has no 'num_hidden_layers'"),
        ('{"model_type": "electra", "hidden_act": "relu"}', "another activation"),
    ],
)
def test_other_configurations_are_refused(content, message, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)


def test_a_mistyped_run_is_not_looked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_paths, "require", lambda *_: pytest.fail("the Hub was asked"))
    with pytest.raises(UserError, match="no model at 'runs/none'"):
        resolve_model("runs/none", "generator")


@torch.no_grad()
def test_a_sentence_s_score_is_its_own_in_any_company(copied, monkeypatch):
    folder = copied / "discriminator"
    mark_electric(folder)
    monkeypatch.setattr(inference, "SCORED_AT_ONCE", 2)
    texts = [TEXT, "the farmer .", "the old farmer went .", "to the field", TEXT[:30]]
    tokenizer, network = load_tokenizer(folder), load_discriminator(folder)
    expected = []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])  # [CLS] … [SEP]
        expected.append(-network(ids, torch.zeros_like(ids))[0, 1:-1].sum().item())
    assert score_sentences(str(folder), texts) == pytest.approx(expected, abs=1e-4)


def test_every_size_comes_back_from_a_folder(tmp_path):
    sizes = {"layers": 3, "hidden": 32, "heads": 4, "feed_forward": 48, "embedding": 16}
    sizes |= {"max_positions": 40, "vocab_size": 99, "vocab_multiple": 1}
    config = EncoderConfig(**sizes, dropout=0.25, attention_dropout=0.5, init_std=0.125)
    written = transformers_config(config, "ElectraForPreTraining", 0)
    (tmp_path / "config.json").write_text(json.dumps(written))
    assert read_config(tmp_path) == config


def test_a_buffer_that_old_versions_of_transformers_write_is_passed_over(copied):
    folder = copied / "discriminator"
    before = detect(str(folder), TEXT)
    weights = load_file(folder / "model.safetensors")
    places = torch.arange(read_config(folder).max_positions)[None]
    save_file(weights | {"electra.embeddings.position_ids": places}, folder / "model.safetensors")
    assert detect(str(folder), TEXT) == before
