"""Token ids of documents -> rows of one length; nothing is lost and the order is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Layout = Literal["pairs", "packed"]
VocabInfo = npt.NDArray[Any]

SINGLE = 0.1  # share of rows with one segment only, whatever their lines
SHORT = 0.05  # share of rows with a shorter target
SHORTEST = 5
LEAST = 3  # places that a packed piece needs: [CLS] token [SEP]


@dataclass(frozen=True, slots=True)
class Places:
    """Where the runs of consecutive tokens go: the n-th run fills `count` places of `row`."""

    row: npt.NDArray[np.int64]
    column: npt.NDArray[np.int64]
    count: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """The number of rows."""
        return int(self.row[-1]) + 1 if len(self.row) else 0


def places(runs: list[tuple[int, int, int]]) -> Places:
    """Runs (row, column, count) as arrays."""
    table = np.array(runs, dtype=np.int64).reshape(-1, 3)
    return Places(table[:, 0], table[:, 1], table[:, 2])


def pairs(documents: Iterable[Sequence[int]], length: int, random: np.random.Generator) -> Places:
    """Places of the original's rows of one or two segments; a document is its lines' lengths."""
    runs: list[tuple[int, int, int]] = []
    row = 0
    for lines in documents:
        for first, second in split_document(lines, length, random):
            runs.append((row, 1, first))
            if second:
                runs.append((row, first + 2, second))
            row += 1
    return places(runs)


def split_document(
    lines: Sequence[int], length: int, random: np.random.Generator
) -> list[tuple[int, int]]:
    """Sizes (A, B) of the consecutive segment pairs that a document is cut into."""
    found: list[tuple[int, int]] = []
    waiting: list[int] = []
    count = 0
    target = next_target(length, random)
    for line in lines:
        if not line:
            continue
        waiting.append(line)
        count += line
        while count >= target:
            count -= take_row(waiting, target, length, random, found)
            target = next_target(length, random)
    while count:
        count -= take_row(waiting, target, length, random, found)
        target = next_target(length, random)
    return found


def next_target(length: int, random: np.random.Generator) -> int:
    """The number of tokens to wait for: the length, at times a shorter one."""
    if random.random() < SHORT:
        return int(random.integers(SHORTEST, length + 1))
    return length


def take_row(
    waiting: list[int],
    target: int,
    length: int,
    random: np.random.Generator,
    found: list[tuple[int, int]],
) -> int:
    """Move the first tokens of the waiting lines into one row and return how many."""
    single = random.random() < SINGLE
    room = 100_000 if single else (target - 3) // 2  # the original's numbers
    first = second = 0
    for line in waiting:
        # differs from the original: once B has begun nothing more goes to A, which keeps the order.
        if not second and (
            first == 0 or first + line < room or (first < room and random.random() < 0.5)
        ):
            first += line
        else:
            second += line
    first = min(first, length - 2)
    second = min(second, max(0, length - first - 3))
    found.append((first, second))
    # differs from the original: what does not fit is not thrown away but begins the next row.
    drop(waiting, first + second)
    return first + second


def drop(waiting: list[int], count: int) -> None:
    """Remove the first `count` tokens from the waiting lines."""
    whole = 0
    while whole < len(waiting) and waiting[whole] <= count:
        count -= waiting[whole]
        whole += 1
    del waiting[:whole]
    if count:
        waiting[0] -= count


def packed(documents: Iterable[int], length: int) -> Places:
    """Places that fill rows to the brim with pieces [CLS] … [SEP] of documents' tokens."""
    runs: list[tuple[int, int, int]] = []
    row = used = 0
    for count in documents:
        while count:
            if length - used < LEAST:
                row, used = row + 1, 0
            piece = min(count, length - used - 2)
            runs.append((row, used + 1, piece))
            used += piece + 2
            count -= piece
    return places(runs)


def fill(
    tokens: VocabInfo,
    spots: Places,
    *,
    layout: Layout,
    length: int,
    pad: int,
    cls: int,
    sep: int,
) -> VocabInfo:
    """Rows of `length` ids and the columns `first` and `total`, as shards hold them."""
    if int(spots.count.sum()) != len(tokens):
        raise AssertionError("rows must take every token exactly once")
    rows = np.full((len(spots), length + 2), pad, dtype=tokens.dtype)
    flat = rows.reshape(-1)
    begin = spots.row * (length + 2) + spots.column
    # [SEP] after [CLS]: the place before a second segment belongs to the first one's [SEP].
    flat[begin - 1] = cls
    flat[begin + spots.count] = sep
    # 1 where a run of tokens begins, -1 after its end: the sum is 1 inside the runs, else 0.
    inside = np.zeros(len(flat), dtype=np.int8)
    inside[begin] = 1
    inside[begin + spots.count] = -1
    flat[np.cumsum(inside, dtype=np.int8).view(np.bool_)] = tokens
    end = spots.column + spots.count + 1
    # Of a row's several runs the last one written stays: the last run, then the first one.
    rows[spots.row, length + 1] = end
    rows[spots.row[::-1], length] = end[::-1]
    if layout == "packed":
        rows[:, length] = rows[:, length + 1]
    return rows
