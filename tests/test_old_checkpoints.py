"""Runs, shards and fine-tuned models of earlier versions keep working.

The fixtures, and how to add one on a release: tests/fixtures/README.md.
"""

import json
import shutil
import tarfile
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import electra as package
from electra.config import override
from electra.train import checkpoint, pretrain
from electra.train.evaluate import evaluate
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start
from electra.train.run_config import read_run_config

FOLDER = Path(__file__).parent / "fixtures" / "checkpoints"
VERSIONS = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))
OTHER_MASKS = {"0.1.0", "2026-11-16"}
"""Versions with other random streams: masks and samples of the same seed differ."""
OLD_NAMES = {"0.1.0", "2026-11-16"}
"""Versions whose settings had other names."""
FINETUNED = [version for version in VERSIONS if version != "0.1.0"]
CLOSE = 1e-4
"""Relative; processors and versions of torch round differently."""


@pytest.fixture(autouse=True)
def _no_yardstick(monkeypatch):
    """Measuring the hardware's peak takes longer than these runs."""
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory):
    """The folder of a version: run, shards, finetuned; read only."""
    found: dict[str, Path] = {}

    def unpack(version: str) -> Path:
        if version not in found:
            found[version] = tmp_path_factory.mktemp("old") / version
            with tarfile.open(FOLDER / f"{version}.tar.xz") as archive:
                archive.extractall(found[version], filter="data")
        return found[version]

    return unpack


@pytest.fixture(params=VERSIONS)
def version(request) -> str:
    return request.param


@pytest.fixture
def old(version, unpacked) -> Path:
    return unpacked(version)


@pytest.fixture
def expected(version) -> dict:
    """What that version computed, or transformers with its folders."""
    return json.loads((FOLDER / f"{version}.json").read_text())


def test_sizes():
    """An archive is small enough to be kept forever."""
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert len(VERSIONS) >= 4
    assert max(sizes.values()) < 150_000
    assert sum(sizes.values()) < 1_000_000


def test_old_names_of_settings_give_a_warning(version, old):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = read_run_config(old / "run")
    warned = [str(w.message) for w in caught if "old names of settings" in str(w.message)]
    assert len(warned) == (version in OLD_NAMES)
    assert (config.data.seq_length, config.data.batch_size) == (32, 16)
    assert (config.model.max_positions, config.model.init) == (32, "local")


def test_resume(version, old, expected, tmp_path, console):
    """The next losses are those of that version; where it drew other masks, those of its model."""
    run = Path(shutil.copytree(old / "run", tmp_path / "run"))
    assert resume(run, console, data=old / "shards") == 0
    lines = [line for line in read_metrics(run) if line["kind"] == "train" and line["step"] > 50]
    assert [line["step"] for line in lines] == list(range(51, 61))
    for name, values in expected["train"].items():
        found = [line[name] for line in lines]
        if version not in OTHER_MASKS:
            assert found == pytest.approx(values, rel=CLOSE), name
        elif name != "gradient_norm":  # of ten steps with other masks: too noisy
            assert sum(found) == pytest.approx(sum(values), rel=0.04), name
    # A new model is further off than other masks: its MLM loss is that of a uniform guess
    first = next(line for line in read_metrics(run) if line["kind"] == "train")
    assert 10 * first["mlm_loss"] > 1.08 * sum(expected["train"]["mlm_loss"])


def test_every_tensor_is_restored(old, tmp_path, console, monkeypatch):
    """Weights and moments of the files are those of the resumed run, whatever their names were."""
    run = Path(shutil.copytree(old / "run", tmp_path / "run"))
    saved = run / "checkpoints" / "step-00000050"
    stored = load_file(saved / "model.safetensors") | load_file(saved / "optimizer.safetensors")
    restored = {}

    def look(run, stop):
        step = run.step
        for tensors in checkpoint.tensor_groups(step.objective, step.optimizer, None).values():
            restored.update(tensors)
        assert run.state.rows_of_length == {32: 50 * 16}

    monkeypatch.setattr(pretrain, "train", look)
    resume(run, console, data=old / "shards")
    assert sums(restored) == sums(stored)


