"""A run becomes a pip package: it installs, loads everywhere, and its numbers are the run's."""

import json
import shutil
import subprocess
import sys
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import electra as package_under_test
from electra.errors import UserError
from electra.hub.folders import (
    export,
    load_discriminator,
    load_encoder,
    load_generator,
    load_tokenizer_and_vocab,
)
from electra.model_packages import find_package
from electra.release.package import check_name, release
from electra.text.tokenizer import save_tokenizer
from electra.train import checkpoint

TEXTS = ["the old farmer went to the oven .", "bread"]


@pytest.fixture(scope="module")
def networks(released):
    return find_package(released)


@pytest.fixture
def last(finished):
    return checkpoint.checkpoints(finished)[-1]


# ------------------------------------------------------------------ fp16


@pytest.mark.parametrize("network", ["discriminator", "generator"])
def test_the_weights_are_those_of_the_run_in_fp16(networks, last, network):
    stored = load_file(networks / network / "model.safetensors")
    exact = load_file(last / network / "model.safetensors")
    assert stored.keys() == exact.keys()
    for name, tensor in stored.items():
        assert tensor.dtype == torch.float16
        assert torch.equal(tensor, exact[name].half()), name


def test_fp16_folders_load_in_fp32_within_rounding(networks, last):
    """Ours from fp16 against ours from fp32: weights differ by at most 2^-11 of their size."""
    for load, network in (
        (load_discriminator, "discriminator"),
        (load_encoder, "discriminator"),
        (load_generator, "generator"),
    ):
        ours, exact = load(networks / network), load(last / network)
        for (name, a), (_, b) in zip(
            ours.named_parameters(), exact.named_parameters(), strict=True
        ):
            assert a.dtype == torch.float32
            assert ((a - b).abs() <= 2**-11 * b.abs() + 2**-25).all(), name
    released, run = (package_under_test.load(f, device="cpu") for f in (networks, last))
    np.testing.assert_allclose(released.encode(TEXTS), run.encode(TEXTS), atol=0.01)
    for ours, exact in zip(released.detect(TEXTS[0]), run.detect(TEXTS[0]), strict=True):
        assert ours.token == exact.token
        assert ours.replaced == pytest.approx(exact.replaced, abs=2e-3)
    assert released.fill("the [MASK] .", 1)[0][0].probability == pytest.approx(
        run.fill("the [MASK] .", 1)[0][0].probability, abs=2e-3
    )


def test_transformers_loads_the_folders_in_fp32_and_agrees(networks):
    """In fp32 by default, because fine-tuning pure fp16 weights diverges."""
    from transformers import (
        AutoTokenizer,
        ElectraForMaskedLM,
        ElectraForPreTraining,
        ElectraForSequenceClassification,
    )

    tokenizer = AutoTokenizer.from_pretrained(networks / "discriminator")
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    theirs = ElectraForPreTraining.from_pretrained(networks / "discriminator").eval()
    assert theirs.dtype == torch.float32
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    with torch.no_grad():
        ours = load_discriminator(networks / "discriminator")(ids, torch.zeros_like(ids), mask)
        torch.testing.assert_close(theirs(**inputs).logits, ours, atol=1e-5, rtol=1e-5)
        generator = ElectraForMaskedLM.from_pretrained(networks / "generator").eval()
        assert generator.dtype == torch.float32
        place = torch.tensor([[2]])
        ours = load_generator(networks / "generator")(ids, torch.zeros_like(ids), mask, place)
        torch.testing.assert_close(generator(**inputs).logits[:, 2], ours[:, 0], atol=1e-5, rtol=0)
    classifier = ElectraForSequenceClassification.from_pretrained(networks / "discriminator")
    assert classifier.dtype == torch.float32


def test_sentence_transformers_loads_the_discriminator_and_agrees(networks):
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(networks / "discriminator"), device="cpu")
    ours = package_under_test.load(networks, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS), ours, atol=1e-5)


# ------------------------------------------------------------------ the package


