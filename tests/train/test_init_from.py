"""Runs that start from a trained model: its weights, its sizes, its tokenizer, its origin."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining

import electra.hub.folders
from electra.errors import UserError
from electra.hub.electric import mark_electric
from electra.hub.folders import export, load_discriminator, load_generator
from electra.hub.import_model import import_model
from electra.models.electra import Generator, GeneratorConfig, build_pair
from electra.models.encoder import Encoder
from electra.objectives.settings import ObjectiveConfig
from electra.text.prepare import prepare
from electra.text.tokenizer import load_tokenizer, load_vocabulary, save_tokenizer, train_tokenizer
from electra.train import checkpoint
from electra.train.init_from import InitFromConfig, describe_init, load_init_, resolve_init
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import budget_steps, build_objective, resume, row_workloads, start
from electra.train.run_config import read_run_config


@pytest.fixture(scope="module")
def folders(tokenizer_folder, tmp_path_factory) -> Path:
    """Both networks as transformers makes and saves them, in the sizes of the tiny recipe."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("transformers")
    tokenizer = load_tokenizer(tokenizer_folder)
    sizes = {
        "vocab_size": load_vocabulary(tokenizer_folder).size,
        "embedding_size": 16,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
    }
    small = {"hidden_size": 16, "num_attention_heads": 1, "intermediate_size": 64}
    large = {"hidden_size": 32, "num_attention_heads": 1, "intermediate_size": 128}
    discriminator = ElectraForPreTraining(ElectraConfig(**sizes, **large))
    generator = ElectraForMaskedLM(ElectraConfig(**sizes, **small))
    theirs = discriminator.electra.embeddings.state_dict()
    generator.electra.embeddings.load_state_dict(theirs)
    torch.nn.init.normal_(generator.generator_lm_head.bias)
    generator.tie_weights()
    for name, network in (("discriminator", discriminator), ("generator", generator)):
        network.save_pretrained(folder / name)
        save_tokenizer(tokenizer, folder / name, max_length=64)
    return folder


@pytest.fixture
def from_model(tiny):
    """The tiny recipe, started from a model."""

    def change(source: Path, **settings):
        return replace(tiny, init_from=InitFromConfig(model=str(source)), **settings)

    return change


def outputs(folder: Path) -> list[torch.Tensor]:
    """What transformers computes with both networks of a model."""
    ids = torch.arange(5, 69).view(2, 32)
    found = []
    for kind, name in (
        (ElectraForPreTraining, "discriminator"),
        (ElectraForMaskedLM, "generator"),
    ):
        with torch.no_grad():
            found.append(kind.from_pretrained(folder / name).eval()(ids).logits)
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def sha256(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def same_files(a: Path, b: Path) -> None:
    for name in ("model", "optimizer", "random"):
        one, two = (load_file(c / f"{name}.safetensors") for c in (a, b))
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), f"{name}: {key}"


def test_the_first_weights_compute_what_the_source_computes(
    folders, from_model, with_train, tmp_path, console
):
    """transformers -> import -> pretrain -> transformers; the first step's rate is 0."""
    imported = tmp_path / "imported"
    import_model([str(folders / "discriminator"), str(folders / "generator")], imported)
    config = with_train(from_model(imported), budget="1steps")
    assert start(config, tmp_path / "run", console) == 0
    for ours, theirs in zip(outputs(at(tmp_path / "run", 1)), outputs(folders), strict=True):
        assert torch.equal(ours, theirs)
    config = with_train(from_model(tmp_path / "run"), budget="1steps")  # a run of ours
    assert start(config, tmp_path / "next", console) == 0
    for ours, theirs in zip(outputs(at(tmp_path / "next", 1)), outputs(folders), strict=True):
        assert torch.equal(ours, theirs)


def test_the_weights_are_read_once(folders, from_model, with_train, tmp_path, console, monkeypatch):
    read = Mock(side_effect=load_file)
    monkeypatch.setattr(electra.hub.folders, "load_file", read)
    assert start(with_train(from_model(folders), budget="1steps"), tmp_path / "run", console) == 0
    files = [call.args[0] for call in read.call_args_list]
    assert files == [folders / n / "model.safetensors" for n in ("generator", "discriminator")]


