"""The embedding block in one kernel: three tables, LayerNorm, dropout; and one on the way back.

Gradients of the tables are added where they belong with atomic additions, so that sums of many
terms may differ in the last bit between two runs.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.dropout import (
    bit_keys,
    column_keys,
    draw_seeds,
    drop_count,
    drop_rows,
    rescale,
)
from electra.kernels.any_gpu.launch import programs
from electra.kernels.any_gpu.layernorm import normalise, normalise_backward, tile

FORTH, BACK = 2048, 1024
"""Elements of a tile."""


class Embed(torch.autograd.Function):
    """Tokens and segments (rows, length) to vectors (rows x length, width) in `dtype`."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, segments: Tensor, token: Tensor, position: Tensor, segment: Tensor,
        weight: Tensor, shift: Tensor, eps: float, p: float, dtype: torch.dtype,
    ) -> Tensor:  # fmt: skip
        ids, segments = ids.contiguous(), segments.contiguous()
        rows, length = ids.shape
        width = token.shape[1]
        out = torch.empty(rows * length, width, dtype=dtype, device=ids.device)
        normal = torch.empty_like(out)
        scale = torch.empty(rows * length, dtype=torch.float32, device=ids.device)
        (seed,) = draw_seeds(1, ids.device)
        block, tall = tile(width, FORTH)
        embed_kernel[(triton.cdiv(rows * length, tall),)](
            ids, segments, token, position, segment, weight, shift, out, normal, scale, seed,
            rows * length, length, width, eps, drop_count(p), rescale(p), tall, block, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(ids, segments, normal, scale, weight, seed)
        ctx.sizes = [token.shape, position.shape, segment.shape, weight.shape, shift.shape]
        ctx.p = p
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ids, segments, normal, scale, weight, seed = ctx.saved_tensors
        rows, length = ids.shape
        width = normal.shape[1]
        ends = [size.numel() for size in ctx.sizes]
        parts = torch.zeros(sum(ends), device=ids.device).split(ends)
        block, tall = tile(width, BACK)
        across = triton.cdiv(length, tall)
        down = programs(rows, ids.device, 4 / across)
        embed_backward_kernel[(across, down)](
            grads[0].contiguous(), ids, segments, normal, scale, weight, *parts, seed,
            rows, length, width, drop_count(ctx.p), rescale(ctx.p), tall, block, num_warps=4,
        )  # fmt: skip
        tables = [part.view(size) for part, size in zip(parts, ctx.sizes, strict=True)]
        return None, None, *tables, None, None, None


@triton.jit
def embed_kernel(
    ids, segments, token, position, segment, weight, shift, out, normal, scale, seed,
    rows, length, width, eps, drop: tl.constexpr, rescale: tl.constexpr,
    TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.arange(0, BLOCK)
    valid = row < rows
    here = valid[:, None] & (col < width)[None, :]
    word = tl.load(ids + row, valid, 0)
    side = tl.load(segments + row, valid, 0)
    z = tl.load(token + word[:, None] * width + col[None, :], here, 0.0)
    z += tl.load(segment + side[:, None] * width + col[None, :], here, 0.0)
    z += tl.load(position + (row % length)[:, None] * width + col[None, :], here, 0.0)
    z, inverse = normalise(z, here, width, eps)
    at = row[:, None] * width + col[None, :]
    tl.store(normal + at, z, here)
    tl.store(scale + row, inverse, valid)
    z = z * tl.load(weight + col, col < width, 0.0)[None, :]
    z += tl.load(shift + col, col < width, 0.0)[None, :]
    if drop > 0:
        of_rows, of_columns = bit_keys(seed)
        across = column_keys(BLOCK, of_columns)
        z = drop_rows(z, row[:, None], of_rows, across, drop, rescale)
    tl.store(out + at, z, here)


@triton.jit
def embed_backward_kernel(
    grad, ids, segments, normal, scale, weight,
    of_token, of_position, of_segment, of_weight, of_shift, seed,
    rows, length, width: tl.constexpr, drop: tl.constexpr, rescale: tl.constexpr,
    TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A few positions of many rows, so that position's gradient is added up in registers; so are
    the others, for each position by itself: threads exchange nothing before the end."""
    place = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.arange(0, BLOCK)
    inside = (col < width) | (width == BLOCK)
    valid = place < length
    here = valid[:, None] & inside[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    of_rows, of_columns = bit_keys(seed)
    across = column_keys(BLOCK, of_columns)
    at_position = tl.zeros((TALL, BLOCK), tl.float32)
    second = tl.zeros((TALL, BLOCK), tl.float32)
    by_weight = tl.zeros((TALL, BLOCK), tl.float32)
    by_shift = tl.zeros((TALL, BLOCK), tl.float32)
    for number in range(tl.program_id(1), rows, tl.num_programs(1)):
        row = number * length + place
        at = row[:, None] * width + col[None, :]
        g = tl.load(grad + at, here, 0.0).to(tl.float32)
        n = tl.load(normal + at, here, 0.0).to(tl.float32)
        word = tl.load(ids + row, valid, 0)
        side = tl.load(segments + row, valid, 0)
        inverse = tl.load(scale + row, valid, 0.0)
        if drop > 0:
            g = drop_rows(g, row[:, None], of_rows, across, drop, rescale)
        by_weight += g * n
        by_shift += g
        g = normalise_backward(g * gain, n, inverse, width)
        g = tl.where(here, g, 0.0)
        at_position += g
        second += tl.where((side == 1)[:, None], g, 0.0)
        tl.atomic_add(of_token + word[:, None] * width + col[None, :], g, here, sem="relaxed")
    spot = place[:, None] * width + col[None, :]
    tl.atomic_add(of_position + spot, at_position, here, sem="relaxed")
    other = tl.sum(second, 0)
    first = tl.sum(at_position, 0) - other
    tl.atomic_add(of_segment + col, first, inside, sem="relaxed")
    tl.atomic_add(of_segment + width + col, other, inside, sem="relaxed")
    tl.atomic_add(of_weight + col, tl.sum(by_weight, 0), inside, sem="relaxed")
    tl.atomic_add(of_shift + col, tl.sum(by_shift, 0), inside, sem="relaxed")
