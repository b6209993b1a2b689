"""gelu(x + bias), and its gradient together with the value, so that the value need not be kept."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.launch import programs

TALL, WIDE = 16, 128
"""Rows and columns of a tile."""


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """The erf form, as BERT."""
    rows, width = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(width, WIDE), triton.cdiv(rows, TALL))
    bias_gelu_kernel[grid](x, bias, out, rows, width, TALL, WIDE, num_warps=4)
    return out


def bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor, sums: Tensor) -> Tensor:
    """Overwrites `grad` with the gradient of x; returns the value; `sums` gets the bias's."""
    rows, width = x.shape
    out = torch.empty_like(x)
    grid = (triton.cdiv(width, WIDE), sums.shape[0])
    tensors = (grad, x, bias, out, sums)
    bias_gelu_backward_kernel[grid](*tensors, rows, width, TALL, WIDE, num_warps=4)
    return out


def gelu_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `bias_gelu_backward` come in."""
    return programs(triton.cdiv(rows, TALL), device, 8 / triton.cdiv(width, WIDE))


@triton.jit
def bell_at(z):
    """exp(-z^2 / 2), of which both functions below are made."""
    return tl.exp2(z * z * -0.7213475204444817)


@triton.jit
def slope_at(z, share, bell):
    """The derivative of z times the normal distribution's share below z."""
    return share + z * 0.3989422804014327 * bell


@triton.jit
def share_below(z, bell):
    """The normal distribution's share below z.

    Abramowitz and Stegun's formula 7.1.26, off by some 1e-7: the exact function would take longer
    than the memory does.
    """
    u = 1 + 0.23164190 * tl.abs(z)
    t = tl.rsqrt(u * u)  # 1 / u in one instruction, where a division takes eight
    tail = 0.530702714 * t - 0.726576013
    tail = (tail * t + 0.710706870) * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * bell
    return tl.where(z > 0, 1 - tail, tail)


@triton.jit
def bias_gelu_kernel(x, bias, out, rows, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    row = tl.program_id(1) * TALL + tl.arange(0, TALL)
    here = (row < rows)[:, None] & (col < width)[None, :]
    at = row[:, None] * width + col[None, :]
    z = tl.load(x + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, col < width, 0.0)[None, :]
    tl.store(out + at, z * share_below(z, bell_at(z)), here)


@triton.jit
def bias_gelu_backward_kernel(
    grad, x, bias, out, sums, rows, width, TALL: tl.constexpr, WIDE: tl.constexpr
):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    offset = tl.load(bias + col, col < width, 0.0)[None, :]
    of_bias = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & (col < width)[None, :]
        at = row[:, None] * width + col[None, :]
        z = tl.load(x + at, here, 0.0).to(tl.float32) + offset
        bell = bell_at(z)
        share = share_below(z, bell)
        tl.store(out + at, z * share, here)
        g = tl.load(grad + at, here, 0.0).to(tl.float32) * slope_at(z, share, bell)
        tl.store(grad + at, g, here)
        of_bias += g
    tl.store(sums + tl.program_id(1) * width + col, tl.sum(of_bias, 0), col < width)
