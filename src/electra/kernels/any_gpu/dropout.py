"""Random bits that a kernel computes where it needs them, and computes again on the way back.

Philox, which torch uses, would cost more than everything else that these kernels compute. For
dropout rows have keys, and so have pairs of columns. The product of two keys, its upper half ^ its
lower half, is twice 16 bits, which decide about the two elements of a pair in a row: in a table of
rows the lower ones about column 2 n, the upper ones about 2 n + 1. (Attention has other pairs.)

Of the 65,536 patterns of 16 bits some drop their element, as many as the rate asks for; they follow
each other, and the last is 0x7C00. Up to a rate of 48 % these are the numbers of type float16 from
a bound to infinity, and one instruction of NVIDIA's GPUs compares both. Above, and on other GPUs,
whole numbers are compared, to the same effect.
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
INFINITY = tl.constexpr(0x7C00)
"""Of float16: as many patterns are between zero and this, 48 % of all."""


def draw_seeds(count: int, device: torch.device) -> Tensor:
    """Fresh seeds from torch's generator, which the host does not know."""
    # Four numbers, of which two are used: all rows begin at a multiple of 16 bytes.
    return torch.randint(-(2**31), 2**31, (count, 4), dtype=torch.int32, device=device)


def drop_count(p: float) -> int:
    """How many of the 65,536 patterns drop an element."""
    return min(round(p * 65536), 65535)


def by_halves(p: float) -> bool:
    """Whether one instruction compares the bits of two elements, the only way that CUDA knows."""
    return drop_count(p) <= INFINITY.value


def rescale(p: float) -> float:
    """What the kept ones are multiplied by: the expectation is exact, though `p` is rounded."""
    return 65536 / (65536 - drop_count(p))


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
def bit_keys(seed):
    """Two words from a row of `draw_seeds`. Once, before a loop, out of which the compiler does not
    take them."""
    return mix(tl.load(seed).to(tl.uint32)), mix(tl.load(seed + 1).to(tl.uint32))


@triton.jit
def random_bits(index, seed):
    """32 bits for each index, the upper ones better than the lower ones; `seed` points to a row of
    `draw_seeds`. Two keys: with one alone, seeds would give one sequence at different offsets."""
    low, high = bit_keys(seed)
    x = ((index.to(tl.uint32) * GOLDEN + low) ^ high) * FIRST
    return (x ^ (x >> 15)) * SECOND


@triton.jit
def fold(x, y):
    """Upper half ^ lower half of the product.

    Written out, because the compiler would multiply the zeros that words of 64 bits begin with.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            """{
            .reg .b64 w;
            .reg .b32 l, h;
            mul.wide.u32 w, $1, $2;
            mov.b64 {l, h}, w;
            xor.b32 $0, l, h;
            }""",
            "=r,r,r", [x, y], tl.uint32, True, 1,
        )  # fmt: skip
    else:
        product = x.to(tl.uint64) * y.to(tl.uint64)
        return (product >> 32).to(tl.uint32) ^ product.to(tl.uint32)


@triton.jit
def keys_at(index, start):
    """Keys of rows or of pairs; `start` is the first or the second of `bit_keys`.

    They are odd: a factor that ends with zeros would leave zeros in all its products.
    """
    x = index.to(tl.uint32) * GOLDEN + start
    return fold(x, tl.full(x.shape, SECOND, tl.uint32)) | 1


@triton.jit
def drops(bits, drop: tl.constexpr):
    """For the lower 16 bits, counted from the first pattern that drops."""
    return ((bits + (drop + 65535 - INFINITY)) & 0xFFFF) < drop


@triton.jit
def drop_both(low, high, bits, drop: tl.constexpr):
    """Elements of pairs, or zeros in their places: by the lower bits, and by the upper ones."""
    if ASM and drop <= INFINITY:
        bound = tl.full(bits.shape, (INFINITY + 1 - drop) * 0x10001, tl.uint32)
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .pred p, q;
            setp.ge.f16x2 p|q, $2, $3;
            selp.f32 $0, 0f00000000, $4, p;
            selp.f32 $1, 0f00000000, $5, q;
            }""",
            "=&f,=&f,r,r,f,f", [bits, bound, low, high], (tl.float32, tl.float32), True, 1,
        )  # fmt: skip
    else:
        low = tl.where(drops(bits, drop), 0.0, low)
        high = tl.where(drops(bits >> 16, drop), 0.0, high)
    return low, high


@triton.jit
def column_keys(WIDE: tl.constexpr, start):
    """Of the pairs of columns of a table's rows; `start` is the second of `bit_keys`."""
    return keys_at(tl.arange(0, WIDE // 2), start)


@triton.jit
def drop_rows(x, row, start, across, drop: tl.constexpr, rescale):
    """Dropout of a tile (rows, columns) of a table, or (rows, rows, columns).

    `row` are the numbers of its rows, with a last dimension of one, `start` is the first of
    `bit_keys`, and `across` comes from `column_keys`. No element leaves its thread.
    """
    HALF: tl.constexpr = x.shape[len(x.shape) - 1] // 2
    if len(x.shape) == 2:
        pairs = tl.reshape(x, (x.shape[0], HALF, 2))
        across = across[None, :]
    else:
        pairs = tl.reshape(x, (x.shape[0], x.shape[1], HALF, 2))
        across = across[None, None, :]
    low, high = tl.split(pairs)
    low, high = drop_both(low, high, fold(keys_at(row, start), across), drop)
    return tl.reshape(tl.join(low, high), x.shape) * rescale


def keep_mask(shape: tuple[int, int], seed: Tensor, p: float) -> Tensor:
    """The twin of `drop_rows`: the factors by which it multiplies."""
    n = torch.arange(shape[1], device=seed.device)
    return keep(shape[0], n // 2, (n % 2).bool(), seed, p)


def keep(rows: int, pair: Tensor, upper: Tensor, seed: Tensor, p: float) -> Tensor:
    """Factors for rows of columns of which these are the pairs, and where in them they stand."""
    of_rows, of_pairs = twin_keys(seed)
    down = _keys(torch.arange(rows, device=seed.device), of_rows)
    words = _fold(down[:, None], _keys(pair, of_pairs))
    bits = torch.where(upper, words >> 16, words & 0xFFFF)
    return ~_drops(bits, drop_count(p)) * rescale(p)


def twin_bits(count: int, seed: Tensor) -> Tensor:
    """What `random_bits` gives for the first numbers."""
    low, high = twin_keys(seed)
    index = torch.arange(count, device=seed.device)
    return _scramble(((index * GOLDEN.value + low) & WORD) ^ high)


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


def _keys(index: Tensor, start: int) -> Tensor:
    x = (index * GOLDEN.value + start) & WORD
    return _fold(x, SECOND.value) | 1


def _fold(x: Tensor, y: Tensor | int) -> Tensor:
    """From halves of y: int64 has no room for the product."""
    low, high = x * (y & 0xFFFF), x * (y >> 16)
    middle = (low >> 16) + (high & WORD)
    top = (high >> 32 << 16) + (middle >> 16)
    return (top & WORD) ^ (((middle & 0xFFFF) << 16) | (low & 0xFFFF))


def _drops(bits: Tensor, drop: int) -> Tensor:
    return (bits + (drop + 65535 - INFINITY.value)) % 65536 < drop
