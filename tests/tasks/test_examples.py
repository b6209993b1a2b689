"""Examples and tasks: their kinds, and that nobody can change what all seeds share."""

from dataclasses import FrozenInstanceError, fields
from typing import get_args

import numpy as np
import pytest

from electra.finetune.kinds import KINDS
from electra.tasks import examples
from electra.tasks.examples import (
    Answer,
    Choice,
    Features,
    Question,
    Sentence,
    Tagged,
    Task,
)

NONE = np.zeros(0, np.int64)
ALL = [
    Sentence(id="a", text="b"),
    Choice(id="a", text="b", options=("c", "d")),
    Tagged(id="a", words=("b",)),
    Answer(text="b", start=0),
    Question(id="a", question="b", context="c"),
    Task(name="a", kind="tag", splits={}),
    Features(input_ids=(), segment_start=NONE, labels=None, example_index=NONE),
]


def test_each_kind_has_its_class():
    """Types name the kinds in one place, and fine-tuning looks its classes up in another."""
    assert list(get_args(examples.Kind)) == list(KINDS)


@pytest.mark.parametrize("example", ALL, ids=lambda e: type(e).__name__)
def test_what_seeds_share_cannot_be_changed(example):
    for field in fields(example):
        with pytest.raises(FrozenInstanceError):
            setattr(example, field.name, None)


def test_what_is_not_given_is_unknown():
    """An example without a label is one to predict, not one of label 0 or an unanswerable one."""
    sentence, choice, tagged, _, question, *_ = ALL
    assert (sentence.label, choice.label, tagged.tags, sentence.pair) == (None,) * 4
    assert (question.answers, question.impossible) == ((), False)
