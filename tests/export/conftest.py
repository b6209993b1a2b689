"""A fine-tuned classifier without training, and its ONNX export."""

from pathlib import Path

import pytest
import torch

from electra.export.run import export_model
from electra.finetune.task_model import new_task_model, save_task_model
from electra.hub.folders import load_encoder
from electra.hub.heads import TaskCard
from electra.text.tokenizer import load_tokenizer, save_tokenizer


def make_tuned(model_folder: Path, folder: Path, kind: str = "classify", **fields) -> Path:
    """Write a model with a random head."""
    values = {
        "labels": ["bread", "cargo"],
        "columns": {"text": "text", "label": "label"},
        "max_length": 32,
        "pool": "max",
    }
    card = TaskCard(name="moods", kind=kind, **(values | fields))
    torch.manual_seed(0)
    model = new_task_model(card, load_encoder(model_folder))
    save_task_model(model, folder / "model", card, 0)
    save_tokenizer(load_tokenizer(model_folder), folder / "model", max_length=64)
    return folder


@pytest.fixture(scope="session")
def tuned(model_folder, tmp_path_factory) -> Path:
    return make_tuned(model_folder, tmp_path_factory.mktemp("tuned"))


@pytest.fixture(scope="session")
def exported(tuned, reviews, tmp_path_factory) -> tuple[Path, list[str]]:
    """The classifier as ONNX in fp32 and int8, and what the export said."""
    out, said = tmp_path_factory.mktemp("onnx") / "out", []
    export_model(str(tuned), out, "onnx", int8=True, data=reviews / "dev.csv", tell=said.append)
    return out, said


@pytest.fixture
def tune(model_folder, tmp_path):
    """Make a fine-tuned model of another kind."""
    return lambda *arguments, **fields: make_tuned(
        model_folder, tmp_path / "other", *arguments, **fields
    )
