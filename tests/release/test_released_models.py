"""The models in `weights/`: whole, loadable by us and by others, and worth having."""

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import electra as package_under_test
from electra.hub.folders import load_discriminator
from electra.model_packages import RELEASED, check_files, find_package, installed_models
from electra.release.details import read_details

WEIGHTS = Path(__file__).parents[2] / "weights"
TEXT = "The pilot landed the kitchen safely in the fog."

pytestmark = pytest.mark.parametrize("name", RELEASED)


def networks_of(name: str) -> Path:
    found = find_package(WEIGHTS / name)
    assert found is not None
    return found


def test_the_files_are_those_that_were_released(name):
    networks = networks_of(name)
    for network in ("discriminator", "generator"):
        check_files(networks / network)
    assert sum(path.stat().st_size for path in networks.rglob("*")) < 40e6


def test_it_is_installed_in_this_version(name):
    """The test set-up installs it, as the README says."""
    entry = installed_models().get(name)
    if entry is None:
        pytest.skip(f"{name} is not installed: {RELEASED[name]}")
    project = tomllib.loads((WEIGHTS / name / "pyproject.toml").read_text())["project"]
    assert entry.dist is not None
    assert entry.dist.version == project["version"]


def test_it_finds_the_word_that_does_not_fit(name):
    model = package_under_test.load(networks_of(name), device="cpu")
    tokens = model.detect(TEXT)
    assert max(tokens, key=lambda token: token.replaced).token == "kitchen"
    (proposals,) = model.fill("She [MASK] the letter and sent it to her brother.", 5)
    assert {"sent", "received", "wrote"} & {proposal.token for proposal in proposals}
    one, same, other = model.encode([TEXT, TEXT, "Nobody knows."])
    assert np.allclose(one, same, atol=1e-5)
    assert not np.allclose(one, other, atol=1e-2)


def test_transformers_computes_the_same(name):
    from transformers import AutoTokenizer, ElectraForMaskedLM, ElectraForPreTraining

    folder = networks_of(name) / "discriminator"
    inputs = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    model, report = ElectraForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    ids = inputs["input_ids"]
    with torch.no_grad():
        ours = load_discriminator(folder)(ids, torch.zeros_like(ids), torch.ones_like(ids).bool())
        torch.testing.assert_close(model.eval()(**inputs).logits, ours, atol=1e-4, rtol=1e-4)
    _, report = ElectraForMaskedLM.from_pretrained(
        networks_of(name) / "generator", output_loading_info=True
    )
    assert not any(report.values()), report


def test_sentence_transformers_computes_the_same(name):
    library = pytest.importorskip("sentence_transformers")
    folder = networks_of(name)
    ours = package_under_test.load(folder, device="cpu").encode([TEXT])
    theirs = library.SentenceTransformer(str(folder / "discriminator"), device="cpu").encode([TEXT])
    np.testing.assert_allclose(theirs, ours, atol=1e-4)


def test_the_card_says_what_a_reader_needs(name):
    text = (WEIGHTS / name / "README.md").read_text(encoding="utf-8")
    _, front, body = text.split("---\n", 2)
    facts = yaml.safe_load(front)
    assert {"language", "license", "model-index", "library_name"} <= facts.keys()
    for heading in ("Use", "Fine-tune", "Training", "Training data", "Scores", "Limitations"):
        assert re.search(rf"^## {heading}$", body, re.M), heading


def test_the_card_has_the_settings_for_transformers(name, tmp_path, monkeypatch):
    """Those of its YAML file; its code runs."""
    pytest.importorskip("accelerate", reason="transformers.TrainingArguments needs accelerate")
    if name not in installed_models():
        pytest.skip(f"{name} is not installed: {RELEASED[name]}")
    advice = read_details(WEIGHTS / f"{name}.yaml").finetuning.strip()
    text = (WEIGHTS / name / "README.md").read_text(encoding="utf-8")
    section = text.split("## Fine-tune\n")[1].split("\n## ")[0]
    assert advice
    assert section.rstrip().endswith(advice)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", section, re.S):
        exec(block, found)
    settings = found["settings"]
    assert settings.get_warmup_steps(100) == 10
    assert found["model"].config.num_labels == 2
