"""Ranking, comparing and classifying, without a page."""

import math

import pytest

from electra.api import load
from electra.errors import UserError
from electra.play.models import find_abilities
from electra.play.scores import (
    apply_task,
    rank,
    second_text,
    split_sentences,
    summarise,
)
from electra.play.tokens import detect

GOOD, BAD = "the old farmer went to the field .", "field field to to farmer the ."


def test_the_rank_is_that_of_the_mean_log_probability(choice):
    found = rank(choice, f"{BAD}\n\n{GOOD}\n")
    for item in found:
        kept = [math.log(1 - t.replaced) for t in choice.model.detect(item.sentence)]
        assert item.score == pytest.approx(sum(kept) / len(kept))
    assert found[0].score >= found[1].score
    assert {item.sentence for item in found} == {GOOD, BAD}


def test_limits():
    assert split_sentences(" a \n\n b") == ["a", "b"]
    with pytest.raises(UserError, match="51 sentences: use at most 50"):
        split_sentences("a\n" * 51)
    with pytest.raises(UserError, match="empty"):
        split_sentences("\n \n")


def test_a_summary(model):
    tokens = detect(model, GOOD)
    mean = sum(t.suspicion for t in tokens) / len(tokens)
    assert f"{len(tokens)} tokens, mean suspicion {mean:.1%}" in summarise(tokens)


def test_classify(tuned, choice):
    model = find_abilities(load(tuned, "cpu"))
    assert second_text(model) == second_text(choice) == ""
    assert apply_task(model, "bread farmer") == model.model.classify(["bread farmer"])[0]
    with pytest.raises(UserError, match="empty"):
        apply_task(model, " ")
    with pytest.raises(UserError, match="no form"):
        apply_task(choice, "a text")
