"""LayerNorm(residual + dropout(x + bias)) in one pass, and its gradient in one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.dropout import (
    bit_keys,
    column_keys,
    drop_count,
    drop_rows,
    rescale,
)
from electra.kernels.any_gpu.launch import call_next, early, programs
from electra.kernels.any_gpu.reduce import own_rows

FORTH, BACK = 2048, 1024
"""Elements of a tile. On the way back one warp works on it, so that no sum over a row or over rows
is exchanged between warps; forth there are four."""


def add_norm(
    x: Tensor, bias: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor, float], seed: Tensor,
    p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`norm` is weight, shift, epsilon. Returns what the way back needs: the rows before weight
    and shift, and the inverse of their standard deviations."""
    rows, width = x.shape
    normal = torch.empty_like(x)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    block, tall = tile(width, FORTH)
    tensors = (x, bias, residual, norm[0], norm[1], out, normal, scale, seed)
    add_norm_kernel[(triton.cdiv(rows, tall),)](
        *tensors, rows, width, norm[2], drop_count(p), rescale(p), tall, block, num_warps=4
    )
    return normal, scale


def add_norm_backward(
    grad: Tensor, normal: Tensor, scale: Tensor, weight: Tensor, sums: Tensor, seed: Tensor,
    p: float, through: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of the residual; `through` gets that of x, and `sums` those of weight, shift
    and bias in parts."""
    rows, width = grad.shape
    block, tall = tile(width, BACK)
    lines = max(1, 256 // block)  # a warp reads 256 numbers at once
    residual = torch.empty_like(grad)
    tensors = (grad, normal, scale, weight, residual, through, sums, seed)
    add_norm_backward_kernel[(sums.shape[0],)](
        *tensors, rows, width, drop_count(p), rescale(p), lines, tall, block, early(grad.device),
        num_warps=max(1, block // BACK),
    )  # fmt: skip
    return residual


def back_parts(rows: int, width: int, dtype: torch.dtype, device: torch.device, p: float) -> int:
    """How many parts the sums of `add_norm_backward` come in."""
    return norm_parts(rows, width, device)


def norm_parts(rows: int, width: int, device: torch.device) -> int:
    """The same for kernels of one warp."""
    return programs(triton.cdiv(rows, tile(width, BACK)[1]), device, 8)


def tile(width: int, elements: int) -> tuple[int, int]:
    """Columns, all of a row's and more where it is no power of two, and rows of a tile."""
    block = triton.next_power_of_2(width)
    return block, max(1, elements // block)


@triton.jit
def normalise(z, here, width, eps):
    """Rows, along the last axis, with mean 0 and variance 1, and the inverse of the deviations that
    they had."""
    z -= tl.sum(z, -1, keep_dims=True) / width
    z = tl.where(here, z, 0.0)
    inverse = tl.rsqrt(tl.sum(z * z, -1) / width + eps)
    return z * tl.expand_dims(inverse, -1), inverse


@triton.jit
def normalise_backward(g, n, inverse, width):
    """The gradient of what became `n`, from that of `n`."""
    inverse = tl.expand_dims(inverse, -1)
    along = tl.sum(g * n, -1, keep_dims=True) / width * inverse
    mean = tl.sum(g, -1, keep_dims=True) / width * inverse
    return g * inverse - mean - n * along


@triton.jit
def add_norm_kernel(
    x, bias, residual, weight, shift, out, normal, scale, seed, rows, width: tl.constexpr, eps,
    drop: tl.constexpr, rescale: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.arange(0, BLOCK)
    # The width is known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width == BLOCK)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    # All that is read is asked for before the first of it is used.
    z = tl.load(x + at, here, 0.0).to(tl.float32)
    before = tl.load(residual + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, inside, 0.0).to(tl.float32)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    move = tl.load(shift + col, inside, 0.0)[None, :]
    if drop > 0:
        of_rows, of_columns = bit_keys(seed)
        across = column_keys(BLOCK, of_columns)
        z = drop_rows(z, row[:, None], of_rows, across, drop, rescale)
    z, inverse = normalise(z + before, inside[None, :], width, eps)
    tl.store(normal + at, z, here)
    tl.store(out + at, z * gain + move, here)
    tl.store(scale + row, inverse, row < rows)


@triton.jit
def add_norm_backward_kernel(
    grad, normal, scale, weight, residual, through, sums, seed, rows, width: tl.constexpr,
    drop: tl.constexpr, rescale: tl.constexpr, LINES: tl.constexpr, TALL: tl.constexpr,
    BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Rows that come next are asked for before those at hand are computed. Sums are kept for LINES
    rows, those of a tile that different threads have."""
    call_next(EARLY)
    col = tl.arange(0, BLOCK)
    # The width is known to the compiler: comparisons that hold for all columns vanish, and so do
    # the columns for which they never hold.
    inside = (col < width) | (width == BLOCK)
    step = tl.num_programs(0) * TALL
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    coming = ask(grad, normal, scale, row, col, inside, rows, width)
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    of_rows, of_columns = bit_keys(seed)
    across = column_keys(BLOCK, of_columns)
    of_weight = tl.zeros((LINES, BLOCK), tl.float32)
    of_shift = tl.zeros((LINES, BLOCK), tl.float32)
    of_bias = tl.zeros((LINES, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * TALL, rows, step):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        g, n, inverse = coming
        g, n = g.to(tl.float32), n.to(tl.float32)
        coming = ask(grad, normal, scale, row + step, col, inside, rows, width)
        of_weight += own_rows(g * n, LINES)
        of_shift += own_rows(g, LINES)
        g = normalise_backward(g * gain, n, inverse, width)
        tl.store(residual + at, g, here)
        if drop > 0:
            g = drop_rows(g, row[:, None], of_rows, across, drop, rescale)
        tl.store(through + at, g, here)
        of_bias += own_rows(g, LINES)
    to = sums + tl.program_id(0) * 3 * width + col
    tl.store(to, tl.sum(of_weight, 0), inside)
    tl.store(to + width, tl.sum(of_shift, 0), inside)
    tl.store(to + 2 * width, tl.sum(of_bias, 0), inside)


@triton.jit
def ask(grad, normal, scale, row, col, inside, rows, width):
    """What is read of these rows on the way back."""
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    g, n = tl.load(grad + at, here, 0.0), tl.load(normal + at, here, 0.0)
    return g, n, tl.load(scale + row, row < rows, 0.0)
