"""Lay out the tokens of documents as rows of one sequence length; keep all tokens in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Layout = Literal["pairs", "packed"]
TokenIds = npt.NDArray[Any]

SINGLE_SEGMENT_PROB = 0.1  # rows with one segment only, as in google-research/electra
SHORT_TARGET_PROB = 0.05  # rows with a shorter target length
SHORTEST_TARGET = 5
MIN_PACKED = 3  # positions that a packed piece needs: [CLS] token [SEP]


@dataclass(frozen=True, slots=True)
class Spans:
    """Where consecutive tokens go: span n fills `count` positions of `row` from `column` on."""

    row: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.row[-1]) + 1 if len(self.row) else 0


def to_spans(spans: list[tuple[int, int, int]]) -> Spans:
    """Convert (row, column, count) tuples to arrays."""
    table = np.array(spans, dtype=np.int64).reshape(-1, 3)
    return Spans(table[:, 0], table[:, 1], table[:, 2])


def pair_spans(
    documents: Iterable[Sequence[int]], length: int, random: np.random.Generator
) -> Spans:
    """Lay out each document as rows of one or two segments.

    A document is given by the number of tokens of each of its lines.
    """
    spans: list[tuple[int, int, int]] = []
    row = 0
    for lines in documents:
        for first, second in split_document(lines, length, random):
            spans.append((row, 1, first))
            if second:
                spans.append((row, first + 2, second))
            row += 1
    return to_spans(spans)


def split_document(
    lines: Sequence[int], length: int, random: np.random.Generator
) -> list[tuple[int, int]]:
    """Split a document into segment pairs and return their sizes (A, B)."""
    pairs: list[tuple[int, int]] = []
    pending: list[int] = []
    count = 0
    target = sample_target(length, random)
    for line in lines:
        if not line:
            continue
        pending.append(line)
        count += line
        while count >= target:
            count -= take_pair(pending, target, length, random, pairs)
            target = sample_target(length, random)
    while count:
        count -= take_pair(pending, target, length, random, pairs)
        target = sample_target(length, random)
    return pairs


def sample_target(length: int, random: np.random.Generator) -> int:
    """Return the number of tokens to collect: the sequence length, sometimes less."""
    if random.random() < SHORT_TARGET_PROB:
        return int(random.integers(SHORTEST_TARGET, length + 1))
    return length


def take_pair(
    pending: list[int],
    target: int,
    length: int,
    random: np.random.Generator,
    pairs: list[tuple[int, int]],
) -> int:
    """Move tokens from the pending lines into one segment pair and return how many."""
    single = random.random() < SINGLE_SEGMENT_PROB
    first_target = 100_000 if single else (target - 3) // 2  # as in google-research/electra
    first = second = 0
    for line in pending:
        # differs from google-research/electra: once B has begun, nothing more goes to A. This
        # keeps the order of the text.
        if not second and (
            first == 0
            or first + line < first_target
            or (first < first_target and random.random() < 0.5)
        ):
            first += line
        else:
            second += line
    first = min(first, length - 2)
    second = min(second, max(0, length - first - 3))
    pairs.append((first, second))
    # differs from google-research/electra: what does not fit starts the next row; it is not lost.
    drop_tokens(pending, first + second)
    return first + second


def drop_tokens(pending: list[int], count: int) -> None:
    """Remove the first `count` tokens from the pending lines."""
    done = 0
    while done < len(pending) and pending[done] <= count:
        count -= pending[done]
        done += 1
    del pending[:done]
    if count:
        pending[0] -= count


def packed_spans(documents: Iterable[int], length: int) -> Spans:
    """Fill rows with pieces [CLS] … [SEP] of documents, given by their numbers of tokens."""
    spans: list[tuple[int, int, int]] = []
    row = used = 0
    for count in documents:
        while count:
            if length - used < MIN_PACKED:
                row, used = row + 1, 0
            piece = min(count, length - used - 2)
            spans.append((row, used + 1, piece))
            used += piece + 2
            count -= piece
    return to_spans(spans)


def build_rows(
    tokens: TokenIds,
    spans: Spans,
    *,
    layout: Layout,
    length: int,
    pad: int,
    cls: int,
    sep: int,
) -> TokenIds:
    """Build rows of `length` token ids and the columns `first` and `total`, as shards store them.

    `first` is where the first segment ends, `total` where the padding starts.
    """
    if int(spans.count.sum()) != len(tokens):
        raise AssertionError("rows must take every token exactly once")
    rows = np.full((len(spans), length + 2), pad, dtype=tokens.dtype)
    flat = rows.reshape(-1)
    start = spans.row * (length + 2) + spans.column
    # [SEP] after [CLS]: the position before a second segment holds the first one's [SEP].
    flat[start - 1] = cls
    flat[start + spans.count] = sep
    # 1 where a span starts, -1 after its end: the running sum is 1 inside spans and 0 elsewhere.
    inside = np.zeros(len(flat), dtype=np.int8)
    inside[start] = 1
    inside[start + spans.count] = -1
    flat[np.cumsum(inside, dtype=np.int8).view(np.bool_)] = tokens
    end = spans.column + spans.count + 1
    # A row can have several spans; the last write wins: the last span, then the first one.
    rows[spans.row, length + 1] = end
    rows[spans.row[::-1], length] = end[::-1]
    if layout == "packed":
        rows[:, length] = rows[:, length + 1]
    return rows