def sums(tensors: dict[str, torch.Tensor]) -> list[float]:
    """A fingerprint of tensors without their names."""
    return sorted(tensor.double().sum().item() for tensor in tensors.values())


def test_evaluate(version, old, expected):
    _, found = evaluate(old / "run", old / "shards", 4096)
    for name, value in expected["evaluate"].items():
        if version not in OTHER_MASKS:
            assert found[name] == pytest.approx(value, rel=CLOSE), name
        elif name in ("mlm_loss", "detection_loss", "replaced_rate"):
            assert found[name] == pytest.approx(value, rel=0.04), name


def test_load(old, expected):
    model = package.load(old / "run", "cpu")
    want = expected["detect"]
    found = [token.replaced for token in model.detect(want["text"])]
    assert found == pytest.approx(want["replaced"], rel=CLOSE)
    (found,) = model.fill(expected["fill"]["text"], top=3)
    want = expected["fill"]["top"]
    assert [token.token for token in found] == [token for token, _ in want]
    assert [token.probability for token in found] == pytest.approx(
        [probability for _, probability in want], rel=CLOSE
    )


@pytest.mark.parametrize("version", FINETUNED, indirect=True)
def test_predict(old, expected, tmp_path, electra):
    out = tmp_path / "predictions.jsonl"
    code, _, err = electra("predict", old / "finetuned", old / "texts.txt", "--out", out)
    assert code == 0, err
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(lines) == len(expected["predict"]) == 6
    for found, want in zip(lines, expected["predict"], strict=True):
        assert found["label"] == want["label"]
        assert found["probabilities"] == pytest.approx(want["probabilities"], rel=1e-3)


def test_export(old, expected, tmp_path, electra):
    """The plain transformers folder of an old run detects as that run did."""
    code, _, err = electra("export", old / "run", "--out", tmp_path / "model")
    assert code == 0, err
    want = expected["detect"]
    tokens = package.load(tmp_path / "model", "cpu").detect(want["text"])
    assert [token.replaced for token in tokens] == pytest.approx(want["replaced"], rel=CLOSE)


def test_init_from(old, tmp_path, console):
    """A new run starts from an old one, on its shards."""
    config = override(
        read_run_config(old / "run"),
        [
            f"data.folder={old / 'shards'}",
            f"init_from.model={old / 'run'}",
            "train.budget=2steps",
            "model.vocab_size=0",
        ],
    )
    assert start(config, tmp_path / "run", console) == 0
    lines = read_metrics(tmp_path / "run")
    assert next(line["mlm_loss"] for line in lines if line["kind"] == "train") < 4.6


def test_finetune_and_report(old, tmp_path, electra, reviews):
    out = tmp_path / "task"
    settings = ("--seeds", 1, "epochs=1", "device=cpu")
    code, _, err = electra(
        "finetune", old / "run", "classify", "--data", reviews, "--out", out, *settings
    )
    assert code == 0, err
    run = Path(shutil.copytree(old / "run", tmp_path / "run"))
    code, _, err = electra("report", run)
    assert code == 0, err


@pytest.mark.slow
def test_a_fixture_can_be_made(tmp_path, monkeypatch, console):
    """So that the next release can have one: it resumes to the numbers beside it."""
    from tests.fixtures import make  # imports transformers

    monkeypatch.setattr(make, "FOLDER", tmp_path)
    make.make("next", make.WORKING_TREE, old_names=False, more=["optim.ema=0.9"])
    with tarfile.open(tmp_path / "next.tar.xz") as archive:
        archive.extractall(tmp_path / "next", filter="data")
    run = tmp_path / "next" / "run"
    assert resume(run, console, data=tmp_path / "next" / "shards") == 0
    expected = json.loads((tmp_path / "next.json").read_text())
    found = [line["mlm_loss"] for line in read_metrics(run) if line["kind"] == "train"]
    assert found[-10:] == pytest.approx(expected["train"]["mlm_loss"], rel=CLOSE)
    assert len(expected["predict"]) == 6
