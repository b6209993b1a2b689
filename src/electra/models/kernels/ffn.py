"""The feed-forward part of narrow models, whose products take less time than what they write.

In the narrowest it is one kernel forth and one back. A program has whole rows on the chip, and goes
through the inner width piece by piece, each of which is expanded and contracted at once. What lies
in memory of the inner width is what others read: gelu's value, a factor of a gradient, and its
slope, with which the way back need not compute gelu again.
In others the way back goes through the contraction and gelu at once. The same for the way forth was
no faster than the library's product with `bias_gelu` after it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.dropout import threshold
from electra.models.kernels.gelu import gelu_at
from electra.models.kernels.join import in_tiles, joins, norm_rows
from electra.models.kernels.launch import programs
from electra.models.kernels.sums import column_sums

NARROWEST = 64
"""Up to this width the part is one kernel."""
FORTH = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 128}
BACK = {"TALL": 64, "WIDE": 128, "num_warps": 4, "num_stages": 2}
"""Rows of its tiles, and columns of a piece of the inner width."""
DEEPEST = 256
"""Up to this width a tile of the weights stays whole on the chip while rows pass by."""
TILE = {"TALL": 64, "WIDE": 128, "num_warps": 8, "num_stages": 1, "maxnreg": 128}
GROUP = tl.constexpr(16)
"""Rows that sums are kept for in registers; a multiple of the rows that a block of threads stores
at once, so that adding up takes no exchange between threads."""


def ffn_fits(contract: Tensor) -> bool:
    """Whether the part with this second matrix is one kernel."""
    width, inner = contract.shape
    whole = all(inner % way["WIDE"] == 0 for way in (FORTH, BACK))
    return joins(contract) and width <= NARROWEST and whole


def ffn_forward(
    x: Tensor, expand: Tensor, b_expand: Tensor, contract: Tensor, b_contract: Tensor,
    norm: tuple[Tensor, Tensor, float], seed: Tensor, p: float,
    active: Tensor, slope: Tensor, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `add_norm` gives for active @ contract.t() and x, where `active` gets
    gelu(x @ expand.t() + b_expand), and `slope` the derivative of this gelu."""
    (rows, width), inner = x.shape, len(expand)
    tall, wide = FORTH["TALL"], FORTH["WIDE"]
    normal = torch.empty_like(x)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    ffn_forward_kernel[(triton.cdiv(rows, tall),)](
        in_tiles(x, tall, width), in_tiles(expand, wide, width), in_tiles(contract, width, wide),
        in_tiles(active, tall, wide), in_tiles(slope, tall, wide), b_expand, b_contract, x, norm[0],
        norm[1], out, normal, scale, seed, rows, width, inner, norm[2], threshold(p), 1 / (1 - p),
        **FORTH,
    )  # fmt: skip
    return normal, scale


def ffn_backward(
    through: Tensor, contract: Tensor, slope: Tensor, expand: Tensor, sums: Tensor,
    of_inner: Tensor, grad: Tensor,
) -> None:  # fmt: skip
    """From the gradient of the contracted, that of what went into gelu; to `grad` that of what was
    expanded is added, and `sums` gets that of the first bias in `ffn_parts` parts."""
    inner, width = expand.shape
    tall, wide = BACK["TALL"], BACK["WIDE"]
    ffn_backward_kernel[(len(sums),)](
        in_tiles(through, tall, width), in_tiles(contract, width, wide),
        in_tiles(slope, tall, wide), in_tiles(expand, wide, width),
        in_tiles(of_inner, tall, wide), in_tiles(grad, tall, width), sums, width, inner, **BACK,
    )  # fmt: skip


def ffn_parts(rows: int) -> int:
    """How many parts the sums of `ffn_backward` come in."""
    return triton.cdiv(rows, BACK["TALL"])


