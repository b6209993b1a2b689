"""The released model beside the toy: who finds the wrong word."""

import re

import pytest

from electra import load
from electra.demo import released
from electra.demo.released import EXAMPLES, RELEASED_MODEL, exchange_words, share_found, suspect
from electra.demo.speeches import read_speeches, sample_sentences
from electra.hub.inference import DetectedToken
from electra.model_packages import installed_models


def tokens_of(text: str, suspicious: str) -> list[DetectedToken]:
    """Tokens of at most three characters; the one that contains a position is suspicious."""
    spans = [match.span() for match in re.finditer(r"\w{1,3}|[^\w\s]", text)]
    position = text.index(suspicious) + len(suspicious) - 1
    return [
        DetectedToken(token=text[a:b], start=a, end=b, replaced=0.4 if a <= position < b else 0.1)
        for a, b in spans
    ]


class Suspicious:
    """A model that suspects the word `river` in every text that has it."""

    def detect(self, texts: list[str]) -> list[list[DetectedToken]]:
        return [tokens_of(text, "river" if "river" in text else ".") for text in texts]


@pytest.mark.parametrize("word", ["old", "captain", "river", "."])
def test_the_suspect_is_the_whole_word_of_the_token(word):
    text = "The old captain painted the kitchen river."
    begin, end = suspect(text, tokens_of(text, word))
    assert text[begin:end] == word


def test_exchanged_sentences_differ_in_one_word():
    sentences = sample_sentences(read_speeches(), 1000, seed=3)[::2]
    exchanged = exchange_words(sentences, seed=0)
    assert len(exchanged) == len(sentences)
    for (text, (begin, end)), sentence in zip(exchanged, sentences, strict=True):
        old, new = (re.findall(r"\w+|\W+", part) for part in (sentence.text, text))
        differing = [i for i, pair in enumerate(zip(old, new, strict=True)) if len({*pair}) > 1]
        assert [new[i] for i in differing] == [text[begin:end]]
    assert exchange_words(sentences, seed=0) == exchanged != exchange_words(sentences, seed=1)


def test_the_share_of_words_that_are_found():
    texts = [("a river .", (2, 7)), ("the old river .", (4, 7)), ("an old boat .", (3, 6))]
    assert share_found(Suspicious(), texts) == 1 / 3


def test_the_table_marks_what_was_found(console):
    console.print(released.suspects_table({"one": Suspicious()}))
    shown = console.file.getvalue()
    assert re.search(r"kitchen river\. +✓ river", shown)
    assert shown.count("✓") == 1


def test_each_example_has_its_word_once():
    for text, wrong in EXAMPLES:
        assert re.findall(r"\w+", text).count(wrong) == 1, text
        assert len(text) < 50  # three columns fit into 80


@pytest.mark.skipif(RELEASED_MODEL not in installed_models(), reason="no released model")
def test_the_released_model_finds_most_of_the_examples():
    """Those that were chosen for it; a better model should find more."""
    model = load(RELEASED_MODEL, device="cpu")
    words = [text[slice(*suspect(text, model.detect(text)))] for text, _ in EXAMPLES]
    assert sum(word == wrong for word, (_, wrong) in zip(words, EXAMPLES, strict=True)) >= 6