def test_the_origin_and_the_schedule_are_recorded(folders, from_model, tmp_path, console):
    out = tmp_path / "run"
    start(from_model(folders), out, console)
    for place in (out, at(out, 20)):
        config = read_run_config(place)
        assert config.init_from.model == str(folders.resolve())
        assert config.init_from.sha256 == sha256(folders / "discriminator")
        assert config.init_from.generator_sha256 == sha256(folders / "generator")
        assert (config.optim.lr, config.optim.generator_lr) == (pytest.approx(2e-3 / 5), 0)
        assert config.objective.generator_first == 0
    said = console.file.getvalue()
    assert f"Starting from {folders.resolve()}" in said
    assert sha256(folders / "discriminator")[:12] in said
    steps = [m["step"] for m in read_metrics(out) if m["kind"] == "held_out"]
    assert steps == [0, 10, 20]  # the first is of the model as it was
    assert (
        weights(at(out, 20) / "discriminator").keys() == weights(folders / "discriminator").keys()
    )
    before, after = (weights(f / "discriminator") for f in (folders, at(out, 20)))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_without_a_generator_a_new_one_is_trained_alone_first(
    folders, from_model, with_train, tmp_path, console
):
    config = with_train(from_model(folders / "discriminator"), checkpoint_every=1, keep_last=99)
    config = replace(config, objective=replace(config.objective, generator_first=0.25))
    out = tmp_path / "run"
    assert start(config, out, console) == 0
    said = console.file.getvalue()
    assert (
        "The model has no generator. A new one (layers 2, hidden size 16) is trained alone" in said
    )
    assert "for 25% of the run: 5 of 20 steps, " in said
    assert "FLOPs" in said
    source = weights(folders / "discriminator")
    for step in range(1, 6):
        found = weights(at(out, step) / "discriminator")
        for name, tensor in source.items():
            assert torch.equal(found[name], tensor), (step, name)
    first, last = (weights(at(out, step) / "generator") for step in (1, 5))
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    tied = {name for name in first if name.startswith("electra.embeddings.")}
    assert moved == first.keys() - tied
    for name in tied:
        assert torch.equal(last[name], source[name])
    end = weights(at(out, 20) / "discriminator")
    assert any(not torch.equal(end[name], source[name]) for name in source)
    config = read_run_config(out)
    assert config.init_from.generator_sha256 == ""
    assert config.optim.lr == pytest.approx(2e-3 / 5)
    assert config.optim.generator_lr == 2e-3  # its weights are new
    for line in read_metrics(out):
        if line["kind"] == "held_out":
            assert ("recall" in line) == (line["step"] > 5)


def test_a_time_budget_states_the_time_of_the_new_generator(folders, from_model, with_train):
    config = with_train(from_model(folders / "discriminator"), budget="2h")
    config = resolve_init(config)
    assert config.objective.generator_first == 0.1
    _, said = describe_init(config, row_workloads(config), budget_steps(config))
    assert "for 10% of the run: 12 of 120 minutes." in said


@pytest.mark.parametrize("source", ["", "discriminator"])
def test_resumed_from_any_checkpoint_or_none_is_bit_identical(
    folders, from_model, with_train, tmp_path, console, source
):
    """At step 4 the generator is still trained alone, at step 8 both networks are trained."""
    config = with_train(from_model(folders / source), checkpoint_every=4, keep_last=99)
    if source:
        objective = replace(config.objective, generator_first=0.3)  # until step 6
        config = replace(config, objective=objective)
    straight = tmp_path / "straight"
    start(config, straight, console)
    for kept in (0, 4, 8):
        out = shutil.copytree(straight, tmp_path / f"killed-{kept}")
        for saved in checkpoint.checkpoints(out):
            if checkpoint.read_state(saved).step > kept:
                shutil.rmtree(saved)
        assert resume(out, console) == 0
        same_files(at(straight, 20), at(out, 20))


def test_a_resumed_run_without_a_checkpoint_needs_the_same_weights(
    folders, from_model, tmp_path, console
):
    model = shutil.copytree(folders, tmp_path / "model")
    out = tmp_path / "run"
    start(from_model(model), out, console)
    for saved in checkpoint.checkpoints(out):
        shutil.rmtree(saved)
    other = weights(model / "generator")
    other["generator_lm_head.bias"] += 1
    save_file(other, model / "generator" / "model.safetensors")
    with pytest.raises(UserError, match="changed since this run was started"):
        resume(out, console)


def test_a_recorded_hash_must_fit(folders, from_model):
    config = from_model(folders)
    wrong = replace(config.init_from, sha256="0" * 64)
    with pytest.raises(UserError, match="not those that the configuration records"):
        resolve_init(replace(config, init_from=wrong))
    right = replace(config.init_from, sha256=sha256(folders / "discriminator"))
    assert resolve_init(replace(config, init_from=right)).init_from.generator_sha256


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"layers": 3}, "The recipe has model.layers=3, but .* has model.layers=2"),
        ({"hidden": 64}, "model.hidden=64, but .* model.hidden=32"),
        ({"heads": 2}, "model.heads=2, but .* model.heads=1"),
        ({"feed_forward": 99}, "model.feed_forward=99, but .* model.feed_forward=128"),
        ({"embedding": 32}, "model.embedding=32, but .* model.embedding=16"),
        ({"max_positions": 128}, "model.max_positions=128, but .* model.max_positions=64"),
        ({"vocab_size": 77}, "model.vocab_size=77, but .* a vocabulary of"),
    ],
)
def test_other_sizes_than_the_models_are_refused(folders, from_model, tiny, sizes, message):
    config = from_model(folders, model=replace(tiny.model, **sizes))
    with pytest.raises(UserError, match=message):
        resolve_init(config)


