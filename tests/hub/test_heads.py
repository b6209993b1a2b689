"""Folders of fine-tuned models: names of the tensors, and cards of any age."""

import json
from dataclasses import asdict

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from electra.errors import UserError
from electra.hub.heads import HeadLayout, TaskCard, read_card, read_task_weights, write_task_model
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import TaskModel

CONFIG = EncoderConfig(layers=1, hidden=16, heads=2, embedding=16, max_positions=8, vocab_size=64)
CARD = TaskCard(name="colours", kind="classify", labels=["red", "blue"])
LAYOUT = HeadLayout(
    architecture="ElectraForSequenceClassification", layers={"output": "classifier.out_proj"}
)


class Head(nn.Module):
    """One layer that transformers knows and one that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.output, self.extra = nn.Linear(16, 2), nn.Linear(16, 2)


def made(seed: int) -> TaskModel:
    torch.manual_seed(seed)
    return TaskModel(Encoder(CONFIG), Head())


def test_a_folder_holds_every_tensor_under_its_name(tmp_path):
    write_task_model(made(0), tmp_path, CARD, LAYOUT, pad_id=0)
    stored = load_file(tmp_path / "model.safetensors")
    assert {"classifier.out_proj.weight", "head.extra.bias"} <= stored.keys()
    settings = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert settings["architectures"] == ["ElectraForSequenceClassification"]
    assert settings["classifier_dropout"] == CARD.dropout
    copy = made(1)
    read_task_weights(copy, tmp_path, CARD, LAYOUT)
    wanted = made(0).state_dict()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in copy.state_dict().items())
    assert read_card(tmp_path) == CARD


def test_weights_that_are_not_finite_are_refused(tmp_path):
    write_task_model(made(0), tmp_path, CARD, LAYOUT, pad_id=0)
    stored = load_file(tmp_path / "model.safetensors")
    stored["head.extra.bias"][1] = torch.nan
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"head\.extra\.bias holds NaN or infinity"):
        read_task_weights(made(1), tmp_path, CARD, LAYOUT)


def test_cards_of_earlier_versions(tmp_path):
    old = {new: old for old, new in TaskCard.RENAMED_KEYS.items()}
    card = {old.get(name, name): value for name, value in asdict(CARD).items()}
    assert "maybe_none" in card
    del card["without_stops"]  # missing in the oldest ones
    (tmp_path / "task.json").write_text(json.dumps(card), encoding="utf-8")
    assert read_card(tmp_path) == CARD


def test_a_folder_without_a_card(tmp_path):
    with pytest.raises(UserError, match="is not a fine-tuned model"):
        read_card(tmp_path)
