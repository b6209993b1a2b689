"""Sums over the rows of a tile, which kernels keep in registers until their end, and over parts,
which their programs leave in memory then."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

TALL, WIDE = 256, 16
"""Of a tile of parts, all of which are asked for at once."""


def add_parts(parts: Tensor, dim: int) -> Tensor:
    """parts.sum(dim), of fp32.

    torch's lets several programs add to one number where parts are many, and has to clear a counter
    before.
    """
    before, count, after = parts.shape[:dim], parts.shape[dim], parts.shape[dim + 1 :]
    out = torch.empty(*before, *after, device=parts.device)
    width = math.prod(after)
    grid = (triton.cdiv(width, WIDE), math.prod(before))
    add_parts_kernel[grid](parts, out, count, width, TALL, WIDE, num_warps=8)
    return out


@triton.jit
def add_parts_kernel(parts, out, count, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    parts += tl.program_id(1).to(tl.int64) * count * width
    total = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(0, count, TALL):
        row = first + tl.arange(0, TALL)
        here = (row < count)[:, None] & (col < width)[None, :]
        total += tl.load(parts + row[:, None] * width + col[None, :], here, 0.0)
    tl.store(out + tl.program_id(1) * width + col, tl.sum(total, 0), col < width)


@triton.jit
def column_sums(x):
    """What tl.sum(x, 0) gives, in another way where several warps have rows.

    They exchange their sums through shared memory. Threads have eight columns each, and all of a
    warp would write into one bank, and wait for each other. In this order of columns, which moves
    nothing, threads that write at once have columns side by side.
    """
    x = tl.permute(tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8)), (0, 2, 1))
    x = tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] * x.shape[2])), 0)
    x = tl.permute(tl.reshape(x, (8, x.shape[0] // 8)), (1, 0))
    return tl.reshape(x, (x.shape[0] * x.shape[1],))


@triton.jit
def over_rows(x):
    """Sums over rows, by a product with eight columns of ones: with less exchange than tl.sum's."""
    ones = tl.full((x.shape[0], 8), 1.0, x.dtype)
    return tl.sum(tl.dot(tl.trans(x), ones, input_precision="ieee"), 1) * 0.125


@triton.jit
def own_rows(x, LINES: tl.constexpr):
    """Adds up every LINES-th row: those that one thread has, where LINES is what the threads have
    at once."""
    return tl.sum(tl.reshape(x, (x.shape[0] // LINES, LINES, x.shape[1])), 0)
