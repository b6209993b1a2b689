"""Dropout of attention: pairs of columns, n and n ^ 8, that one thread holds, in tiles (queries,
columns) and (columns, queries) alike; queries are the rows. The rest is in dropout.py."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.dropout import ASM, INFINITY, drop_both, fold, keep


def keep_table(rows: int, columns: int, seed: Tensor, p: float) -> Tensor:
    """The twin: the factors by which the kernels multiply, for all queries of a batch as rows."""
    n = torch.arange(columns, device=seed.device)
    return keep(rows, n // 16 * 8 + n % 8, (n & 8).bool(), seed, p)


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
def dropped(x, bits, drop: tl.constexpr, axis: tl.constexpr):
    """A tile, zero where its elements are dropped; not rescaled."""
    if drop == 0:
        return x
    else:
        low, high = halves(x, axis)
        low, high = drop_both(low, high, bits, drop)
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
