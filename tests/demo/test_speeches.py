"""The State of the Union messages and the word order task."""

import importlib.util

import pytest

from electra.demo import speeches
from electra.errors import UserError


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"electra\[demo\]"):
        speeches.read_speeches()


def test_word_order_examples():
    train, held_out = speeches.split_speeches(speeches.read_speeches())
    assert len(held_out) == (len(train) + len(held_out)) // speeches.HELD_OUT_EVERY
    sentences = speeches.sample_sentences(held_out, 100, seed=3)
    assert sum(sentence.out_of_order for sentence in sentences) == 50
    texts = [" ".join(speech).lower() for speech in held_out]
    for sentence in sentences:
        unchanged = any(sentence.text in text for text in texts)
        assert unchanged != sentence.out_of_order
    assert sentences == speeches.sample_sentences(held_out, 100, seed=3)
