"""LayerNorm(residual + dropout(x + bias)) in one pass, and its gradient in one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.dropout import random_bits, threshold
from electra.models.kernels.launch import programs

ELEMENTS, WARPS = 4096, 4
"""Of a tile on the way back, whose sums over rows are kept in registers for each element; forth
there are none, and half as much is faster."""


def add_norm(
    x: Tensor, bias: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor, float], seed: Tensor,
    p: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """`norm` is weight, shift, epsilon. Returns the result, and what the way back needs of it:
    the rows before weight and shift, and the inverse of their standard deviations."""
    rows, width = x.shape
    out, normal = torch.empty_like(x), torch.empty_like(x)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    block, tall = tile(width, ELEMENTS // 2)
    tensors = (x, bias, residual, norm[0], norm[1], out, normal, scale, seed)
    add_norm_kernel[(triton.cdiv(rows, tall),)](
        *tensors, rows, width, norm[2], threshold(p), 1 / (1 - p), tall, block, num_warps=WARPS
    )
    return out, normal, scale


def add_norm_backward(
    grad: Tensor, normal: Tensor, scale: Tensor, weight: Tensor, sums: Tensor, seed: Tensor,
    p: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients of the residual and of x; `sums` gets those of weight, shift and bias in parts."""
    rows, width = grad.shape
    block, tall = tile(width)
    residual = torch.empty_like(grad)
    through = torch.empty_like(grad) if p else residual
    tensors = (grad, normal, scale, weight, residual, through, sums, seed)
    add_norm_backward_kernel[(sums.shape[0],)](
        *tensors, rows, width, threshold(p), 1 / (1 - p), tall, block, num_warps=WARPS
    )
    return residual, through


def norm_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `add_norm_backward` come in."""
    return programs(triton.cdiv(rows, tile(width)[1]), device, 2)


def tile(width: int, elements: int = 0) -> tuple[int, int]:
    """Columns, all of a row's and more where it is no power of two, and rows of a tile."""
    block = triton.next_power_of_2(width)
    return block, max(1, (elements or ELEMENTS) // block)


@triton.jit
def normalise(z, here, width, eps):
    """Rows with mean 0 and variance 1, and the inverse of the deviations that they had."""
    z -= (tl.sum(z, 1) / width)[:, None]
    z = tl.where(here, z, 0.0)
    inverse = 1 / tl.sqrt(tl.sum(z * z, 1) / width + eps)
    return z * inverse[:, None], inverse


@triton.jit
def normalise_backward(g, n, inverse, width):
    """The gradient of what became `n`, from that of `n`."""
    along = tl.sum(g * n, 1) / width
    g -= (tl.sum(g, 1) / width)[:, None] + n * along[:, None]
    return g * inverse[:, None]


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
        z = tl.where(random_bits(at, seed) >= drop, z * rescale, 0.0)
    z, inverse = normalise(z + before, inside[None, :], width, eps)
    tl.store(normal + at, z, here)
    tl.store(out + at, z * gain + move, here)
    tl.store(scale + row, inverse, row < rows)


@triton.jit
def add_norm_backward_kernel(
    grad, normal, scale, weight, residual, through, sums, seed, rows, width,
    drop: tl.constexpr, rescale: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, BLOCK)
    gain = tl.load(weight + col, col < width, 0.0)[None, :]
    of_weight = tl.zeros((TALL, BLOCK), tl.float32)
    of_shift = tl.zeros((TALL, BLOCK), tl.float32)
    of_bias = tl.zeros((TALL, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * TALL, rows, tl.num_programs(0) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & (col < width)[None, :]
        at = row[:, None] * width + col[None, :]
        g = tl.load(grad + at, here, 0.0).to(tl.float32)
        n = tl.load(normal + at, here, 0.0).to(tl.float32)
        of_weight += g * n
        of_shift += g
        g = normalise_backward(g * gain, n, tl.load(scale + row, row < rows, 0.0), width)
        tl.store(residual + at, g, here)
        if drop > 0:
            g = tl.where(random_bits(at, seed) >= drop, g * rescale, 0.0)
            tl.store(through + at, g, here)
        of_bias += g
    to = sums + tl.program_id(0) * 3 * width + col
    tl.store(to, tl.sum(of_weight, 0), col < width)
    tl.store(to + width, tl.sum(of_shift, 0), col < width)
    tl.store(to + 2 * width, tl.sum(of_bias, 0), col < width)
