"""x W + b whose gradients come in fp32, whatever the precision of the product is."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.encoder_stack import product
from electra.kernels.any_gpu.launch import programs
from electra.kernels.any_gpu.layernorm import tile
from electra.kernels.any_gpu.reduce import add_parts, column_sums

ELEMENTS = 8192
"""Of a tile: in bf16 eight reads of 16 bytes that each thread asks for at once."""


class Linear(torch.autograd.Function):
    """(rows, inputs) to (rows, outputs) in the precision of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        matrix = weight.to(x.dtype)
        ctx.save_for_backward(x, matrix)
        return torch.addmm(bias.to(x.dtype), x, matrix.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, matrix = ctx.saved_tensors
        grad = grads[0].contiguous()  # that of a sum repeats one number
        # Two launches for the bias: a product with ones has as many and has to write the ones; as
        # one more column of the weight's it would take a copy of x.
        return grad @ matrix, product(grad.t(), x), sum_rows(grad)


def sum_rows(x: Tensor) -> Tensor:
    """In fp32."""
    rows, width = x.shape
    block, tall = tile(width, ELEMENTS)
    parts = programs(triton.cdiv(rows, tall), x.device, 2)
    sums = torch.empty(parts, width, device=x.device)
    sum_rows_kernel[(parts,)](x, sums, rows, width, tall, block, num_warps=4)
    return add_parts(sums, 0)


@triton.jit
def sum_rows_kernel(x, sums, rows, width: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr):
    col = tl.arange(0, BLOCK)
    # The width is known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width == BLOCK)
    total = tl.zeros((TALL, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * TALL, rows, tl.num_programs(0) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & inside[None, :]
        total += tl.load(x + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0) * width + col, column_sums(total), inside)
