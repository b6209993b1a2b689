"""Gelu together with a product, in narrow models: forth the expansion's, back the contraction's.

A program keeps a tile of the weights on the chip while rows pass by, the next of which come while
it computes. What the expansion gives is never in memory: gelu's value and its slope are.
Projections have the same form without gelu: the library's product, before which a counter is set
to zero, takes a sixth longer where rows are few.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.gelu import gelu_at, packed, unpacked
from electra.models.kernels.join import in_tiles, joins
from electra.models.kernels.launch import programs

FORTH = {"TALL": 64, "WIDE": 128, "STAGES": 4, "num_warps": 4}
BACK = {"TALL": 64, "WIDE": 128, "STAGES": 3, "num_warps": 8}
"""Rows and columns of a tile. With fewer stages a tile comes only when it is waited for."""


def ffn_fits(contract: Tensor) -> bool:
    """Whether the feed-forward part with this matrix is computed here."""
    return joins(contract) and contract.shape[1] % 16 == 0  # bytes of a row of slopes


def expand_gelu(x: Tensor, expand: Tensor, bias: Tensor, active: Tensor, slope: Tensor) -> None:
    """What `bias_gelu` gives for x @ expand.t(), which is not rounded before."""
    _multiply(x, expand, bias, active, slope, gelu=True)


def product_bias(x: Tensor, matrix: Tensor, bias: Tensor, out: Tensor) -> None:
    """x @ matrix.t() + bias."""
    _multiply(x, matrix, bias, out, out, gelu=False)


def _multiply(
    x: Tensor, matrix: Tensor, bias: Tensor, out: Tensor, slope: Tensor, *, gelu: bool
) -> None:
    (rows, depth), width = x.shape, len(matrix)
    tall, wide = FORTH["TALL"], FORTH["WIDE"]
    multiply_kernel[(triton.cdiv(width, wide), ffn_parts(rows, width, x.device))](
        in_tiles(x, tall, depth), in_tiles(matrix, wide, depth), bias, in_tiles(out, tall, wide),
        in_tiles(slope, tall, wide), rows, width, gelu, **FORTH,
    )  # fmt: skip


@triton.jit
def multiply_kernel(
    x, matrix, bias, out, slope, rows, width, GELU: tl.constexpr, TALL: tl.constexpr,
    WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Some columns, for which the program keeps the weights, times some rows after others."""
    start = tl.program_id(0) * WIDE
    col = start + tl.arange(0, WIDE)
    offset = tl.load(bias + col, col < width, 0.0).to(tl.float32)[None, :]
    b = matrix.load([start, 0])
    step = tl.num_programs(1) * TALL
    for first in tl.range(tl.program_id(1) * TALL, rows, step, num_stages=STAGES):
        z = tl.dot(x.load([first, 0]), b.T, input_precision="ieee") + offset
        if GELU:
            z, bend = gelu_at(z)
            slope.store([first, start], packed(bend, slope.dtype))
        out.store([first, start], z.to(out.dtype))


def contract_backward(
    through: Tensor, contract: Tensor, slope: Tensor, sums: Tensor, of_inner: Tensor
) -> None:
    """From the gradient of the contracted, that of what went into gelu, whose slopes these are.

    `sums` gets the bias's gradient in `ffn_parts` parts.
    """
    (rows, depth), width = through.shape, contract.shape[1]
    tall, wide = BACK["TALL"], BACK["WIDE"]
    contract_backward_kernel[(triton.cdiv(width, wide), len(sums))](
        in_tiles(through, tall, depth), in_tiles(contract, depth, wide),
        in_tiles(slope, tall, wide), in_tiles(of_inner, tall, wide), sums, rows, width, **BACK,
    )  # fmt: skip


def ffn_parts(rows: int, width: int, device: torch.device) -> int:
    """Programs for each tile of columns, and so how many parts the sums of `contract_backward` come
    in; `width` is the wide one."""
    tiles, across = triton.cdiv(rows, BACK["TALL"]), triton.cdiv(width, BACK["WIDE"])
    return programs(tiles, device, 1 / across)


@triton.jit
def contract_backward_kernel(
    through, contract, slope, of_inner, sums, rows, width, TALL: tl.constexpr, WIDE: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """Some columns, for which the program keeps weights and sums, times some rows after others."""
    start = tl.program_id(0) * WIDE
    b = contract.load([0, start])
    of_bias = tl.zeros((TALL, WIDE), tl.float32)
    step = tl.num_programs(1) * TALL
    # Told here, where it holds for the slopes too, which are no factor of a product
    for first in tl.range(tl.program_id(1) * TALL, rows, step, num_stages=STAGES):
        a, bend = through.load([first, 0]), slope.load([first, start])  # beyond the end: zeros
        g = tl.dot(a, b, input_precision="ieee") * unpacked(bend)
        of_inner.store([first, start], g.to(through.dtype))
        of_bias += g
    col = start + tl.arange(0, WIDE)
    tl.store(sums + tl.program_id(1) * width + col, tl.sum(of_bias, 0), col < width)
