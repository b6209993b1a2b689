"""Layouts: all tokens are kept in order, and every row is valid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.text.layouts import (
    build_rows,
    packed_spans,
    pair_spans,
    split_document,
    take_pair,
    to_spans,
)

PAD, CLS, SEP = 0, 2, 3

documents_of_lines = st.lists(
    st.lists(st.one_of(st.integers(0, 12), st.integers(0, 300)), max_size=12), max_size=8
)
lengths = st.integers(8, 64)


def numbered(count: int) -> np.ndarray:
    """Return distinct ids that are not special tokens."""
    return np.arange(10, 10 + count, dtype=np.uint16)


def build(spans, tokens, layout, length):
    return build_rows(tokens, spans, layout=layout, length=length, pad=PAD, cls=CLS, sep=SEP)


def text_tokens(rows: np.ndarray) -> list[int]:
    """Return all ids that are not special tokens, row by row."""
    flat = rows[:, :-2].reshape(-1)
    return flat[flat >= 10].tolist()


def check_pair_row(row: np.ndarray, length: int) -> None:
    """[CLS] A [SEP] (B [SEP]) padding, with the counts in the last two columns."""
    ids, first, total = row[:length].tolist(), int(row[length]), int(row[length + 1])
    assert 3 <= first <= total <= length
    assert ids[0] == CLS
    assert ids[first - 1] == SEP
    assert ids[total - 1] == SEP
    assert all(i >= 10 for i in ids[1 : first - 1])
    assert all(i >= 10 for i in ids[first : total - 1])
    assert total == first or total >= first + 2
    assert all(i == PAD for i in ids[total:])


@settings(max_examples=300, deadline=None)
@given(documents_of_lines, lengths, st.integers(0, 2**32))
def test_pairs_keep_all_tokens_in_order(documents, length, seed):
    tokens = numbered(sum(map(sum, documents)))
    spans = pair_spans(documents, length, np.random.default_rng(seed))
    rows = build(spans, tokens, "pairs", length)
    assert text_tokens(rows) == tokens.tolist()
    for row in rows:
        check_pair_row(row, length)


@settings(max_examples=100, deadline=None)
@given(documents_of_lines, lengths, st.integers(0, 2**32))
def test_pairs_never_mix_documents(documents, length, seed):
    """All tokens of a row come from one document."""
    owner = np.repeat(np.arange(len(documents)), [sum(d) for d in documents])
    tokens = numbered(len(owner))
    spans = pair_spans(documents, length, np.random.default_rng(seed))
    for row in build(spans, tokens, "pairs", length):
        ids = row[:length]
        assert len(set(owner[ids[ids >= 10].astype(int) - 10])) == 1


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60), lengths, st.integers(0, 2**32))
def test_second_segments_start_at_a_line(lines, length, seed):
    ends, place = set(np.cumsum(lines).tolist()), 0
    for first, second in split_document(lines, length, np.random.default_rng(seed)):
        if second:
            assert place + first in ends
        place += first + second


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=20), lengths)
def test_packed_keeps_all_tokens_and_fills_rows(documents, length):
    tokens = numbered(sum(documents))
    rows = build(packed_spans(documents, length), tokens, "packed", length)
    assert text_tokens(rows) == tokens.tolist()
    for number, row in enumerate(rows):
        ids, first, total = row[:length].tolist(), int(row[length]), int(row[length + 1])
        assert first == total
        assert ids[0] == CLS
        assert ids[total - 1] == SEP
        assert all(i == PAD for i in ids[total:])
        assert PAD not in ids[:total]
        if number < len(rows) - 1:
            assert length - total < 3  # full, except for positions that are too few for a piece


def test_packed_starts_documents_and_rows_with_cls():
    rows = build(packed_spans([3, 9], 10), numbered(12), "packed", 10)
    assert rows[:, :-2].tolist() == [
        [CLS, 10, 11, 12, SEP, CLS, 13, 14, 15, SEP],
        [CLS, 16, 17, 18, 19, 20, 21, SEP, PAD, PAD],
    ]
    assert rows[:, -2:].tolist() == [[10, 10], [8, 8]]


def test_build_rows_writes_both_segments():
    rows = build(to_spans([(0, 1, 2), (0, 4, 3)]), numbered(5), "pairs", 10)
    assert rows.tolist() == [[CLS, 10, 11, SEP, 12, 13, 14, SEP, PAD, PAD, 4, 8]]


def test_build_rows_refuses_to_lose_tokens():
    with pytest.raises(AssertionError):
        build(to_spans([(0, 1, 2)]), numbered(3), "pairs", 10)


def test_one_long_line_becomes_full_rows():
    """google-research/electra drops what does not fit into the first row; here it is kept."""
    found = split_document([1000], 128, np.random.default_rng(0))
    assert found == [(126, 0)] * 7 + [(1000 - 7 * 126, 0)]


def test_segment_statistics_match_google_research_electra():
    """About 10 % of rows have one segment, 5 % a shorter target, if lines are short."""
    random = np.random.default_rng(1)
    found = split_document([4] * 200_000, 128, random)
    single = np.mean([second == 0 for _, second in found])
    short = np.mean([first + second < 120 for first, second in found])
    assert single == pytest.approx(0.10, abs=0.015)
    assert short == pytest.approx(0.05, abs=0.015)
    whole = [first for first, second in found if second and first + second >= 120]
    assert np.mean(whole) == pytest.approx(62, abs=4)  # (128 - 3) // 2


@pytest.mark.parametrize(
    ("lines", "share"), [((30, 31, 64), 1.0), ((30, 32, 63), 0.5), ((30, 90, 5), 0.5)]
)
def test_line_across_the_middle_goes_to_either_segment(lines, share):
    """The middle of 128 is 62; a line that ends before it goes to the first segment."""
    random, found = np.random.default_rng(0), []
    for _ in range(10_000):
        take_pair(list(lines), 128, 128, random, found)
    firsts = [first for first, second in found if second]
    assert set(firsts) <= {lines[0], lines[0] + lines[1]}
    assert np.mean([first > lines[0] for first in firsts]) == pytest.approx(share, abs=0.02)


def test_lines_that_reach_the_target_become_a_row(monkeypatch):
    monkeypatch.setattr("electra.text.layouts.sample_target", lambda *_: 50)
    found = split_document([25, 25, 40, 10, 30, 20], 128, np.random.default_rng(0))
    assert [sum(row) for row in found] == [50, 50, 50]


def test_rows_depend_only_on_the_seed():
    documents = [[7, 30, 2, 90, 14] * 10] * 20
    one, two, other = (pair_spans(documents, 64, np.random.default_rng(s)) for s in (5, 5, 6))
    assert np.array_equal(one.count, two.count)
    assert not np.array_equal(one.count, other.count)