def test_other_generator_sizes_are_refused(folders, from_model, tiny):
    config = from_model(folders, generator=GeneratorConfig(width=1.0))
    with pytest.raises(UserError, match=r"hidden=32, but that of .* has hidden=16: set gen\S+=0.5"):
        resolve_init(config)
    config = from_model(folders, generator=GeneratorConfig(width=0.5, depth=0.5))
    with pytest.raises(UserError, match=r"layers=1, but that of .* has layers=2.*depth=1"):
        resolve_init(config)
    config = from_model(folders / "discriminator", generator=GeneratorConfig(width=1.0))
    assert resolve_init(config).generator.width == 1.0  # a new one may have any size


def test_networks_that_share_nothing_are_not_tied(folders, from_model, tmp_path, console):
    model = shutil.copytree(folders, tmp_path / "model")
    other = weights(model / "generator")
    other["electra.embeddings.position_embeddings.weight"][3] += 1
    save_file(other, model / "generator" / "model.safetensors", metadata={"format": "pt"})
    out = tmp_path / "run"
    with pytest.raises(UserError, match=r"position_embeddings.weight differs.*generator.tie=gdes"):
        start(from_model(model), out, console)
    assert not out.exists()


@pytest.mark.parametrize("source", ["", "discriminator"])
def test_disentangled_embeddings_add_up_to_the_models(
    folders, from_model, with_train, tmp_path, console, source
):
    generator = GeneratorConfig(width=0.5, tie="gdes")
    config = with_train(from_model(folders / source, generator=generator), budget="1steps")
    start(config, tmp_path / "run", console)
    found, expected = (weights(f / "discriminator") for f in (at(tmp_path / "run", 1), folders))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-7)
    theirs = weights(at(tmp_path / "run", 1) / "generator")
    for name, tensor in weights(folders / "generator").items():
        if not source or name.startswith("electra.embeddings."):
            assert torch.equal(theirs[name], tensor), name


def test_another_tokenizer_is_refused(folders, from_model, tmp_path, corpus, console, tiny):
    train_tokenizer([corpus], tmp_path / "tokenizer", vocab_size=140)
    prepare([corpus], tokenizer=tmp_path / "tokenizer", out=tmp_path / "shards", length=32,
            workers=1, held_out=0.1)  # fmt: skip
    data = replace(tiny.data, folder=str(tmp_path / "shards"))
    with pytest.raises(UserError, match=r"another tokenizer than that of .* --tokenizer .*/disc"):
        start(from_model(folders, data=data), tmp_path / "run", console)
    assert not (tmp_path / "run").exists()


def test_rows_beyond_the_tokenizer_stay_and_are_never_sampled(
    tokenizer_folder, tiny, from_model, with_train, tmp_path, console
):
    vocab = load_vocabulary(tokenizer_folder)
    sizes = replace(tiny.model, vocab_size=vocab.size + 5, vocab_multiple=1)
    networks = build_pair(sizes, tiny.generator)
    for name, network in zip(("generator", "discriminator"), networks, strict=True):
        export(network, tmp_path / "model" / name, vocab.pad)
        save_tokenizer(load_tokenizer(tokenizer_folder), tmp_path / "model" / name, max_length=64)
    config = with_train(from_model(tmp_path / "model"), budget="1steps")
    start(config, tmp_path / "run", console)
    for name, load in (("generator", load_generator), ("discriminator", load_discriminator)):
        ours, theirs = (load(f / name) for f in (at(tmp_path / "run", 1), tmp_path / "model"))
        for key, tensor in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[key], tensor), key
    objective = build_objective(read_run_config(tmp_path / "run"), vocab)
    assert objective.generator.absent[vocab.size :].all()
    assert not objective.generator.absent[: vocab.size].any()


def test_a_generator_alone_gets_a_new_discriminator(folders, from_model, tmp_path, console):
    config = resolve_init(from_model(folders / "generator"))
    assert (config.optim.lr, config.optim.generator_lr) == (2e-3, pytest.approx(2e-3 / 5))
    assert config.objective.generator_first == 0
    assert config.init_from.sha256 == ""
    vocab = load_vocabulary(folders / "generator")
    objective = build_objective(config, vocab)
    load_init_(objective, config)
    found = dict(objective.generator.state_dict())
    expected = load_generator(folders / "generator").state_dict()
    assert torch.equal(found["dense.weight"], expected["dense.weight"])
    table = objective.discriminator.encoder.embeddings.token.weight[: vocab.size]
    assert torch.equal(table, expected["encoder.embeddings.token.weight"])


