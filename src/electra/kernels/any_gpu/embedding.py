"""The embedding block in one kernel: three tables, LayerNorm, dropout; and one for its gradient.

Gradients of the tables are accumulated with atomic additions, so that sums of many terms may differ
in the last bit between two runs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.gemm import layernorm_backward_rows, layernorm_rows
from electra.kernels.any_gpu.random import (
    column_keys,
    draw_seeds,
    drop_count,
    drop_rows,
    rescale,
    seed_keys,
)
from electra.kernels.any_gpu.reduce import num_programs, sum_rows, tile, weight_grad

FORWARD_ELEMENTS, BACKWARD_ELEMENTS = 2048, 1024
"""Elements of a tile."""


class Embedding(torch.autograd.Function):
    """Token ids and segments (rows, length) to embeddings (rows x length, width) in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, segments: Tensor, token: Tensor, position: Tensor, segment: Tensor,
        weight: Tensor, shift: Tensor, eps: float, p: float, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        ids, segments = ids.contiguous(), segments.contiguous()
        rows, length = ids.shape
        width = token.shape[1]
        out = torch.empty(rows * length, width, dtype=dtype, device=ids.device)
        x_hat = torch.empty_like(out)
        rstd = torch.empty(rows * length, dtype=torch.float32, device=ids.device)
        (seed,) = draw_seeds(1, ids.device)
        block_n, block_m = tile(width, FORWARD_ELEMENTS)
        embedding_kernel[(triton.cdiv(rows * length, block_m),)](
            ids, segments, token, position, segment, weight, shift, out, x_hat, rstd, seed,
            rows * length, length, width, eps, drop_count(p), rescale(p), block_m, block_n,
            num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(ids, segments, x_hat, rstd, weight, seed)
        ctx.sizes = [token.shape, position.shape, segment.shape, weight.shape, shift.shape]
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ids, segments, x_hat, rstd, weight, seed = ctx.saved_tensors
        rows, length = ids.shape
        width = x_hat.shape[1]
        ends = [size.numel() for size in ctx.sizes]
        grad_tables = torch.zeros(sum(ends), device=ids.device).split(ends)
        block_n, block_m = tile(width, BACKWARD_ELEMENTS)
        across = triton.cdiv(length, block_m)
        down = num_programs(rows, ids.device, 4 / across)
        embedding_backward_kernel[(across, down)](
            grads[0].contiguous(), ids, segments, x_hat, rstd, weight, *grad_tables, seed,
            rows, length, width, drop_count(ctx.p), rescale(ctx.p), block_m, block_n, num_warps=4,
        )  # fmt: skip
        tables = [part.view(size) for part, size in zip(grad_tables, ctx.sizes, strict=True)]
        return None, None, *tables, None, None, None


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


@triton.jit
def embedding_kernel(
    ids, segments, token, position, segment, weight, shift, out, x_hat, rstd, seed,
    rows, length, width, eps, drop: tl.constexpr, rescale: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    valid = row < rows
    here = valid[:, None] & (col < width)[None, :]
    token_id = tl.load(ids + row, valid, 0)
    segment_id = tl.load(segments + row, valid, 0)
    z = tl.load(token + token_id[:, None] * width + col[None, :], here, 0.0)
    z += tl.load(segment + segment_id[:, None] * width + col[None, :], here, 0.0)
    z += tl.load(position + (row % length)[:, None] * width + col[None, :], here, 0.0)
    z, inv_std = layernorm_rows(z, here, width, eps)
    at = row[:, None] * width + col[None, :]
    tl.store(x_hat + at, z, here)
    tl.store(rstd + row, inv_std, valid)
    z = z * tl.load(weight + col, col < width, 0.0)[None, :]
    z += tl.load(shift + col, col < width, 0.0)[None, :]
    if drop > 0:
        row_key, column_key = seed_keys(seed)
        across = column_keys(BLOCK, column_key)
        z = drop_rows(z, row[:, None], row_key, across, drop, rescale)
    tl.store(out + at, z, here)


@triton.jit
def embedding_backward_kernel(
    grad, ids, segments, x_hat, rstd, weight,
    grad_token, grad_position, grad_segment, grad_weight, grad_shift, seed,
    rows, length, width: tl.constexpr, drop: tl.constexpr, rescale: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A few positions of many rows, so that the position table's gradient is summed in registers;
    so are the others, per position: threads exchange nothing before the end."""
    place = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    inside = (col < width) | (width == BLOCK)
    valid = place < length
    here = valid[:, None] & inside[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    row_key, column_key = seed_keys(seed)
    across = column_keys(BLOCK, column_key)
    at_position = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    second = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    by_weight = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    by_shift = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    for number in range(tl.program_id(1), rows, tl.num_programs(1)):
        row = number * length + place
        at = row[:, None] * width + col[None, :]
        g = tl.load(grad + at, here, 0.0).to(tl.float32)
        n = tl.load(x_hat + at, here, 0.0).to(tl.float32)
        token_id = tl.load(ids + row, valid, 0)
        segment_id = tl.load(segments + row, valid, 0)
        inv_std = tl.load(rstd + row, valid, 0.0)
        if drop > 0:
            g = drop_rows(g, row[:, None], row_key, across, drop, rescale)
        by_weight += g * n
        by_shift += g
        g = layernorm_backward_rows(g * gain, n, inv_std, width)
        g = tl.where(here, g, 0.0)
        at_position += g
        second += tl.where((segment_id == 1)[:, None], g, 0.0)
        tl.atomic_add(grad_token + token_id[:, None] * width + col[None, :], g, here, sem="relaxed")
    spot = place[:, None] * width + col[None, :]
    tl.atomic_add(grad_position + spot, at_position, here, sem="relaxed")
    other = tl.sum(second, 0)
    first = tl.sum(at_position, 0) - other
    tl.atomic_add(grad_segment + col, first, inside, sem="relaxed")
    tl.atomic_add(grad_segment + width + col, other, inside, sem="relaxed")
    tl.atomic_add(grad_weight + col, tl.sum(by_weight, 0), inside, sem="relaxed")
    tl.atomic_add(grad_shift + col, tl.sum(by_shift, 0), inside, sem="relaxed")
