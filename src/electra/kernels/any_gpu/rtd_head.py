"""The discriminator's verdict: gelu(x W + b) . w + c, the middle of it computed twice, not kept."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.encoder_stack import product
from electra.kernels.any_gpu.gelu import gelu_at
from electra.kernels.any_gpu.launch import programs
from electra.kernels.any_gpu.layernorm import tile
from electra.kernels.any_gpu.reduce import add_parts, column_sums

ELEMENTS = 4096
"""Of a tile."""


class Score(torch.autograd.Function):
    """(tokens, hidden) to (tokens,), in fp32."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dense: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> Tensor:
        matrix = dense.to(x.dtype)
        inner = x @ matrix.t()
        rows, width = inner.shape
        out = torch.empty(rows, device=x.device)
        block, tall = tile(width, ELEMENTS)
        tensors = (inner, bias, weight, shift, out)
        score_kernel[(triton.cdiv(rows, tall),)](*tensors, rows, width, tall, block, num_warps=4)
        ctx.save_for_backward(x, matrix, inner, bias, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, matrix, inner, bias, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        rows, width = inner.shape
        of_inner = torch.empty_like(inner)
        block, tall = tile(width, ELEMENTS)
        parts = programs(triton.cdiv(rows, tall), x.device, 2)
        sums = torch.empty(parts, 3, width, device=x.device)
        tensors = (grad, inner, bias, weight, of_inner, sums)
        score_backward_kernel[(len(sums),)](*tensors, rows, width, tall, block, num_warps=4)
        of_weight, of_bias, of_shift = add_parts(sums, 0)
        of_dense = product(of_inner.t(), x)
        return of_inner @ matrix, of_dense, of_bias, of_weight.view_as(weight), of_shift[:1]


@triton.jit
def score_kernel(
    inner, bias, weight, shift, out, rows, width, TALL: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.arange(0, BLOCK)
    here = (row < rows)[:, None] & (col < width)[None, :]
    z = tl.load(inner + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    z += tl.load(bias + col, col < width, 0.0)[None, :]
    active, _ = gelu_at(z)
    active *= tl.load(weight + col, col < width, 0.0)[None, :]
    tl.store(out + row, tl.sum(active, 1) + tl.load(shift), row < rows)


@triton.jit
def score_backward_kernel(
    grad, inner, bias, weight, of_inner, sums, rows, width, TALL: tl.constexpr, BLOCK: tl.constexpr
):
    col = tl.arange(0, BLOCK)
    offset = tl.load(bias + col, col < width, 0.0)[None, :]
    gain = tl.load(weight + col, col < width, 0.0)[None, :]
    of_weight = tl.zeros((TALL, BLOCK), tl.float32)
    of_bias = tl.zeros((TALL, BLOCK), tl.float32)
    of_shift = tl.zeros((TALL, 1), tl.float32)
    for first in range(tl.program_id(0) * TALL, rows, tl.num_programs(0) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & (col < width)[None, :]
        at = row[:, None] * width + col[None, :]
        g = tl.load(grad + row, row < rows, 0.0)[:, None]
        z = tl.load(inner + at, here, 0.0).to(tl.float32) + offset
        active, slope = gelu_at(z)
        of_weight += g * active
        of_shift += g
        g = g * gain * slope
        tl.store(of_inner + at, g, here)
        of_bias += g
    to = sums + tl.program_id(0) * 3 * width + col
    tl.store(to, column_sums(of_weight), col < width)
    tl.store(to + width, column_sums(of_bias), col < width)
    # A number, as the first of a vector
    tl.store(to + 2 * width, tl.where(col == 0, tl.sum(of_shift), 0.0), col < width)
