"""gelu(x + bias), and its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.launch import programs
from electra.models.kernels.sums import column_sums

FORTH = {"TALL": 16, "WIDE": 128, "num_warps": 4}
BACK = {"TALL": 16, "WIDE": 256, "num_warps": 8}
"""Rows and columns of a tile."""


def bias_gelu(x: Tensor, bias: Tensor, out: Tensor) -> None:
    """The erf form, as BERT."""
    rows, width = x.shape
    # One number for both: the second of a grid ends at 65,535
    tiles = triton.cdiv(width, FORTH["WIDE"]) * triton.cdiv(rows, FORTH["TALL"])
    bias_gelu_kernel[(tiles,)](x, bias, out, rows, width, **FORTH)


def bias_gelu_backward_(grad: Tensor, x: Tensor, bias: Tensor, sums: Tensor) -> None:
    """Overwrites `grad` with the gradient of x; `sums` gets the bias's."""
    rows, width = x.shape
    grid = (triton.cdiv(width, BACK["WIDE"]), sums.shape[0])
    bias_gelu_backward_kernel[grid](grad, x, bias, sums, rows, width, **BACK)


def gelu_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `bias_gelu_backward_` come in."""
    tiles, across = triton.cdiv(rows, BACK["TALL"]), triton.cdiv(width, BACK["WIDE"])
    return programs(tiles, device, 3 / across)


@triton.jit
def gelu_at(z):
    """z times the normal distribution's share below z, and the derivative of this.

    The share is Abramowitz and Stegun's formula 7.1.26, off by some 1e-7: the exact function would
    take longer than the memory does.
    """
    u = 1 + 0.23164190 * tl.abs(z)
    t = tl.rsqrt(u * u)  # 1 / u in one instruction, where a division takes eight
    bell = tl.exp2(z * z * -0.7213475204444817)  # exp(-z^2 / 2)
    tail = 0.530702714 * t - 0.726576013
    tail = (tail * t + 0.710706870) * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * bell
    share = tl.where(z > 0, 1 - tail, tail)
    return z * share, share + z * 0.3989422804014327 * bell


@triton.jit
def bias_gelu_kernel(x, bias, out, rows, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    across = tl.cdiv(width, WIDE)
    col = tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)
    row = tl.program_id(0) // across * TALL + tl.arange(0, TALL)
    here = (row < rows)[:, None] & (col < width)[None, :]
    at = row[:, None] * width + col[None, :]
    z = tl.load(x + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, col < width, 0.0)[None, :]
    value, _ = gelu_at(z)
    tl.store(out + at, value, here)


@triton.jit
def bias_gelu_backward_kernel(
    grad, x, bias, sums, rows, width: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr
):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    # The width is known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width % WIDE == 0)
    offset = tl.load(bias + col, inside, 0.0)[None, :]
    of_bias = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        z = tl.load(x + at, here, 0.0).to(tl.float32) + offset
        g = tl.load(grad + at, here, 0.0).to(tl.float32)  # asked for before z is used
        _, slope = gelu_at(z)
        g *= slope
        tl.store(grad + at, g, here)
        of_bias += g
    tl.store(sums + tl.program_id(1) * width + col, column_sums(of_bias), inside)