def test_a_masked_language_model_is_continued(
    tiny, from_model, with_train, tmp_path, console, tokenizer_folder
):
    vocab = load_vocabulary(tokenizer_folder)
    sizes = replace(tiny.model, vocab_size=vocab.size)
    model = tmp_path / "model" / "mlm"
    export(Generator(Encoder(sizes)), model, vocab.pad)
    save_tokenizer(load_tokenizer(tokenizer_folder), model, max_length=64)
    config = with_train(
        from_model(tmp_path / "model", objective=ObjectiveConfig(kind="mlm")), budget="1steps"
    )
    start(config, tmp_path / "run", console)
    found, expected = weights(at(tmp_path / "run", 1) / "mlm"), weights(model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with pytest.raises(UserError, match=r"only a masked language model: set objective.kind=mlm"):
        resolve_init(from_model(tmp_path / "model"))


def test_given_settings_win(folders, from_model, tiny):
    optim = replace(tiny.optim, lr=1e-3, warmup=50)
    config = resolve_init(from_model(folders, optim=optim), {"optim.lr", "optim.warmup"})
    assert config.optim == optim
    objective = from_model(folders / "discriminator")
    config = resolve_init(objective, {"objective.generator_first"})
    assert config.objective.generator_first == 0
    config = resolve_init(
        from_model(folders / "discriminator", optim=replace(tiny.optim, generator_lr=9e-4)),
        {"optim.generator_lr"},
    )
    assert config.optim.generator_lr == 9e-4
    muon = from_model(folders, optim=replace(tiny.optim, lr=1e-3, kind="muon", muon_lr=1e-2))
    assert resolve_init(muon, {"optim.muon_lr"}).optim.muon_lr == 1e-2
    assert resolve_init(muon).optim.muon_lr == pytest.approx(2e-3)  # divided as `lr` is


def test_models_that_do_not_fit_the_objective_are_refused(folders, from_model, tiny, tmp_path):
    config = from_model(folders, objective=ObjectiveConfig(kind="adversarial"))
    with pytest.raises(
        UserError, match=r"--init-from does not work with objective.kind=adversarial"
    ):
        resolve_init(config)
    config = from_model(folders / "discriminator", objective=ObjectiveConfig(kind="mlm"))
    with pytest.raises(UserError, match="has no masked language model"):
        resolve_init(config)
    config = from_model(folders / "discriminator", objective=ObjectiveConfig(kind="rtd-masked"))
    with pytest.raises(UserError, match=r"has no generator, and objective.kind=rtd-masked"):
        resolve_init(config)
    electric = shutil.copytree(folders / "discriminator", tmp_path / "electric")
    mark_electric(electric)
    with pytest.raises(UserError, match="is an Electric model"):
        resolve_init(from_model(electric))
    (tmp_path / "model.ckpt.index").touch()
    with pytest.raises(UserError, match="is a TensorFlow checkpoint: import it first"):
        resolve_init(from_model(tmp_path / "model.ckpt"))


def test_an_encoder_without_a_head_is_refused(folders, from_model, tmp_path):
    model = shutil.copytree(folders / "discriminator", tmp_path / "encoder")
    body = {n: t for n, t in weights(model).items() if n.startswith("electra.")}
    save_file(body, model / "model.safetensors")
    with pytest.raises(UserError, match="neither the head of a discriminator"):
        resolve_init(from_model(model))


@pytest.mark.parametrize("kind", ["run", "folder"])
def test_positions_that_the_source_never_trained(
    kind, finished, folders, from_model, corpus, tokenizer_folder, tmp_path, console
):
    """A run on rows of 32 has trained 32 positions; a folder of others counts as trained."""
    source, shards = finished if kind == "run" else folders, tmp_path / "shards"
    prepare([corpus], tokenizer=tokenizer_folder, out=shards, length=64, workers=1, held_out=0.1)
    config = from_model(source)
    data = replace(config.data, folder=str(shards), seq_length=64, batch_size=4)
    train = replace(config.train, budget="1steps", validate_every=1)
    config = replace(config, data=data, train=train)
    optim = replace(config.optim, lr=0.0, weight_decay=0.0)
    assert start(replace(config, optim=optim), tmp_path / "run", console, ["optim.lr"]) == 0
    name = "electra.embeddings.position_embeddings.weight"
    found = weights(at(tmp_path / "run", 1) / "discriminator")[name]
    before = weights((at(finished, 20) if kind == "run" else folders) / "discriminator")[name]
    torch.testing.assert_close(found[:32], before[:32])
    expected = before[:32] if kind == "run" else before[32:]
    torch.testing.assert_close(found[32:], expected)
    assert checkpoint.read_state(at(tmp_path / "run", 1)).known_positions == (
        32 if kind == "run" else 64
    )
