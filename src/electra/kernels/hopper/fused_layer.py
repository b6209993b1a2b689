"""A layer of a very narrow model, as ELECTRA-Small's generator, in one kernel but for attention.

All the rest of a layer is about each token by itself: a program has some rows on the chip, and goes
with them from one attention to the next. The inner width it goes through piece by piece, each of
which is expanded and contracted at once. In memory lies what others read: factors of the gradients
of matrices, and for the way back normalised rows and gelu's slope.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.dropout import bit_keys, column_keys, drop_count, drop_rows, rescale
from electra.kernels.any_gpu.gelu import gelu_stored, unpacked
from electra.kernels.hopper.gemm_layernorm import in_order, in_tiles, joins, norm_rows, numbers, rows_at
from electra.kernels.any_gpu.layernorm import normalise_backward
from electra.kernels.any_gpu.reduce import over_rows

WIDEST = 64
FORTH = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 3}
BACK = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 168}
"""Rows of a tile, and columns of a piece of the inner width."""


class Projection(NamedTuple):
    """From a layer's input to queries, keys and values; on the way back these are gradients."""

    qkv: Tensor
    matrix: Tensor
    bias: Tensor


def narrow(contract: Tensor) -> bool:
    """Whether layers with this matrix are computed here."""
    width, inner = contract.shape
    whole = all(inner % way["WIDE"] == 0 for way in (FORTH, BACK))
    return joins(contract) and width <= WIDEST and whole


