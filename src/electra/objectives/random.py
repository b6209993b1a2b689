"""Counter-based random numbers: each is a function of seed, step, row, purpose and column.

The row counts in the whole batch, so masks and samples do not depend on how a batch is split into
micro-batches or over ranks, nor on where a run was interrupted. The hash is splitmix64 (Steele,
Lea and Flood, 2014) in int64 arithmetic, which wraps around on all devices.
"""

from enum import IntEnum

import torch
from torch import Tensor


class Purpose(IntEnum):
    """What random numbers are for; those of different purposes are independent."""

    MASK_POSITION = 0
    """Which positions are masked."""
    MASK_TOKEN = 1
    """Whether a masked position shows [MASK]."""
    USE_RANDOM_TOKEN = 2
    """Whether a masked position shows a random token."""
    RANDOM_TOKEN = 3
    """Which token it shows."""
    SAMPLE_GROUP = 4
    """Which group of tokens the generator's sample comes from."""
    SAMPLE_TOKEN = 5
    """Which token of the group it is."""


def _signed(bits: int) -> int:
    """Return the int64 with the bits of a uint64."""
    return bits - (1 << 64) if bits >> 63 else bits


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2^64 / the golden ratio
FACTORS = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def mix(x: Tensor) -> Tensor:
    """Hash int64 numbers with the finalizer of splitmix64."""
    x = (x ^ _shift(x, 30)) * FACTORS[0]
    x = (x ^ _shift(x, 27)) * FACTORS[1]
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right without the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def row_keys(counter: Tensor, rows: int) -> Tensor:
    """Return a key for each row of a batch, (rows,); `counter` holds seed, step and first row."""
    seed, step, first_row = counter.unbind()
    key = mix(mix(seed + GOLDEN) + (step + 1) * GOLDEN)
    index = torch.arange(1, rows + 1, device=counter.device) + first_row
    return mix(key + index * GOLDEN)


def uniform(row_keys: Tensor, purpose: Purpose, columns: int) -> Tensor:
    """Return random numbers in [0, 1) for each row, (rows, columns) in fp32."""
    keys = mix(row_keys ^ int(purpose))
    # Added to data, because torch.compile computes products of an arange alone as int32 indices
    index = torch.arange(1, columns + 1, device=row_keys.device) + (row_keys[0] ^ row_keys[0])
    bits = mix(keys[:, None] + index * GOLDEN)
    return _shift(bits, 40).float() * 2**-24
