"""The adapters in examples/ for other people's harnesses; docs/harnesses.md has the real runs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from electra.finetune.probe import score_rows
from electra.hub.electric import mark_electric
from electra.hub.folders import load_discriminator, load_tokenizer_and_vocab

EXAMPLES = Path(__file__).parent.parent / "examples"
TEXTS = ["ka to", "the ka ri to men sul", "to ri ka", "men"]


def run_example(name: str, *args: str | Path, cwd: Path) -> str:
    command = [sys.executable, EXAMPLES / name, *args]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_scorer(model: Path, folder: Path, *, electric: bool = False) -> Path:
    """Write a copy of a discriminator as a causal scorer."""
    source = Path(shutil.copytree(model, folder / "discriminator"))
    if electric:
        mark_electric(source)
    run_example("causal_scorer.py", source, folder / "scorer", cwd=folder)
    return folder / "scorer"


def causal_scores(folder: Path) -> list[float]:
    """Score TEXTS as a causal harness does: the last column is cut off, special tokens excluded."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    batch = tokenizer(TEXTS, padding=True, return_tensors="pt", return_special_tokens_mask=True)
    ids, attention_mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1], attention_mask=attention_mask[:, :-1]).logits
    assert torch.allclose(logits.exp().sum(-1), torch.ones(()), atol=1e-4)
    log_probs = logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
    return (log_probs * (1 - batch["special_tokens_mask"][:, 1:])).sum(1).tolist()


def probe_scores(folder: Path, *, energies: bool = False) -> list[float]:
    """Score TEXTS as `electra probe` does."""
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    encoded = tokenizer.encode_batch(TEXTS, add_special_tokens=False)
    rows = [np.array([vocab.cls, *e.ids, vocab.sep]) for e in encoded]
    network = load_discriminator(folder).eval()
    found = score_rows([network], rows, vocab, torch.device("cpu"), lambda *_: None, energies)
    return found["discriminator"].tolist()


def test_the_causal_scorer_gives_the_scores_of_probe(model_folder, tmp_path):
    folder = make_scorer(model_folder, tmp_path)
    expected = probe_scores(folder)
    assert len(set(expected)) == len(TEXTS)
    assert causal_scores(folder) == pytest.approx(expected, abs=1e-4)


def test_the_causal_scorer_of_electric_gives_minus_the_energies(model_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    model = Path(shutil.copytree(model_folder, tmp_path / "positive"))
    weights = load_file(model / "model.safetensors")
    weights["discriminator_predictions.dense_prediction.bias"] += 5  # no energy below zero
    save_file(weights, model / "model.safetensors")
    folder = make_scorer(model, tmp_path, electric=True)
    assert causal_scores(folder) == pytest.approx(probe_scores(folder, energies=True), abs=1e-4)


def test_the_commands_of_the_page(finished, bash, tmp_path):
    page = (EXAMPLES.parent / "docs/harnesses.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"<!-- tested -->\n```bash\n(.*?)```", page, re.S)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/first").symlink_to(finished)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    bash(script)
    folder = tmp_path / "models/first-scorer"
    assert causal_scores(folder) == pytest.approx(probe_scores(folder), abs=1e-4)


STAND_IN = {
    "__init__.py": "",
    "finetuning.py": """
from types import SimpleNamespace
from transformers import EarlyStoppingCallback

def get_training_args(seed):
    return SimpleNamespace(learning_rate=2e-5, seed=seed)

def finetune():
    callback = EarlyStoppingCallback(early_stopping_patience=2)
    print(vars(get_training_args(seed=7)), callback.early_stopping_patience)
""",
    "cli.py": """
from . import finetuning

def benchmark(arguments):
    print(arguments)
    finetuning.finetune()
""",
}


def test_euroeval_runs_with_the_learning_rate_and_patience_asked_for(tmp_path):
    script = Path(shutil.copy(EXAMPLES / "euroeval_settings.py", tmp_path))
    (tmp_path / "euroeval").mkdir()  # beside the script, so that it is found before others
    for name, text in STAND_IN.items():
        (tmp_path / "euroeval" / name).write_text(text, encoding="utf-8")
    said = subprocess.run(
        [sys.executable, script, "3e-4", "10", "--model", "mine"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert said.split("\n")[:2] == [
        "['--model', 'mine']",
        "{'learning_rate': 0.0003, 'seed': 7} 10",
    ]
