"""Judged tokens: corrupt, detect, replace by hand, join to words."""

import pytest

from electra.errors import UserError
from electra.hub.heat_map import JudgedToken
from electra.play.tokens import (
    MAX_CHARS,
    check_text,
    corrupt_and_detect,
    detect,
    join_words,
    pick,
    replace_token,
    with_proposals,
)

TEXT = "the old farmer went to the field to plough the barley ."


def test_the_verdicts_are_those_of_the_discriminator(model):
    found = detect(model, TEXT)
    direct = model.detect(TEXT)
    assert [t.token for t in found] == [t.token for t in direct]
    assert [t.suspicion for t in found] == pytest.approx([t.replaced for t in direct])
    assert not any(t.original or t.masked or t.proposals for t in found)
    corrupted = corrupt_and_detect(model, TEXT, 0.3, 1.0, 1)
    assert [t.suspicion for t in corrupted] == pytest.approx(
        model.detect_tokens([t.token for t in corrupted])
    )
    replaced = [t for t in corrupted if t.original is not None]
    assert replaced
    assert all(t.masked and t.original != t.token and t.proposals for t in replaced)


def test_replace_by_hand(model):
    before = detect(model, TEXT)
    index = [t.token for t in before].index("farmer")
    after = replace_token(model, before, index, "sailor")
    assert (after[index].token, after[index].original) == ("sailor", "farmer")
    again = model.detect(TEXT.replace("farmer", "sailor"))
    assert [t.suspicion for t in after] == pytest.approx([t.replaced for t in again], abs=1e-6)
    back = replace_token(model, after, index, "farmer")  # the same as before, not a replacement
    assert back == before


def test_a_word_may_become_several_tokens(model):
    before = detect(model, TEXT)
    index = [t.token for t in before].index("farmer")
    pieces = model.tokenizer.encode("ploughbarn", add_special_tokens=False).tokens
    after = replace_token(model, before, index, "ploughbarn")
    assert len(pieces) > 1
    assert [t.token for t in after[index : index + len(pieces)]] == pieces
    assert [t.original for t in after[index : index + 2]] == ["farmer", ""]
    assert len(after) == len(before) + len(pieces) - 1


def test_proposals_of_a_clicked_token(model):
    tokens = detect(model, TEXT)
    found = with_proposals(model, tokens, 3)
    assert found.proposals == tuple(model.propose([t.token for t in tokens], 3))
    masked = next(t for t in corrupt_and_detect(model, TEXT, 0.3, 1.0, 1) if t.masked)
    assert with_proposals(model, [masked], 0) is masked


@pytest.mark.parametrize("text", ["", "  \n", "a" * (MAX_CHARS + 1)])
def test_texts_that_are_refused(model, text):
    with pytest.raises(UserError, match=r"empty|characters"):
        corrupt_and_detect(model, text, 0.15, 1.0, 0)
    with pytest.raises(UserError, match=r"empty|characters"):
        detect(model, text)


def test_limits(model):
    assert check_text(f"  {'a' * MAX_CHARS}  ") == "a" * MAX_CHARS
    tokens = detect(model, TEXT)
    for index in (-1, len(tokens)):
        with pytest.raises(UserError, match="no such token"):
            pick(tokens, index)
        with pytest.raises(UserError, match="no such token"):
            replace_token(model, tokens, index, "sailor")
    with pytest.raises(UserError, match="at most 60"):
        replace_token(model, tokens, 0, "a" * 61)


def judged(text: str, begins: bool, suspicion: float, original: str | None = None) -> JudgedToken:
    return JudgedToken(
        token=text,
        text=text,
        begins_word=begins,
        suspicion=suspicion,
        original=original,
        original_text=(original or "").removeprefix("##"),
        original_begins_word=original is not None and not original.startswith("##"),
    )


def test_words():
    words = join_words(
        [
            judged("farm", True, 0.1),
            judged("er", False, 0.7, "##hand"),
            judged("s", False, 0.2),
            judged("sang", True, 0.3),
            judged("glass", True, 0.4),
            judged("ette", False, 0.1, "of"),
        ]
    )
    assert [(w.text, w.suspicion, w.replaced, w.original) for w in words] == [
        ("farmers", 0.7, True, "farmhands"),
        ("sang", 0.3, False, "sang"),
        ("glassette", 0.4, True, "glass of"),
    ]
