"""Imported models compute what their source computes; incomplete and foreign ones are refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from electra.errors import UserError
from electra.hub import import_model as importing
from electra.hub.electric import is_electric, mark_electric
from electra.hub.folders import load_discriminator, load_encoder, load_generator, read_config
from electra.hub.import_model import (
    TokenizerOptions,
    find_checkpoint,
    import_model,
    load_tensorflow,
)
from electra.hub.tensor_bundle import open_bundle
from electra.model_paths import find_network, resolve_model
from electra.models.electra import Discriminator, Generator, GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.text.tokenizer import load_tokenizer
from electra.train import checkpoint

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "tf1-small"
TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "old", "farm", "##er", "ÄRGER", "e"]
LINEAR = {"attention/output/dense": "out_proj", "intermediate/dense": "up_proj"}
LINEAR["output/dense"] = "down_proj"
NORM = {"attention/output/LayerNorm": "attention_norm", "output/LayerNorm": "output_norm"}
Tensors = dict[str, np.ndarray]


def linear(path: str, weight: torch.Tensor, bias: torch.Tensor) -> Tensors:
    return {f"{path}/kernel": weight.T.numpy(), f"{path}/bias": bias.numpy()}


def norm(path: str, module: torch.nn.Module) -> Tensors:
    return {f"{path}/gamma": module.weight.numpy(), f"{path}/beta": module.bias.numpy()}


def embedding_tensors(scope: str, block: torch.nn.Module) -> Tensors:
    tables = {"word": block.token, "position": block.position, "token_type": block.segment}
    path = f"{scope}/embeddings"
    found = {f"{path}/{name}_embeddings": t.weight.numpy() for name, t in tables.items()}
    return found | norm(f"{path}/LayerNorm", block.norm)


def encoder_tensors(scope: str, encoder: torch.nn.Module) -> Tensors:
    """The layers under the names of google-research/electra, written out by hand."""
    found: Tensors = {}
    if encoder.config.embedding != encoder.config.hidden:
        project = encoder.embedding_proj
        found |= linear(f"{scope}/embeddings_project", project.weight, project.bias)
    for i, layer in enumerate(encoder.layers):
        path = f"{scope}/encoder/layer_{i}"
        fused = zip(layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3), strict=True)
        for name, (weight, bias) in zip(("query", "key", "value"), fused, strict=True):
            found |= linear(f"{path}/attention/self/{name}", weight, bias)
        for theirs, ours in LINEAR.items():
            module = layer.get_submodule(ours)
            found |= linear(f"{path}/{theirs}", module.weight, module.bias)
        for theirs, ours in NORM.items():
            found |= norm(f"{path}/{theirs}", layer.get_submodule(ours))
    return found


def discriminator_head(network: Discriminator) -> Tensors:
    path = "discriminator_predictions"
    found = linear(f"{path}/dense", network.dense.weight, network.dense.bias)
    return found | linear(f"{path}/dense_1", network.score.weight, network.score.bias)


def generator_head(network: Generator) -> Tensors:
    path = "generator_predictions"
    found = linear(f"{path}/dense", network.dense.weight, network.dense.bias)
    found |= norm(f"{path}/LayerNorm", network.norm)
    return found | {f"{path}/output_bias": network.bias.numpy()}


@torch.no_grad()
def checkpoint_of(generator: Generator, discriminator: Discriminator) -> Tensors:
    """All tensors of a pair, as google-research/electra names them; shared ones once."""
    found = embedding_tensors("electra", discriminator.encoder.embeddings)
    found |= encoder_tensors("electra", discriminator.encoder) | discriminator_head(discriminator)
    if generator.encoder.embeddings is not discriminator.encoder.embeddings:
        found |= embedding_tensors("generator", generator.encoder.embeddings)
    if generator.encoder is not discriminator.encoder:
        found |= encoder_tensors("generator", generator.encoder)
    return found | generator_head(generator)


def with_slots(tensors: Tensors) -> Tensors:
    slots = {
        f"{name}/{slot}": np.full_like(tensor, 7.0)
        for name, tensor in tensors.items()
        for slot in ("adam_m", "adam_v")
    }
    return tensors | slots | {"global_step": np.array(30, np.int64)}


def pair(**sizes) -> tuple[Generator, Discriminator]:
    """Two random networks: 128 wide, with a generator of half that unless told otherwise."""
    torch.manual_seed(0)
    generator = sizes.pop("generator", GeneratorConfig(width=0.5))
    sizes = {"layers": 3, "hidden": 128, "feed_forward": 96, "embedding": 32} | sizes
    config = EncoderConfig(**sizes, max_positions=24, vocab_size=len(TOKENS), vocab_multiple=1)
    networks = build_pair(config, generator)
    with torch.no_grad():
        for network in networks:
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            network.eval()
    return networks


@pytest.fixture
def vocab(tmp_path) -> Path:
    path = tmp_path / "tf" / "vocab.txt"
    path.parent.mkdir()
    path.write_text("\n".join(TOKENS) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def prefix(vocab) -> Path:
    return vocab.parent / "model.ckpt-30"


@torch.no_grad()
def check_outputs(out: Path, generator: Generator, discriminator: Discriminator) -> None:
    """Compare the written folders, also in transformers, with the networks."""
    from transformers import ElectraForMaskedLM, ElectraForPreTraining

    ids = torch.randint(0, len(TOKENS), (3, 17), generator=torch.Generator().manual_seed(1))
    segments = (torch.arange(17) > 9).long().expand(3, -1)
    mask = torch.arange(17) < torch.tensor([[17], [12], [5]])
    given = {"input_ids": ids, "token_type_ids": segments, "attention_mask": mask.long()}
    expected = discriminator(ids, segments, mask)
    found = load_discriminator(out / "discriminator")(ids, segments, mask)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    theirs = ElectraForPreTraining.from_pretrained(out / "discriminator").eval()(**given).logits
    torch.testing.assert_close(theirs[mask], expected[mask], atol=2e-5, rtol=1e-4)
    expected = generator.predict(generator.encoder(ids, segments, mask))
    loaded = load_generator(out / "generator")
    found = loaded.predict(loaded.encoder(ids, segments, mask))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    theirs = ElectraForMaskedLM.from_pretrained(out / "generator").eval()(**given).logits
    torch.testing.assert_close(theirs[mask], expected[mask], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "slots", "shards"),
    [
        ({}, True, 1),
        ({}, False, 3),
        ({"hidden": 64, "embedding": 64}, False, 2),  # no projection in the discriminator
        ({"embedding": 64}, True, 1),  # none in the generator
        ({"generator": GeneratorConfig(tie="none", width=0.5)}, True, 2),
        ({"generator": GeneratorConfig(tie="all", width=1)}, False, 1),
    ],
    ids=["slots", "shards", "base", "golden", "untied", "shared"],
)
def test_a_checkpoint_gives_the_same_outputs(
    sizes, slots, shards, vocab, prefix, write_bundle, tmp_path
):
    networks = pair(**sizes)
    tensors = checkpoint_of(*networks)
    write_bundle(prefix, with_slots(tensors) if slots else tensors, shards)
    found = import_model([str(prefix)], tmp_path / "out")
    assert set(found) == {"discriminator", "generator"}
    check_outputs(tmp_path / "out", *networks)
    for name, network in zip(("generator", "discriminator"), networks, strict=True):
        sizes, expected = read_config(tmp_path / "out" / name), network.encoder.config
        assert (sizes.head_count, sizes.layers) == (expected.head_count, expected.layers)
        assert sizes.feed_forward == expected.feed_forward_width


def test_the_imported_folder_works_in_the_commands(
    vocab, prefix, write_bundle, electra, refused, tmp_path
):
    write_bundle(prefix, with_slots(checkpoint_of(*pair())))
    out = tmp_path / "models" / "mine"
    code, text, err = electra("import", prefix.parent, "--out", out)
    assert code == 0, err
    assert f"{out / 'discriminator'}: layers 3, hidden 128, heads 2, vocabulary 11," in text
    code, text, err = electra("detect", out, "The old Farmer", "--json")
    assert code == 0, err
    assert [token["token"] for token in json.loads(text)] == ["the", "old", "farm", "##er"]
    code, text, err = electra("fill", out, "the [MASK]", "--top", 3, "--json")
    assert code == 0, err
    assert len(json.loads(text)[0]) == 3
    load_encoder(resolve_model(str(out), "encoder"))
    assert "already exists" in refused("import", prefix, "--out", out)
    assert [path.name for path in out.parent.iterdir()] == ["mine"]


def test_a_network_alone(vocab, prefix, write_bundle, tmp_path):
    generator, discriminator = pair(generator=GeneratorConfig(width=1))
    tensors = checkpoint_of(generator, discriminator)
    parts = ("electra/", "discriminator_predictions/")
    write_bundle(prefix, {n: t for n, t in tensors.items() if n.startswith(parts)})
    assert set(import_model([str(prefix)], tmp_path / "one")) == {"discriminator"}
    with pytest.raises(UserError, match="has no generator, only discriminator: give a folder"):
        find_network(tmp_path / "one", "generator")
    with torch.no_grad():  # BERT's objective: one network, with the generator's head
        bert = embedding_tensors("electra", generator.encoder.embeddings)
        bert |= encoder_tensors("electra", generator.encoder) | generator_head(generator)
    write_bundle(prefix, with_slots(bert))
    assert set(import_model([str(prefix)], tmp_path / "bert")) == {"mlm"}
    assert find_network(tmp_path / "bert", "encoder") == tmp_path / "bert" / "mlm"
    assert find_network(tmp_path / "bert", "generator") == tmp_path / "bert" / "mlm"


def test_every_missing_tensor_is_named(vocab, prefix, write_bundle, tmp_path):
    tensors = checkpoint_of(*pair(layers=1))
    for name in tensors:
        write_bundle(prefix, {n: t for n, t in tensors.items() if n != name})
        with pytest.raises(UserError, match=f"has no {name}: it is not a complete"):
            import_model([str(prefix)], tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["tf"]


@pytest.mark.parametrize(
    "name",
    ["task_specific/cola/kernel", "electra/encoder/lost/adam_m", "generator/embeddings/new"],
)
def test_an_unknown_tensor_is_named(name, vocab, prefix, write_bundle, refused, tmp_path):
    write_bundle(prefix, with_slots(checkpoint_of(*pair())) | {name: np.zeros(3, np.float32)})
    assert f"({name})" in refused("import", prefix, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["tf"]


def test_tensors_of_another_shape_and_other_models(vocab, prefix, write_bundle):
    tensors = checkpoint_of(*pair())
    name = "electra/encoder/layer_1/output/dense/bias"
    write_bundle(prefix, tensors | {name: np.zeros(5, np.float32)})
    with pytest.raises(UserError, match=rf"{name} has the shape \(5,\) where .* \(128,\)"):
        load_tensorflow(prefix)
    name = "electra/embeddings/word_embeddings"
    write_bundle(prefix, tensors | {name: np.zeros(5, np.float32)})
    with pytest.raises(UserError, match="is not a matrix"):
        load_tensorflow(prefix)
    write_bundle(prefix, {"bert/pooler/dense/bias": np.zeros(5, np.float32)})
    with pytest.raises(UserError, match="is no pre-trained ELECTRA"):
        load_tensorflow(prefix)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_missing_data_file_is_named(shards, vocab, prefix, write_bundle, refused, tmp_path):
    write_bundle(prefix, checkpoint_of(*pair()), shards)
    data = Path(f"{prefix}.data-00000-of-{shards:05d}")
    data.unlink()
    message = refused("import", prefix, "--out", tmp_path / "out")
    assert f"{data} is missing: copy all files of the checkpoint" in message


def test_damage_leaves_nothing_behind(vocab, prefix, write_bundle, refused, tmp_path, monkeypatch):
    write_bundle(prefix, checkpoint_of(*pair()))
    data = Path(f"{prefix}.data-00000-of-00001")
    content = data.read_bytes()
    data.write_bytes(content[:-100])
    assert "too short" in refused("import", prefix, "--out", tmp_path / "out")
    data.write_bytes(content[:5000] + b"\x55" + content[5001:])
    assert "checksum" in refused("import", prefix, "--out", tmp_path / "out")
    data.write_bytes(content)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(importing, "save_tokenizer", full)
    assert "disk is full" in refused("import", prefix, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["tf"]


def test_slots_are_not_read(vocab, prefix, write_bundle, tmp_path):
    """A slot that is damaged does not matter."""
    tensors = checkpoint_of(*pair())
    write_bundle(prefix, tensors | {"discriminator_predictions/dense/bias/adam_m": np.ones(128)})
    data = Path(f"{prefix}.data-00000-of-00001")
    data.write_bytes(data.read_bytes().replace(np.ones(128).tobytes(), bytes(1024)))
    import_model([str(prefix)], tmp_path / "out")


def test_where_a_checkpoint_is(tmp_path, refused):
    for name in ("model.ckpt-9.index", "model.ckpt-10.index", "model.ckpt-10.data-00000-of-00002"):
        (tmp_path / name).touch()
    ten = tmp_path / "model.ckpt-10"
    for name in ("", ".index", ".data-00000-of-00002", ".meta"):
        assert find_checkpoint(f"{ten}{name}") == ten
    with pytest.raises(UserError, match=r"several checkpoints: give one, such as .*model\.ckpt-9"):
        find_checkpoint(str(tmp_path))
    for named in ("model.ckpt-10", "/their/machine/model.ckpt-10"):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\nall: "x"\n')
        assert find_checkpoint(str(tmp_path)) == ten
    (tmp_path / "model.ckpt-9.index").unlink()
    (tmp_path / "checkpoint").unlink()
    assert find_checkpoint(str(tmp_path)) == ten
    (tmp_path / "model.ckpt-10.index").unlink()
    assert "model.ckpt-10.index is missing" in refused("import", ten, "--out", tmp_path / "out")
    assert find_checkpoint(str(tmp_path)) is None
    (tmp_path / "checkpoint").write_text("model_checkpoint_path: broken")
    with pytest.raises(UserError, match=r"has no \.index file"):
        find_checkpoint(str(tmp_path))
    assert find_checkpoint("somebody/electra-tiny") is None


def test_tokenizer_and_heads(vocab, prefix, write_bundle, refused, tmp_path):
    write_bundle(prefix, checkpoint_of(*pair()))

    def tokens(out: str, **options) -> list[str]:
        import_model([str(prefix)], tmp_path / out, options=TokenizerOptions(**options))
        tokenizer = load_tokenizer(tmp_path / out / "generator")
        return tokenizer.encode("ÄRGER é THE", add_special_tokens=False).tokens

    assert tokens("a") == ["[UNK]", "e", "the"]
    assert tokens("b", cased=True) == ["ÄRGER", "[UNK]", "[UNK]"]
    assert tokens("c", keep_accents=True) == ["[UNK]", "[UNK]", "the"]
    moved = vocab.rename(tmp_path / "tokens")
    assert "no vocabulary" in refused("import", prefix, "--out", tmp_path / "d")
    assert tokens("d", vocab=moved) == ["[UNK]", "e", "the"]
    moved.write_text("\n".join([*TOKENS, "more"]), encoding="utf-8")
    given = ("--vocab", moved, "--out", tmp_path / "e")
    assert "has 12 tokens and the checkpoint 11" in refused("import", prefix, *given)
    moved.write_bytes("\n".join(TOKENS).encode("latin-1"))
    assert "UTF-8" in refused("import", prefix, *given)
    found = load_tensorflow(prefix, heads=8)
    assert found["discriminator"].encoder.config.head_count == 8
    assert found["generator"].encoder.config.head_count == 1
    with pytest.raises(UserError, match="does not divide into 7 attention heads"):
        load_tensorflow(prefix, heads=7)


@pytest.fixture
def last(finished) -> Path:
    return checkpoint.checkpoints(finished)[-1]


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_runs_and_transformers_folders(finished, last, refused, tmp_path, monkeypatch):
    for number, source in enumerate((finished, last)):
        assert set(import_model([str(source)], tmp_path / f"{number}")) == {
            "discriminator",
            "generator",
        }
        for name in ("discriminator", "generator"):
            assert weights(tmp_path / f"{number}" / name) == weights(last / name)
    both = [str(last / "generator"), str(last / "discriminator")]
    import_model(both, tmp_path / "both")
    for name in ("discriminator", "generator"):
        assert weights(tmp_path / "both" / name) == weights(last / name)
        tokenizers = [
            load_tokenizer(folder / name).to_str() for folder in (tmp_path / "both", last)
        ]
        assert tokenizers[0] == tokenizers[1]
    (tmp_path / "empty").mkdir()
    import_model([both[0]], tmp_path / "empty")
    assert [path.name for path in (tmp_path / "empty").iterdir()] == ["generator"]
    assert "Both sources have a generator" in refused(
        "import", last, both[0], "--out", tmp_path / "x"
    )
    assert "leave out --vocab" in refused("import", last, "--cased", "--out", tmp_path / "x")
    assert "no model at" in refused("import", tmp_path / "none", "--out", tmp_path / "x")


def test_folders_that_cannot_be_imported(last, refused, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(last / "generator", other)
    file = other / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    ids = content["model"]["vocab"]
    ids["farmer"], ids["sailor"] = ids["sailor"], ids["farmer"]
    file.write_text(json.dumps(content), encoding="utf-8")
    message = refused("import", last / "discriminator", other, "--out", tmp_path / "x")
    assert "vocabularies of discriminator and generator differ" in message
    body = {
        name: tensor
        for name, tensor in load_file(other / "model.safetensors").items()
        if name.startswith("electra.")
    }
    save_file(body, other / "model.safetensors")
    assert "neither the head of a" in refused("import", other, "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_what_transformers_saves_and_hub_names(last, tmp_path, monkeypatch):
    import huggingface_hub
    from transformers import ElectraForMaskedLM, ElectraForPreTraining

    for kind, name in ((ElectraForPreTraining, "discriminator"), (ElectraForMaskedLM, "generator")):
        kind.from_pretrained(last / name).save_pretrained(tmp_path / name)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(last / name / file, tmp_path / name / file)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path / name.split("-")[-1])
    )
    names = ["somebody/electra-tiny-discriminator", "somebody/electra-tiny-generator"]
    import_model(names, tmp_path / "out")
    for name in ("discriminator", "generator"):
        assert weights(tmp_path / "out" / name) == weights(last / name)


def test_an_electric_model_stays_one(last, tmp_path):
    shutil.copytree(last / "discriminator", tmp_path / "electric")
    mark_electric(tmp_path / "electric")
    import_model([str(tmp_path / "electric")], tmp_path / "out")
    assert is_electric(tmp_path / "out" / "discriminator")


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden checkpoint is not beside the project")
@torch.no_grad()
def test_a_checkpoint_that_tensorflow_wrote(tmp_path):
    import_model([str(GOLDEN)], tmp_path / "out")
    expected = np.load(GOLDEN / "expected_outputs.npz")
    ids, mask, segments = (
        torch.from_numpy(expected[name]).long()
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    given = (ids, segments, mask.bool())
    discriminator = load_discriminator(tmp_path / "out" / "discriminator")
    generator = load_generator(tmp_path / "out" / "generator")
    found = {
        "discriminator_logits": discriminator(*given),
        "discriminator_hidden": discriminator.encoder(*given),
        "generator_logits": generator.predict(generator.encoder(*given)),
    }
    for name, output in found.items():
        np.testing.assert_allclose(output.numpy(), expected[name], atol=1e-4, rtol=0)


def test_shapes_of_terabytes_are_not_allocated(prefix, write_bundle):
    tensors = checkpoint_of(*pair())
    write_bundle(prefix, tensors)
    bundle = open_bundle(prefix)
    name = "electra/embeddings/word_embeddings"
    huge = replace(bundle.entries[name], shape=(10**9, 128))
    with pytest.raises(UserError, match="describes a network of 128,"):
        importing._sizes(
            replace(bundle, entries={**bundle.entries, name: huge}), "electra", "electra", 0
        )


def test_a_high_layer_number_is_not_allocated(vocab, prefix, write_bundle, refused, tmp_path):
    name = "electra/encoder/layer_9999/output/dense/bias"
    write_bundle(prefix, checkpoint_of(*pair()) | {name: np.zeros(3, np.float32)})
    assert "describes a network of" in refused("import", prefix, "--out", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["tf"]


def test_the_name_in_a_checkpoint_file_cannot_leave_the_folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("outside.index", "model/a.index", "model/b.index"):
        (tmp_path / name).touch()
    for named in ("../outside", "/etc/passwd", "x" * 5000, "é" * 200, "..", "a\0b"):
        (folder / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n')
        with pytest.raises(UserError, match="holds several checkpoints"):
            find_checkpoint(str(folder))
    (folder / "checkpoint").write_text('model_checkpoint_path: "../../a"\n')
    assert find_checkpoint(str(folder)) == folder / "a"
