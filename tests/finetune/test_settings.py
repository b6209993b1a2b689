"""The settings of fine-tuning: checks, and names of earlier versions."""

from dataclasses import fields

import pytest

from electra.config import override
from electra.errors import UserError
from electra.finetune.settings import FinetuneConfig


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 0},
        {"parallel_seeds": -1},
        {"beam_size": 0},
        {"lr": -1.0},
        {"epochs": -1.0},
        {"warmup": 1.0},
        {"dropout": 1.0},
        {"layer_decay": 1.1},
        {"clip": 0.0},
        {"clip": float("inf")},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"max_length": 7},
        {"max_length": -1},
        {"doc_stride": 0},
        {"max_question_length": 0},
        {"max_answer_length": 0},
        {"answerability_weight": -0.5},
        {"pool": "max", "head": "transformers"},
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError):
        FinetuneConfig(**settings)


@pytest.mark.parametrize(("old", "new"), FinetuneConfig.RENAMED_KEYS.items())
def test_old_names_still_work(old, new):
    value = 48 if new != "answerability_weight" else 0.25
    with pytest.warns(FutureWarning, match=f"'{old}' is now '{new}'"):
        found = override(FinetuneConfig(), [f"{old}={value}"])
    assert found == FinetuneConfig(**{new: value})
    assert found != FinetuneConfig()


def test_old_names_are_those_of_settings():
    names = {field.name for field in fields(FinetuneConfig)}
    assert set(FinetuneConfig.RENAMED_KEYS.values()) <= names
    assert not names & FinetuneConfig.RENAMED_KEYS.keys()
