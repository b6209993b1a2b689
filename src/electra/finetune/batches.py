"""Batches of examples with similar lengths, so that little padding is computed.

The shapes of the batches and their order are the same for every seed, so that seeds can be trained
at the same time; which examples are in a batch depends on the seed alone.
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
"""Rows are padded to one of these lengths. The steps are finer for short texts, where padding costs
most; on a GPU each length needs a CUDA graph."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Plan:
    """The batches of one epoch."""

    lengths: list[int]
    """The padded length of each batch."""
    members: Indices
    """Indices of the examples: (batches, seeds, batch_size)."""


def padded_length(tokens: int) -> int:
    """The shortest of `LENGTHS` for so many tokens."""
    return next((n for n in LENGTHS if n >= tokens), -(-tokens // 512) * 512)


def padded_lengths(lengths: Indices, positions: int) -> Indices:
    """The padded length of each example, at most the number of positions of the model."""
    return np.array([min(padded_length(int(n)), positions) for n in lengths], dtype=np.int64)


def plan_epoch(buckets: Indices, batch_size: int, seeds: list[int], epoch: int) -> Plan:
    """Shuffle the examples and batch those with the same padded length (their bucket).

    An epoch leaves out the examples that do not fill a batch, different ones each time.
    """
    common = np.random.default_rng([epoch])  # the same for every seed
    left_out = common.permutation(len(buckets))[: len(buckets) % batch_size]
    columns = []
    for seed in seeds:
        order = np.random.default_rng([seed, epoch, 1]).permutation(len(buckets))
        order = order[~np.isin(order, left_out)]
        # Longest first: a batch that a bucket does not fill takes examples of the next shorter one.
        columns.append(order[np.argsort(-buckets[order], kind="stable")].reshape(-1, batch_size))
    members = np.stack(columns, axis=1)  # (batches, seeds, batch_size)
    members = members[common.permutation(len(members))]
    return Plan(lengths=[int(n) for n in buckets[members[:, 0, 0]]], members=members)


def eval_batches(lengths: Indices, tokens: int) -> Iterator[tuple[int, Indices]]:
    """All rows once, longest first, in batches of about `tokens` tokens."""
    order = np.argsort(-lengths, kind="stable")
    begin = 0
    while begin < len(order):
        length = int(lengths[order[begin]])
        count = max(1, tokens // length)
        yield length, order[begin : begin + count]
        begin += count
