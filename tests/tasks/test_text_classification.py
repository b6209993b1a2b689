"""Encoding texts, pairs and choices."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.examples import Choice, Sentence
from electra.tasks.text_classification import encode_choices, encode_sentences, truncate_pairs
from electra.text.tokenizer import load_tokenizer, vocabulary


@pytest.fixture(scope="module")
def tokenizer_and_vocab(tokenizer_folder: Path):
    tokenizer = load_tokenizer(tokenizer_folder)
    return tokenizer, vocabulary(tokenizer)


ONE, TWO = "the old farmer went to the field", "the barley was brought to the barn ."


def sentence(text: str, pair: str | None = None, label=0) -> Sentence:
    return Sentence(id="0", text=text, pair=pair, label=label)


def test_rows_match_the_template_of_the_tokenizer(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
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


def test_special_token_names_in_a_text_are_text(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
    text = f"{ONE} [SEP] [MASK]"
    rows = encode_sentences([sentence(text)], tokenizer, vocab, 64, kind="classify")
    inner = rows.input_ids[0][1:-1].tolist()
    assert not {vocab.sep, vocab.mask, vocab.cls} & set(inner)
    assert (
        vocab.sep in tokenizer.encode(text, add_special_tokens=False).ids
    )  # the tokenizer is unchanged


def test_texts_without_tokens(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
    examples = [sentence(""), sentence(" ", "\u200b"), sentence(ONE, "")]
    rows = encode_sentences(examples, tokenizer, vocab, 64, kind="classify")
    assert rows.input_ids[0].tolist() == [vocab.cls, vocab.sep]
    assert rows.input_ids[1].tolist() == [vocab.cls, vocab.sep, vocab.sep]
    assert rows.segment_start.tolist()[:2] == [2, 2]
    assert len(rows.input_ids[2]) == rows.segment_start[2] + 1


def truncate_one_by_one(a: int, b: int, available: int) -> tuple[int, int]:
    """The loop of google-research/electra."""
    while a + b > available:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@given(
    lengths=st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 40)), min_size=1
    )
)
def test_truncation_matches_google_research_electra(lengths):
    a, b, available = (np.asarray(column) for column in zip(*lengths, strict=True))
    kept = zip(*(side.tolist() for side in truncate_pairs(a, b, available)), strict=True)
    assert list(kept) == [truncate_one_by_one(*each) for each in lengths]


@pytest.mark.parametrize("length", [3, 4, 7, 8, 11, 12])
def test_the_longer_segment_is_truncated(tokenizer_and_vocab, length):
    tokenizer, vocab = tokenizer_and_vocab
    examples = [sentence(ONE), sentence(ONE, TWO), sentence("the", TWO), sentence("the")]
    rows = encode_sentences(examples, tokenizer, vocab, length, kind="classify")

    def tokens(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    cut = 0
    for example, ids, first in zip(examples, rows.input_ids, rows.segment_start, strict=True):
        a, b = tokens(example.text), tokens(example.pair or "")
        x, y = truncate_one_by_one(len(a), len(b), length - (3 if example.pair else 2))
        second = [*b[:y], vocab.sep] if example.pair else []
        assert ids.tolist() == [vocab.cls, *a[:x], vocab.sep, *second]
        assert first == x + 2
        cut += (x, y) != (len(a), len(b))
    assert rows.num_truncated == cut > 0


def test_swapped_pairs(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
    examples = [sentence(ONE, TWO, 1.5), sentence(TWO, ONE, 2.5), sentence(ONE, None, 0.5)]
    rows = encode_sentences(examples, tokenizer, vocab, 12, kind="regress", swap=True)
    assert rows.example_index.tolist() == [0, 0, 1, 1, 2]
    assert rows.labels.dtype == np.float32
    assert rows.labels.tolist() == [1.5, 1.5, 2.5, 2.5, 0.5]
    assert rows.input_ids[1].tolist() == rows.input_ids[2].tolist()
    assert rows.input_ids[0].tolist() == rows.input_ids[3].tolist() != rows.input_ids[1].tolist()
    assert rows.num_truncated == 2  # examples, not rows


def test_unknown_labels(tokenizer_and_vocab):
    rows = encode_sentences([sentence(ONE, label=None)], *tokenizer_and_vocab, 16, kind="classify")
    assert rows.labels is None


def test_no_examples(tokenizer_and_vocab):
    rows = encode_sentences([], *tokenizer_and_vocab, 16, kind="classify")
    assert (
        len(rows.input_ids),
        len(rows.segment_start),
        len(rows.example_index),
        rows.num_truncated,
    ) == (0, 0, 0, 0)
    assert len(encode_choices([], *tokenizer_and_vocab, 16).input_ids) == 0


def test_max_length_must_fit_the_special_tokens(tokenizer_and_vocab):
    with pytest.raises(ValueError, match="no space"):
        encode_sentences([sentence(ONE)], *tokenizer_and_vocab, 2, kind="classify")


def test_options_become_rows(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
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


def test_different_numbers_of_options_are_refused(tokenizer_and_vocab):
    examples = [Choice(id="a", text="x", options=options) for options in (("a", "b"), ("a",))]
    with pytest.raises(ValueError, match="same number"):
        encode_choices(examples, *tokenizer_and_vocab, 16)


def test_batches_keep_their_order(tokenizer_and_vocab, monkeypatch):
    monkeypatch.setattr("electra.tasks.text_classification.BATCH", 2)
    texts = ["the", "the barn", "the old barn", "barn", "old"]
    rows = encode_sentences([sentence(t) for t in texts], *tokenizer_and_vocab, 16, kind="classify")
    assert [ids.tolist() for ids in rows.input_ids] == [
        tokenizer_and_vocab[0].encode(t).ids for t in texts
    ]