def test_pip_installs_it_without_a_network(released, tmp_path):
    """Built by hatchling, in a process of its own that then uses the model by name."""
    pytest.importorskip("hatchling")
    source = shutil.copytree(released, tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--no-build-isolation", "--disable-pip-version-check", "--target", tmp_path / "site"]
    done = subprocess.run([*pip, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import electra, tiny_model_xx\n"
        "model = electra.load('tiny-model-xx', device='cpu')\n"
        "assert model.folder == tiny_model_xx.PATH, model.folder\n"
        "assert tiny_model_xx.__version__ == '1.0.0'\n"
        "print(len(model.detect('the old farmer')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3


def test_the_project_file(released, finished, tmp_path):
    project = tomllib.loads((released / "pyproject.toml").read_text())["project"]
    assert project["name"] == "tiny-model-xx"
    assert project["entry-points"] == {"electra.models": {"tiny-model-xx": "tiny_model_xx"}}
    assert "license" not in project
    card = tmp_path / "card.yaml"
    card.write_text("license: Apache-2.0\n")
    release(str(finished), tmp_path / "out", name="a-b", version="2.1.0rc1", card=card)
    project = tomllib.loads((tmp_path / "out" / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["version"]) == ("Apache-2.0", "2.1.0rc1")


def test_a_folder_is_released_like_a_run(finished, released, last, tmp_path):
    """The same networks give the same files, from a checkpoint or a copy of its folders."""
    shutil.copytree(last / "discriminator", tmp_path / "copy" / "discriminator")
    release(str(tmp_path / "copy"), tmp_path / "out", name="a-b", version="1.0.0", card=None)
    manifests = [
        json.loads((find_package(folder) / "electra-model.json").read_text())["sha256"]
        for folder in (released, tmp_path / "out")
    ]
    assert manifests[1].items() <= manifests[0].items()
    assert len(manifests[1]) == 4
    card = (tmp_path / "out" / "README.md").read_text()
    assert "electra fill" not in card  # no generator
    assert "## Training" not in card  # a folder does not know its run


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", ["Electra", "a_b", "a--b", "-a", "a-", "1a", "", "a b", "a/b"])
def test_names_that_pip_would_change(name):
    with pytest.raises(UserError, match="lower-case letters"):
        check_name(name)


@pytest.mark.parametrize("name", ["electra", "torch", "json"])
def test_names_that_hide_a_python_package(name):
    with pytest.raises(UserError, match=f"there is a Python package '{name}'"):
        check_name(name)


def test_a_folder_on_the_path_is_not_a_python_package(tmp_path, monkeypatch):
    (tmp_path / "tales").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert check_name("tales") == "tales"


def test_a_model_can_be_released_again_while_it_is_installed(installed):
    installed("tiny-model-xx")
    assert check_name("tiny-model-xx") == "tiny_model_xx"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 70_000.0])
def test_weights_that_fp16_cannot_store(last, tmp_path, value):
    model = load_discriminator(last / "discriminator")
    with torch.no_grad():
        model.encoder.layers[0].up_proj.weight[3, 4] = value
    tokenizer, vocab = load_tokenizer_and_vocab(last / "discriminator")
    export(model, tmp_path / "bad", vocab.pad)
    save_tokenizer(tokenizer, tmp_path / "bad")
    with pytest.raises(UserError, match=r"up_proj\.weight of the discriminator holds NaN or val"):
        release(str(tmp_path / "bad"), tmp_path / "out", name="a-b", version="1", card=None)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


def test_nothing_is_left_behind_by_an_error(finished, tmp_path, monkeypatch):
    def fail(*_):
        raise UserError("no card")

    monkeypatch.setattr("electra.release.package.model_card", fail)
    with pytest.raises(UserError, match="no card"):
        release(str(finished), tmp_path / "w" / "out", name="a-b", version="1", card=None)
    assert list((tmp_path / "w").iterdir()) == []


# ------------------------------------------------------------------ the command in the card