def narrow_forward(
    mixed: Tensor, x: Tensor, y: Tensor, active: Tensor, slope: Tensor, out: Tensor,
    p: Sequence[Tensor], seeds: Tensor, dropout: float, eps: float,
    above: Projection | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From what attention mixed and the layer's input to `out`, and to the projections above.

    `p` are a layer's parameters in the order of `electra.kernels.layer_params.NAMES`, `seeds` two
    rows of `draw_seeds`. Returns the normalised rows and the inverse deviations of both norms.
    """
    (rows, width), inner = x.shape, active.shape[1]
    attended, expand, contract = p[1:4]
    b_attended, gain1, shift1, b_expand, b_contract, gain2, shift2 = p[5:]
    normals = [torch.empty_like(x) for _ in range(2)]
    scales = [torch.empty(rows, device=x.device) for _ in range(2)]
    tall, wide = FORTH["TALL"], FORTH["WIDE"]
    qkv, matrix, bias = above or (out, attended, b_attended)  # for none anything will do
    narrow_forward_kernel[(triton.cdiv(rows, tall),)](
        in_tiles(mixed, tall, width), in_tiles(attended, width, width),
        in_tiles(expand, wide, width), in_tiles(contract, width, wide),
        in_tiles(active, tall, wide), in_tiles(slope, tall, wide),
        in_tiles(matrix, width, width), in_tiles(qkv, tall, width),
        b_attended, b_expand, b_contract, bias, x, y, out,
        gain1, shift1, normals[0], scales[0], seeds[0],
        gain2, shift2, normals[1], scales[1], seeds[1],
        rows, width, inner, eps, drop_count(dropout), rescale(dropout), above is not None, **FORTH,
    )  # fmt: skip
    return normals[0], scales[0], normals[1], scales[1]


def narrow_backward(
    grad: Tensor, above: Projection | None, kept: Sequence[Tensor], p: Sequence[Tensor],
    seeds: Tensor, dropout: float, of_attended: Tensor, of_inner: Tensor,
    of_outer: Tensor, norm_sums: Tensor, gelu_sums: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradients of the layer's input and of what attention mixed.

    In `grad`, of the layer's output, what comes through the projections of the layer above is
    missing, whose gradients `above` has; and in the first result that through the layer's own.
    `kept` is what `narrow_forward` returned, and the slope. `norm_sums` (2, parts, 3, width) gets
    the gradients of weight, shift and the bias before it of both norms, `gelu_sums` (parts, inner)
    that of the expansion's bias.
    """
    (rows, width), inner = grad.shape, of_inner.shape[1]
    attended, expand, contract = p[1:4]
    normal1, scale1, normal2, scale2, slope = kept
    tall, wide = BACK["TALL"], BACK["WIDE"]
    of_x, of_mixed = torch.empty_like(grad), torch.empty_like(grad)
    of_qkv, matrix, _ = above or (grad, attended, grad)  # for none anything will do
    narrow_backward_kernel[(triton.cdiv(rows, tall),)](
        in_tiles(of_qkv, tall, width), in_tiles(matrix, width, width),
        in_tiles(contract, width, wide), in_tiles(slope, tall, wide),
        in_tiles(expand, wide, width), in_tiles(of_inner, tall, wide),
        in_tiles(attended, width, width), in_tiles(of_mixed, tall, width),
        grad, of_x, of_attended, of_outer,
        p[6], normal1, scale1, norm_sums[0], seeds[0],
        p[10], normal2, scale2, norm_sums[1], seeds[1],
        gelu_sums, rows, width, inner, drop_count(dropout), rescale(dropout), above is not None,
        **BACK,
    )  # fmt: skip
    return of_x, of_mixed


def narrow_parts(rows: int) -> int:
    """How many parts the sums of `narrow_backward` come in."""
    return triton.cdiv(rows, BACK["TALL"])


@triton.jit
def narrow_forward_kernel(
    mixed, attended, expand, contract, active, slope, matrix, qkv,
    b_attended, b_expand, b_contract, bias, x, y, out,
    gain1, shift1, normal1, scale1, seed1, gain2, shift2, normal2, scale2, seed2,
    rows, width: tl.constexpr, inner: tl.constexpr, eps, drop: tl.constexpr,
    rescale: tl.constexpr, ABOVE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TALL
    z = tl.dot(mixed.load([first, 0]), attended.load([0, 0]).T, input_precision="ieee")
    before = rows_at(x, first, rows, width, TALL)
    middle = norm_rows(
        z, before, first, b_attended, gain1, shift1, y, normal1, scale1, seed1, rows, width, eps,
        drop, rescale,
    )  # fmt: skip
    a = as_factor(middle)
    outer = tl.zeros((TALL, width), tl.float32)
    for start in range(0, inner, WIDE):
        offset = tl.load(b_expand + start + tl.arange(0, WIDE))[None, :]
        b, c = expand.load([start, 0]), contract.load([0, start])
        inside = tl.dot(a, b.T, input_precision="ieee") + offset
        value, bend = gelu_stored(inside, a.dtype, slope.dtype)
        slope.store([first, start], bend)
        outer = tl.dot(value, c.T, outer, input_precision="ieee")
        # After the product: a copy waits until the one before has left shared memory.
        active.store([first, start], value)
    last = norm_rows(
        outer, middle.to(tl.float32), first, b_contract, gain2, shift2, out, normal2, scale2, seed2,
        rows, width, eps, drop, rescale,
    )  # fmt: skip
    if ABOVE:
        a = as_factor(last)
        for start in tl.static_range(0, 3 * width, width):
            offset = tl.load(bias + start + tl.arange(0, width)).to(tl.float32)[None, :]
            z = tl.dot(a, matrix.load([start, 0]).T, input_precision="ieee") + offset
            qkv.store([first, start], z.to(a.dtype))


@triton.jit
def narrow_backward_kernel(
    of_qkv, matrix, contract, slope, expand, of_inner, attended, of_mixed,
    grad, of_x, of_attended, of_outer,
    gain1, normal1, scale1, sums1, seed1, gain2, normal2, scale2, sums2, seed2,
    gelu_sums, rows, width: tl.constexpr, inner: tl.constexpr, drop: tl.constexpr,
    rescale: tl.constexpr, ABOVE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TALL
    row = numbers(first, TALL)
    # All that is read is asked for before the first of it is used.
    g = rows_at(grad, first, rows, width, TALL)
    n2 = rows_at(normal2, first, rows, width, TALL)
    n1 = rows_at(normal1, first, rows, width, TALL)
    inverse2 = tl.load(scale2 + row, row < rows, 0.0)
    inverse1 = tl.load(scale1 + row, row < rows, 0.0)
    if ABOVE:
        z = tl.zeros((TALL, width), tl.float32)
        for start in tl.static_range(0, 3 * width, width):
            z = tl.dot(
                of_qkv.load([first, start]), matrix.load([start, 0]), z, input_precision="ieee"
            )
        g += in_order(z.to(of_qkv.dtype)).to(tl.float32)
    g, a = norm_rows_backward(
        g, n2, inverse2, first, gain2, of_outer, sums2, seed2, rows, width, drop, rescale
    )
    outer = tl.zeros((TALL, width), tl.float32)
    to = gelu_sums + tl.program_id(0) * inner + tl.arange(0, WIDE)
    for start in range(0, inner, WIDE):
        b, bend, c = contract.load([0, start]), slope.load([first, start]), expand.load([start, 0])
        half = (tl.dot(a, b, input_precision="ieee") * unpacked(bend)).to(a.dtype)
        of_inner.store([first, start], half)
        outer = tl.dot(half, c, outer, input_precision="ieee")
        tl.store(to + start, over_rows(half))
    g += in_order(outer.to(a.dtype)).to(tl.float32)
    g, a = norm_rows_backward(
        g, n1, inverse1, first, gain1, of_attended, sums1, seed1, rows, width, drop, rescale
    )
    at = row[:, :, None] * width + tl.arange(0, width)[None, None, :]
    tl.store(of_x + at, g, (row < rows)[:, :, None])
    z = tl.dot(a, attended.load([0, 0]), input_precision="ieee")
    of_mixed.store([first, 0], z.to(a.dtype))


@triton.jit
def norm_rows_backward(
    g, n, inverse, first, gain, through, sums, seed, rows, width: tl.constexpr,
    drop: tl.constexpr, rescale: tl.constexpr,
):  # fmt: skip
    """What `add_norm_backward` does, for rows in the order of memory.

    Returns the gradient of the residual so, and what `through` gets as a factor of a product.
    """
    TALL: tl.constexpr = g.shape[0] * g.shape[1]
    row, col = numbers(first, TALL), tl.arange(0, width)
    dtype = through.dtype.element_ty
    to = sums + tl.program_id(0) * 3 * width + col
    tl.store(to, over_rows(as_factor((g * n).to(dtype))))
    tl.store(to + width, over_rows(as_factor(g.to(dtype))))
    g = normalise_backward(g * tl.load(gain + col)[None, None, :], n, inverse, width)
    used = g
    if drop > 0:
        of_rows, of_columns = bit_keys(seed)
        across = column_keys(width, of_columns)
        used = drop_rows(g, row[:, :, None], of_rows, across, drop, rescale)
    used = used.to(dtype)
    at = row[:, :, None] * width + col[None, None, :]
    tl.store(through + at, used, (row < rows)[:, :, None])
    a = as_factor(used)
    tl.store(to + 2 * width, over_rows(a))
    return g, a


@triton.jit
def as_factor(x):
    """Rows in the order of memory as a product wants them."""
    return tl.reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))
