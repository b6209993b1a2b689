"""Which examples share a batch: those of about the same length, so that little padding is computed.

The shapes of the batches and their order are the same for every seed; who is in a batch is not.
So the seeds can be trained side by side, and each sees the same data as it would alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

LENGTHS = (
    *range(8, 33, 4),
    *range(40, 65, 8),
    *range(80, 129, 16),
    *(160, 192, 256, 320, 384, 448, 512),
)
"""Rows are padded to one of these: finely where texts are short and padding weighs most. Each
costs a captured graph on a GPU."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches of one epoch."""

    lengths: list[int]
    """What the rows of each batch are padded to."""
    members: Indices
    """Numbers of the examples: (batches, seeds, batch)."""


def padded_length(tokens: int) -> int:
    """The shortest of `LENGTHS` that holds so many tokens."""
    return next((n for n in LENGTHS if n >= tokens), -(-tokens // 512) * 512)


def padded_lengths(lengths: Indices, positions: int) -> Indices:
    """What each example is padded to; no row is longer than the model's position table."""
    return np.array([min(padded_length(int(n)), positions) for n in lengths], dtype=np.int64)


def plan_epoch(buckets: Indices, batch: int, seeds: list[int], epoch: int) -> Plan:
    """Shuffle, and put examples of one bucket, which are padded alike, together.

    The last few, fewer than a batch, wait.
    """
    common = np.random.default_rng([epoch])  # the same for every seed
    waiting = common.permutation(len(buckets))[: len(buckets) % batch]
    columns = []
    for seed in seeds:
        order = np.random.default_rng([seed, epoch, 1]).permutation(len(buckets))
        order = order[~np.isin(order, waiting)]
        # Longest first; a bucket that does not come out even is completed by the next shorter.
        columns.append(order[np.argsort(-buckets[order], kind="stable")].reshape(-1, batch))
    members = np.stack(columns, axis=1)  # (batches, seeds, batch)
    turn = common.permutation(len(members))
    members = members[turn]
    return Plan(lengths=[int(n) for n in buckets[members[:, 0, 0]]], members=members)


def eval_batches(lengths: Indices, tokens: int) -> Iterator[tuple[int, Indices]]:
    """All rows once, longest first, in batches of about so many tokens."""
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        length = int(lengths[order[begin]])
        count = max(1, tokens // length)
        yield length, order[begin : begin + count]
        begin += count
