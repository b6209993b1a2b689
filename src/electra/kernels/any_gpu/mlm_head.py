"""The generator's head before its table: LayerNorm(gelu(x W + b)), the middle computed twice."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.encoder_stack import product
from electra.kernels.any_gpu.gelu import gelu_at
from electra.kernels.any_gpu.layernorm import (
    BACK,
    FORTH,
    norm_parts,
    normalise,
    normalise_backward,
    tile,
)
from electra.kernels.any_gpu.reduce import add_parts, own_rows


class Head(torch.autograd.Function):
    """(slots, hidden) to (slots, width) in the precision of x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dense: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, eps: float
    ) -> Tensor:
        matrix = dense.to(x.dtype)
        inner = x @ matrix.t()
        rows, width = inner.shape
        out = torch.empty_like(inner)
        block, tall = tile(width, FORTH)
        tensors = (inner, bias, weight, shift, out)
        head_kernel[(triton.cdiv(rows, tall),)](
            *tensors, rows, width, eps, tall, block, num_warps=4
        )
        ctx.save_for_backward(x, matrix, inner, bias, weight)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, matrix, inner, bias, weight = ctx.saved_tensors
        grad = grads[0].contiguous()  # that of a sum repeats one number
        rows, width = inner.shape
        of_inner = torch.empty_like(inner)
        sums = torch.empty(norm_parts(rows, width, x.device), 3, width, device=x.device)
        block, tall = tile(width, BACK)
        lines = max(1, 256 // block)  # a warp reads 256 numbers at once
        tensors = (grad, inner, bias, weight, of_inner, sums)
        head_backward_kernel[(len(sums),)](
            *tensors, rows, width, ctx.eps, lines, tall, block, num_warps=max(1, block // BACK)
        )
        of_weight, of_shift, of_bias = add_parts(sums, 0)
        of_dense = product(of_inner.t(), x)
        return of_inner @ matrix, of_dense, of_bias, of_weight, of_shift, None


@triton.jit
def head_kernel(
    inner, bias, weight, shift, out, rows, width: tl.constexpr, eps,
    TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.arange(0, BLOCK)
    # The width is known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width == BLOCK)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    z = tl.load(inner + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, inside, 0.0)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    move = tl.load(shift + col, inside, 0.0)[None, :]
    active, _ = gelu_at(z)
    n, _ = normalise(active, inside[None, :], width, eps)
    tl.store(out + at, n * gain + move, here)


@triton.jit
def head_backward_kernel(
    grad, inner, bias, weight, of_inner, sums, rows, width: tl.constexpr, eps,
    LINES: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums are kept for LINES rows, those of a tile that different threads have."""
    col = tl.arange(0, BLOCK)
    inside = (col < width) | (width == BLOCK)
    offset = tl.load(bias + col, inside, 0.0)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    of_weight = tl.zeros((LINES, BLOCK), tl.float32)
    of_shift = tl.zeros((LINES, BLOCK), tl.float32)
    of_bias = tl.zeros((LINES, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * TALL, rows, tl.num_programs(0) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        z = tl.load(inner + at, here, 0.0).to(tl.float32) + offset
        g = tl.load(grad + at, here, 0.0).to(tl.float32)  # asked for before z is used
        active, slope = gelu_at(z)
        n, inverse = normalise(active, inside[None, :], width, eps)
        of_weight += own_rows(g * n, LINES)
        of_shift += own_rows(g, LINES)
        g = normalise_backward(g * gain, n, inverse, width) * slope
        tl.store(of_inner + at, g, here)
        of_bias += own_rows(g, LINES)
    to = sums + tl.program_id(0) * 3 * width + col
    tl.store(to, tl.sum(of_weight, 0), inside)
    tl.store(to + width, tl.sum(of_shift, 0), inside)
    tl.store(to + 2 * width, tl.sum(of_bias, 0), inside)
