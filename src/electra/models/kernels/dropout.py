"""Random bits that a kernel computes where it needs them, and computes again on the way back.

A hash of the place, a few instructions long: Philox, which torch uses, would cost more than
everything else that these kernels compute.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The finaliser called lowbias32, found by Chris Wellons' search for hashes with little bias.
FIRST, SECOND = tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)
GOLDEN = tl.constexpr(0x9E3779B1)
WORD = 2**32 - 1


@triton.jit
def mix(x):
    x ^= x >> 16
    x *= FIRST
    x ^= x >> 15
    x *= SECOND
    return x ^ (x >> 16)


ASM = tl.constexpr(torch.version.cuda is not None and isinstance(mix, triton.JITFunction))
"""Whether NVIDIA's instructions can be written out: not for other GPUs, nor the interpreter."""


@triton.jit
def random_bits(index, seed):
    """32 bits for each index, the upper ones better than the lower ones; `seed` points to a row of
    `draw_seeds`. Two keys: with one alone, seeds would give one sequence at different offsets."""
    low, high = bit_keys(seed)
    return scramble((index.to(tl.uint32) * GOLDEN + low) ^ high)


@triton.jit
def bit_keys(seed):
    """Once, before a loop, out of which the compiler does not take them."""
    return mix(tl.load(seed).to(tl.uint32)), mix(tl.load(seed + 1).to(tl.uint32))


@triton.jit
def drop_rows(x, row, col, width, low, high, drop, rescale):
    """Dropout of `x`, at these rows and columns of a table, by what `random_bits` gives for their
    places: with one product for a row and one for a column instead of one for each number."""
    down = row.to(tl.uint32) * width * GOLDEN + low
    bits = scramble((down + col.to(tl.uint32) * GOLDEN) ^ high)
    return tl.where(bits >= drop, x * rescale, 0.0)


@triton.jit
def scramble(x):
    """The middle of `mix`: enough for what has been mixed before."""
    x *= FIRST
    x ^= x >> 15
    return x * SECOND


def draw_seeds(count: int, device: torch.device) -> Tensor:
    """Fresh seeds from torch's generator, which the host does not know."""
    # Four numbers, of which two are used: all rows begin at a multiple of 16 bytes.
    return torch.randint(-(2**31), 2**31, (count, 4), dtype=torch.int32, device=device)


def threshold(p: float) -> int:
    """An element is dropped when its bits are below this."""
    return round(p * 2**32)


def keep_mask(shape: tuple[int, ...], seed: Tensor, p: float) -> Tensor:
    """The twin of the kernels' dropout: the factors by which it multiplies."""
    low, high = twin_keys(seed)
    index = torch.arange(torch.Size(shape).numel(), device=seed.device)
    bits = _scramble(((index * GOLDEN.value + low) & WORD) ^ high)
    return (bits >= threshold(p)).view(shape) / (1 - p)


def twin_keys(seed: Tensor) -> tuple[int, int]:
    """What `bit_keys` gives."""
    return _mix(int(seed[0]) & WORD), _mix(int(seed[1]) & WORD)


def _mix(x: Any) -> Any:
    x = _scramble(x ^ (x >> 16))
    return x ^ (x >> 16)


def _scramble(x: Any) -> Any:
    x = (x * FIRST.value) & WORD
    x = x ^ (x >> 15)
    return (x * SECOND.value) & WORD
