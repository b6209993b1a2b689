"""Rows of tokens: their parts, what is cut, pairs both ways round, options."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.examples import Choice, Sentence
from electra.tasks.text_classification import encode_choices, encode_sentences, truncate_pairs
from electra.text.tokenizer import load_tokenizer, vocabulary


@pytest.fixture(scope="module")
def tools(tokenizer_folder: Path):
    tokenizer = load_tokenizer(tokenizer_folder)
    return tokenizer, vocabulary(tokenizer)


ONE, TWO = "the old farmer went to the field", "the barley was brought to the barn ."


def sentence(text: str, pair: str | None = None, label=0) -> Sentence:
    return Sentence(id="0", text=text, pair=pair, label=label)


def test_rows_are_those_of_the_tokenizer_s_own_template(tools):
    tokenizer, vocab = tools
    examples = [sentence(ONE, label=1), sentence(TWO, ONE), sentence(ONE, TWO)]
    rows = encode_sentences(examples, tokenizer, vocab, 64, kind="classify")
    for example, ids, first in zip(examples, rows.input_ids, rows.segment_start, strict=True):
        wanted = tokenizer.encode(example.text, example.pair)
        assert ids.dtype == np.int32
        assert ids.tolist() == wanted.ids
        assert first == wanted.type_ids.count(0)
    assert rows.labels.dtype == np.int64
    assert rows.labels.tolist() == [1, 0, 0]
    assert rows.example_index.tolist() == [0, 1, 2]
    assert (rows.rows_per_example, rows.num_truncated) == (1, 0)


def test_a_special_token_in_a_text_is_text(tools):
    tokenizer, vocab = tools
    text = f"{ONE} [SEP] [MASK]"
    rows = encode_sentences([sentence(text)], tokenizer, vocab, 64, kind="classify")
    inner = rows.input_ids[0][1:-1].tolist()
    assert not {vocab.sep, vocab.mask, vocab.cls} & set(inner)
    assert vocab.sep in tokenizer.encode(text, add_special_tokens=False).ids  # as it was before


def test_texts_without_tokens_keep_their_row(tools):
    tokenizer, vocab = tools
    examples = [sentence(""), sentence(" ", "\u200b"), sentence(ONE, "")]
    rows = encode_sentences(examples, tokenizer, vocab, 64, kind="classify")
    assert rows.input_ids[0].tolist() == [vocab.cls, vocab.sep]
    assert rows.input_ids[1].tolist() == [vocab.cls, vocab.sep, vocab.sep]
    assert rows.segment_start.tolist()[:2] == [2, 2]
    assert len(rows.input_ids[2]) == rows.segment_start[2] + 1


def cut_one_by_one(a: int, b: int, room: int) -> tuple[int, int]:
    """The original's loop."""
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@given(
    sides=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40)), min_size=1
    )
)
def test_the_cut_is_that_of_the_original_s_loop(sides):
    a, b, room = (np.asarray(column) for column in zip(*sides, strict=True))
    kept = zip(*(side.tolist() for side in truncate_pairs(a, b, room)), strict=True)
    assert list(kept) == [cut_one_by_one(*each) for each in sides]


@pytest.mark.parametrize("length", [3, 4, 7, 8, 11, 12])
def test_long_rows_are_cut_at_the_end_of_the_longer_side(tools, length):
    tokenizer, vocab = tools
    examples = [sentence(ONE), sentence(ONE, TWO), sentence("the", TWO), sentence("the")]
    rows = encode_sentences(examples, tokenizer, vocab, length, kind="classify")

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    cut = 0
    for example, ids, first in zip(examples, rows.input_ids, rows.segment_start, strict=True):
        a, b = tokens(example.text), tokens(example.pair or "")
        x, y = cut_one_by_one(len(a), len(b), length - (3 if example.pair else 2))
        second = [*b[:y], vocab.sep] if example.pair else []
        assert ids.tolist() == [vocab.cls, *a[:x], vocab.sep, *second]
        assert first == x + 2
        cut += (x, y) != (len(a), len(b))
    assert rows.num_truncated == cut > 0


def test_swapped_pairs_follow_their_pair(tools):
    tokenizer, vocab = tools
    examples = [sentence(ONE, TWO, 1.5), sentence(TWO, ONE, 2.5), sentence(ONE, None, 0.5)]
    rows = encode_sentences(examples, tokenizer, vocab, 12, kind="regress", swap=True)
    assert rows.example_index.tolist() == [0, 0, 1, 1, 2]
    assert rows.labels.dtype == np.float32
    assert rows.labels.tolist() == [1.5, 1.5, 2.5, 2.5, 0.5]
    assert rows.input_ids[1].tolist() == rows.input_ids[2].tolist()
    assert rows.input_ids[0].tolist() == rows.input_ids[3].tolist() != rows.input_ids[1].tolist()
    assert rows.num_truncated == 2  # examples, not rows


def test_hidden_labels_give_no_target(tools):
    rows = encode_sentences([sentence(ONE, label=None)], *tools, 16, kind="classify")
    assert rows.labels is None


def test_no_examples_give_no_rows(tools):
    rows = encode_sentences([], *tools, 16, kind="classify")
    assert (
        len(rows.input_ids),
        len(rows.segment_start),
        len(rows.example_index),
        rows.num_truncated,
    ) == (0, 0, 0, 0)
    assert len(encode_choices([], *tools, 16).input_ids) == 0


def test_rows_must_have_room(tools):
    with pytest.raises(ValueError, match="no space"):
        encode_sentences([sentence(ONE)], *tools, 2, kind="classify")


def test_every_option_is_a_row(tools):
    tokenizer, vocab = tools
    options = ("the barn", TWO, ONE)
    examples = [
        Choice(id="a", text=ONE, options=options, label=2),
        Choice(id="b", text=TWO, options=options[::-1], label=0),
    ]
    rows = encode_choices(examples, tokenizer, vocab, 64)
    wanted = [tokenizer.encode(e.text, option) for e in examples for option in e.options]
    assert [ids.tolist() for ids in rows.input_ids] == [each.ids for each in wanted]
    assert rows.segment_start.tolist() == [each.type_ids.count(0) for each in wanted]
    assert rows.example_index.tolist() == [0, 0, 0, 1, 1, 1]
    assert rows.labels.tolist() == [2, 0]
    assert (rows.rows_per_example, rows.num_truncated) == (3, 0)
    assert encode_choices(examples, tokenizer, vocab, 12).num_truncated == 2


def test_options_must_be_as_many(tools):
    examples = [Choice(id="a", text="x", options=options) for options in (("a", "b"), ("a",))]
    with pytest.raises(ValueError, match="same number"):
        encode_choices(examples, *tools, 16)


def test_many_texts_keep_their_order(tools, monkeypatch):
    monkeypatch.setattr("electra.tasks.text_classification.BATCH", 2)
    texts = ["the", "the barn", "the old barn", "barn", "old"]
    rows = encode_sentences([sentence(t) for t in texts], *tools, 16, kind="classify")
    assert [ids.tolist() for ids in rows.input_ids] == [tools[0].encode(t).ids for t in texts]
