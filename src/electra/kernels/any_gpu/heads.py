"""Linear layers outside the encoder stack: the embedding projection and the heads of both
networks."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.gelu import gelu_at
from electra.kernels.any_gpu.layernorm import (
    BACKWARD_ELEMENTS,
    FORWARD_ELEMENTS,
    layernorm_backward_rows,
    layernorm_rows,
    num_partials,
    tile,
)
from electra.kernels.any_gpu.reduce import (
    column_sums,
    num_programs,
    reduce_partials,
    sum_row_groups,
    weight_grad,
)

SUM_ELEMENTS = 8192
"""Elements of a tile of `sum_rows`: in bf16 eight loads of 16 bytes per thread at once."""
RTD_ELEMENTS = 4096
"""Elements of a tile of the discriminator's head."""


class Linear(torch.autograd.Function):
    """x @ weight.t() + bias in the precision of x; its gradients are in fp32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        cast_weight = weight.to(x.dtype)
        ctx.save_for_backward(x, cast_weight)
        return torch.addmm(bias.to(x.dtype), x, cast_weight.t())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, cast_weight = ctx.saved_tensors
        grad = grads[0].contiguous()  # the gradient of a sum is expanded
        # Two launches for the bias: a matmul with ones has as many and has to write the ones; as
        # one more column of the weight's gradient it would take a copy of x.
        return grad @ cast_weight, weight_grad(grad.t(), x), sum_rows(grad)


def sum_rows(x: Tensor) -> Tensor:
    """x.sum(0) in fp32."""
    rows, width = x.shape
    block_n, block_m = tile(width, SUM_ELEMENTS)
    parts = num_programs(triton.cdiv(rows, block_m), x.device, 2)
    partials = torch.empty(parts, width, device=x.device)
    sum_rows_kernel[(parts,)](x, partials, rows, width, block_m, block_n, num_warps=4)
    return reduce_partials(partials, 0)


@triton.jit
def sum_rows_kernel(
    x, partials, rows, width: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr
):
    col = tl.arange(0, BLOCK)
    # The width is a constexpr: comparisons that hold for all columns are optimised away.
    inside = (col < width) | (width == BLOCK)
    total = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & inside[None, :]
        total += tl.load(x + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    tl.store(partials + tl.program_id(0) * width + col, column_sums(total), inside)


class MlmHead(torch.autograd.Function):
    """LayerNorm(gelu(x @ weight.t() + bias)), the generator's head before the token table.

    The GELU is computed again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dense: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, eps: float
    ) -> Tensor:
        cast_weight = dense.to(x.dtype)
        pre_gelu = x @ cast_weight.t()
        rows, width = pre_gelu.shape
        out = torch.empty_like(pre_gelu)
        block_n, block_m = tile(width, FORWARD_ELEMENTS)
        tensors = (pre_gelu, bias, weight, shift, out)
        mlm_head_kernel[(triton.cdiv(rows, block_m),)](
            *tensors, rows, width, eps, block_m, block_n, num_warps=4
        )
        ctx.save_for_backward(x, cast_weight, pre_gelu, bias, weight)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, cast_weight, pre_gelu, bias, weight = ctx.saved_tensors
        grad = grads[0].contiguous()  # the gradient of a sum is expanded
        rows, width = pre_gelu.shape
        grad_pre_gelu = torch.empty_like(pre_gelu)
        partials = torch.empty(num_partials(rows, width, x.device), 3, width, device=x.device)
        block_n, block_m = tile(width, BACKWARD_ELEMENTS)
        row_groups = max(1, 256 // block_n)  # a warp reads 256 numbers at once
        tensors = (grad, pre_gelu, bias, weight, grad_pre_gelu, partials)
        mlm_head_backward_kernel[(len(partials),)](
            *tensors,
            rows,
            width,
            ctx.eps,
            row_groups,
            block_m,
            block_n,
            num_warps=max(1, block_n // BACKWARD_ELEMENTS),
        )
        grad_weight, grad_shift, grad_bias = reduce_partials(partials, 0)
        grad_dense = weight_grad(grad_pre_gelu.t(), x)
        return grad_pre_gelu @ cast_weight, grad_dense, grad_bias, grad_weight, grad_shift, None


@triton.jit
def mlm_head_kernel(
    pre_gelu, bias, weight, shift, out, rows, width: tl.constexpr, eps,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    # The width is a constexpr: comparisons that hold for all columns are optimised away.
    inside = (col < width) | (width == BLOCK)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    z = tl.load(pre_gelu + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, inside, 0.0)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    shift_row = tl.load(shift + col, inside, 0.0)[None, :]
    gelu_out, _ = gelu_at(z)
    n, _ = layernorm_rows(gelu_out, inside[None, :], width, eps)
    tl.store(out + at, n * gain + shift_row, here)


@triton.jit
def mlm_head_backward_kernel(
    grad, pre_gelu, bias, weight, grad_pre_gelu, partials, rows, width: tl.constexpr, eps,
    ROW_GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums are kept per row group: the rows of a tile that different threads hold."""
    col = tl.arange(0, BLOCK)
    inside = (col < width) | (width == BLOCK)
    offset = tl.load(bias + col, inside, 0.0)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    grad_weight = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    grad_shift = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    grad_bias = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        z = tl.load(pre_gelu + at, here, 0.0).to(tl.float32) + offset
        g = tl.load(grad + at, here, 0.0).to(tl.float32)  # loaded before z is used
        gelu_out, gelu_grad = gelu_at(z)
        n, inv_std = layernorm_rows(gelu_out, inside[None, :], width, eps)
        grad_weight += sum_row_groups(g * n, ROW_GROUPS)
        grad_shift += sum_row_groups(g, ROW_GROUPS)
        g = layernorm_backward_rows(g * gain, n, inv_std, width) * gelu_grad
        tl.store(grad_pre_gelu + at, g, here)
        grad_bias += sum_row_groups(g, ROW_GROUPS)
    to = partials + tl.program_id(0) * 3 * width + col
    tl.store(to, tl.sum(grad_weight, 0), inside)
    tl.store(to + width, tl.sum(grad_shift, 0), inside)
    tl.store(to + 2 * width, tl.sum(grad_bias, 0), inside)


class RtdHead(torch.autograd.Function):
    """gelu(x @ dense.t() + bias) . weight + shift in fp32: the discriminator's head.

    The GELU is computed again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dense: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> Tensor:
        cast_weight = dense.to(x.dtype)
        pre_gelu = x @ cast_weight.t()
        rows, width = pre_gelu.shape
        out = torch.empty(rows, device=x.device)
        block_n, block_m = tile(width, RTD_ELEMENTS)
        tensors = (pre_gelu, bias, weight, shift, out)
        rtd_head_kernel[(triton.cdiv(rows, block_m),)](
            *tensors, rows, width, block_m, block_n, num_warps=4
        )
        ctx.save_for_backward(x, cast_weight, pre_gelu, bias, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, cast_weight, pre_gelu, bias, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        rows, width = pre_gelu.shape
        grad_pre_gelu = torch.empty_like(pre_gelu)
        block_n, block_m = tile(width, RTD_ELEMENTS)
        parts = num_programs(triton.cdiv(rows, block_m), x.device, 2)
        partials = torch.empty(parts, 3, width, device=x.device)
        tensors = (grad, pre_gelu, bias, weight, grad_pre_gelu, partials)
        rtd_head_backward_kernel[(len(partials),)](
            *tensors, rows, width, block_m, block_n, num_warps=4
        )
        grad_weight, grad_bias, grad_shift = reduce_partials(partials, 0)
        grad_dense = weight_grad(grad_pre_gelu.t(), x)
        return (
            grad_pre_gelu @ cast_weight,
            grad_dense,
            grad_bias,
            grad_weight.view_as(weight),
            grad_shift[:1],
        )


@triton.jit
def rtd_head_kernel(
    pre_gelu, bias, weight, shift, out, rows, width, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    here = (row < rows)[:, None] & (col < width)[None, :]
    z = tl.load(pre_gelu + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    z += tl.load(bias + col, col < width, 0.0)[None, :]
    gelu_out, _ = gelu_at(z)
    gelu_out *= tl.load(weight + col, col < width, 0.0)[None, :]
    tl.store(out + row, tl.sum(gelu_out, 1) + tl.load(shift), row < rows)


@triton.jit
def rtd_head_backward_kernel(
    grad,
    pre_gelu,
    bias,
    weight,
    grad_pre_gelu,
    partials,
    rows,
    width,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.arange(0, BLOCK)
    offset = tl.load(bias + col, col < width, 0.0)[None, :]
    gain = tl.load(weight + col, col < width, 0.0)[None, :]
    grad_weight = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    grad_bias = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    grad_shift = tl.zeros((BLOCK_M, 1), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & (col < width)[None, :]
        at = row[:, None] * width + col[None, :]
        g = tl.load(grad + row, row < rows, 0.0)[:, None]
        z = tl.load(pre_gelu + at, here, 0.0).to(tl.float32) + offset
        gelu_out, derivative = gelu_at(z)
        grad_weight += g * gelu_out
        grad_shift += g
        g = g * gain * derivative
        tl.store(grad_pre_gelu + at, g, here)
        grad_bias += g
    to = partials + tl.program_id(0) * 3 * width + col
    tl.store(to, column_sums(grad_weight), col < width)
    tl.store(to + width, column_sums(grad_bias), col < width)
    # A scalar, as the first element of a vector
    tl.store(to + 2 * width, tl.where(col == 0, tl.sum(grad_shift), 0.0), col < width)
