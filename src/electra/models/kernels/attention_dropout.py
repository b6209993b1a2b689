"""Dropout of attention: one word of random bits decides about two elements.

Queries have keys, and so have pairs of columns, n and n ^ 8. One thread holds both of a pair, in
tiles (queries, columns) and (columns, queries) alike. The product of two keys, its upper half ^ its
lower half, is twice 16 bits: the lower ones for the column with bit 3 clear, the upper ones for the
other.

Of the 65,536 patterns of 16 bits some drop their element, as many as the rate asks for; they follow
each other, and the last is 0x7C00. Up to a rate of 48 % these are the numbers of type float16 from
a bound to infinity, and one instruction of NVIDIA's GPUs compares both. Above, and on other GPUs,
whole numbers are compared, to the same effect.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.dropout import ASM, GOLDEN, SECOND, WORD, twin_keys

INFINITY = tl.constexpr(0x7C00)
"""Of float16: as many patterns are between zero and this, 48 % of all."""


def drop_count(p: float) -> int:
    """How many of the 65,536 patterns drop an element."""
    return min(round(p * 65536), 65535)


def rescale(p: float) -> float:
    """What the kept ones are multiplied by: the expectation is exact, though `p` is rounded."""
    return 65536 / (65536 - drop_count(p))


def keep_table(rows: int, columns: int, seed: Tensor, p: float) -> Tensor:
    """The twin: the factors by which the kernels multiply, for all queries of a batch as rows."""
    n = torch.arange(columns, device=seed.device)
    of_queries, of_pairs = twin_keys(seed)
    down = _keys(torch.arange(rows, device=seed.device), of_queries)
    across = _keys(n // 16 * 8 + n % 8, of_pairs)
    words = _fold(down[:, None], across)
    bits = torch.where((n & 8).bool(), words >> 16, words & 0xFFFF)
    return ~_drops(bits, drop_count(p)) * rescale(p)


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
    """Keys of queries or of pairs; `start` is the first or the second of `bit_keys`.

    They are odd: a factor that ends with zeros would leave zeros in all its products.
    """
    x = index.to(tl.uint32) * GOLDEN + start
    return fold(x, tl.full(x.shape, SECOND, tl.uint32)) | 1


@triton.jit
def pair_bits(queries, pairs, axis: tl.constexpr):
    """Words for a tile from the keys of its queries and its pairs, the columns being its `axis`."""
    pairs = tl.reshape(pairs, (pairs.shape[0] // 8, 8))
    if axis == 1:
        return fold(queries[:, None, None], pairs[None, :, :])
    else:
        return fold(pairs[:, :, None], queries[None, None, :])


@triton.jit
def halves(x, axis: tl.constexpr):
    """A tile in two, in the form of `pair_bits`: columns with bit 3 clear, and with it set.

    No element leaves its thread.
    """
    A: tl.constexpr = x.shape[0]
    B: tl.constexpr = x.shape[1]
    if axis == 1:
        return tl.split(tl.permute(tl.reshape(x, (A, B // 16, 2, 8)), (0, 1, 3, 2)))
    else:
        return tl.split(tl.permute(tl.reshape(x, (A // 16, 2, 8, B)), (0, 2, 3, 1)))


@triton.jit
def whole(low, high, like, axis: tl.constexpr):
    """What `halves` took apart."""
    x = tl.join(low, high)
    x = tl.permute(x, (0, 1, 3, 2)) if axis == 1 else tl.permute(x, (0, 3, 1, 2))
    return tl.reshape(x, like.shape)


@triton.jit
def drops(bits, drop: tl.constexpr):
    """For the lower 16 bits, counted from the first pattern that drops."""
    return ((bits + (drop + 65535 - INFINITY)) & 0xFFFF) < drop


@triton.jit
def dropped(x, bits, drop: tl.constexpr, axis: tl.constexpr):
    """A tile, zero where its elements are dropped; not rescaled."""
    if drop == 0:
        return x
    else:
        low, high = halves(x, axis)
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
        return whole(low, high, x, axis)


@triton.jit
def slopes(odds, slope, back, bits, drop: tl.constexpr):
    """dropped(odds) * slope + odds * back, columns being axis 1: two instructions an element."""
    if ASM and drop > 0 and drop <= INFINITY:
        low, high = halves(odds, 1)
        slope_low, slope_high = halves(slope, 1)
        back_low, back_high = halves(tl.broadcast_to(back, odds.shape), 1)
        bound = tl.full(bits.shape, (INFINITY + 1 - drop) * 0x10001, tl.uint32)
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .pred p, q;
            setp.ge.f16x2 p|q, $2, $3;
            mul.f32 $0, $4, $8;
            mul.f32 $1, $5, $9;
            @!p fma.rn.f32 $0, $4, $6, $0;
            @!q fma.rn.f32 $1, $5, $7, $1;
            }""",
            "=&f,=&f,r,r,f,f,f,f,f,f",
            [bits, bound, low, high, slope_low, slope_high, back_low, back_high],
            (tl.float32, tl.float32), True, 1,
        )  # fmt: skip
        return whole(low, high, odds, 1)
    else:
        return dropped(odds, bits, drop, 1) * slope + odds * back