@triton.jit
def ffn_forward_kernel(
    x, expand, contract, active, slope, b_expand, b_contract, residual, weight, shift, out, normal,
    scale, seed, rows, width: tl.constexpr, inner: tl.constexpr, eps, drop: tl.constexpr,
    rescale: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TALL
    col = tl.arange(0, WIDE)
    a = x.load([first, 0])
    outer = tl.zeros((TALL, width), tl.float32)
    for start in range(0, inner, WIDE):
        offset = tl.load(b_expand + start + col)[None, :]
        b, c = expand.load([start, 0]), contract.load([0, start])
        value, bend = gelu_at(tl.dot(a, b.T, input_precision="ieee") + offset)
        value = value.to(x.dtype)
        slope.store([first, start], bend.to(x.dtype))
        outer = tl.dot(value, c.T, outer, input_precision="ieee")
        # After the product: a copy waits until the one before has left shared memory.
        active.store([first, start], value)
    norm_rows(
        outer, first, b_contract, residual, weight, shift, out, normal, scale, seed, rows, width,
        eps, drop, rescale,
    )  # fmt: skip


@triton.jit
def ffn_backward_kernel(
    through, contract, slope, expand, of_inner, grad, sums, width: tl.constexpr,
    inner: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * TALL
    to = sums + tl.program_id(0) * inner + tl.arange(0, WIDE)
    a = through.load([first, 0])
    outer = tl.zeros((TALL, width), tl.float32)
    for start in range(0, inner, WIDE):
        b, bend, c = contract.load([0, start]), slope.load([first, start]), expand.load([start, 0])
        g = tl.dot(a, b, input_precision="ieee") * bend.to(tl.float32)
        half = g.to(through.dtype)
        of_inner.store([first, start], half)
        outer = tl.dot(half, c, outer, input_precision="ieee")
        tl.store(to + start, tl.sum(g, 0))
    outer += grad.load([first, 0]).to(tl.float32)
    grad.store([first, 0], outer.to(through.dtype))


def shallow(depth: int) -> bool:
    """Whether `contract_backward` is for models of this width."""
    return depth <= DEEPEST


def contract_backward(
    through: Tensor, weight: Tensor, inner: Tensor, bias: Tensor, sums: Tensor, of_inner: Tensor
) -> None:
    """From the gradient of the contracted, that of `inner`, whose gelu(inner + bias) it was.

    `sums` gets the bias's gradient in `contract_parts` parts.
    """
    (rows, depth), width = through.shape, weight.shape[1]
    grid = (triton.cdiv(width, TILE["WIDE"]), len(sums))
    tensors = (through, weight, inner, bias, of_inner, sums)
    deep = max(16, triton.next_power_of_2(depth))
    contract_backward_kernel[grid](*tensors, rows, width, depth, DEEP=deep, **TILE)


def contract_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `contract_backward` come in; `width` is the wide one."""
    tiles, across = triton.cdiv(rows, TILE["TALL"]), triton.cdiv(width, TILE["WIDE"])
    # Two programs on a processor: one multiplies while the other computes gelu.
    return programs(tiles, device, 2 / across)


@triton.jit
def contract_backward_kernel(
    through, weight, inner, bias, of_inner, sums, rows, width: tl.constexpr,
    depth: tl.constexpr, DEEP: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some columns, for which the program keeps weights and sums, times some rows after others.

    Rows are (GROUP, TALL / GROUP), and `inner` is read after the product: so the compiler brings
    the product, in half precision, into the order in which memory is read, and does the rest once,
    in this order. Otherwise it would compute gelu twice, in two orders.
    """
    deep = tl.arange(0, DEEP)
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    # Widths are known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width % WIDE == 0)
    within = (deep < depth) | (depth == DEEP)
    offset = tl.load(bias + col, inside, 0.0)[None, None, :]
    b = weight + deep[:, None] * width + col[None, :]
    b = tl.load(b, within[:, None] & inside[None, :], 0.0)
    of_bias = tl.zeros((GROUP, WIDE), tl.float32)
    each = tl.arange(0, TALL)
    line = tl.arange(0, GROUP)[:, None] * (TALL // GROUP) + tl.arange(0, TALL // GROUP)[None, :]
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + each
        a = through + row[:, None] * depth + deep[None, :]
        a = tl.load(a, (row < rows)[:, None] & within[None, :], 0.0)
        g = tl.dot(a, b, input_precision="ieee")
        g = tl.reshape(g.to(inner.dtype.element_ty), (GROUP, TALL // GROUP, WIDE))
        row = (first + line)[:, :, None]
        here = (row < rows) & inside[None, None, :]
        to = row * width + col[None, None, :]
        z = tl.load(inner + to, here, 0.0).to(tl.float32) + offset
        _, slope = gelu_at(z)
        g = g.to(tl.float32) * slope
        tl.store(of_inner + to, g, here)
        of_bias += tl.sum(g, 1)
    tl.store(sums + tl.program_id(1) * width + col, column_sums(of_bias), inside)
