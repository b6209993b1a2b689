"""Gelu together with a product, in narrow models: forth the expansion's, back the contraction's.

A program keeps a tile of the weights on the chip while rows pass by, the next of which come while
it computes. What the expansion gives is never in memory: gelu's value and its slope are.
Projections have the same form without gelu: the library's product, before which a counter is set
to zero, takes a sixth longer where rows are few.

On Hopper GPUs, in bf16, products of depth 256 (`resident`) have a form in CUDA C++, products.cu. In
Triton a program loads, multiplies, computes and stores one after the other. There two groups of
warps take turns, so that one multiplies while the other computes and stores, and a third brings
tiles. On an H200, for 16,384 and 131,072 tokens of ELECTRA-Small, in microseconds:

    expansion and gelu     38.9 -> 22.3    295 -> 149
    contraction, back      28.3 -> 22.4    194 -> 158    (19.6 and 142 with slopes fetched ahead)
    projection             15.7 -> 14.3     96 -> 91

Its gelu is in half precision; rounded to bf16, it is off by hardly more than the rounding. Its
slopes lie in memory as threads have them, so the way back has to have the same form, which the
matrix alone decides.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.cuda.runtime import WARPGROUPS, launch, tensor_map, is_supported
from electra.kernels.any_gpu.gelu import WHOLE_ROWS, gelu_stored, unpacked
from electra.kernels.hopper.gemm_layernorm import in_tiles, joins
from electra.kernels.any_gpu.launch import programs

FORTH = {"TALL": 64, "WIDE": 128, "STAGES": 4, "num_warps": 4}
BACK = {"TALL": 64, "WIDE": 128, "STAGES": 3, "num_warps": 8}
"""Rows and columns of a tile. With fewer stages a tile comes only when it is waited for."""
SQUARE = 256
"""In CUDA: the side of what a program keeps of the matrix, the whole depth by some of the width."""
SHARED = 2 * SQUARE * (SQUARE + 2 * WHOLE_ROWS) + 32 * 1024 + 128 + 1024
"""Bytes on the chip: the square, rows for each group, tiles that leave, barriers, the bias."""


def ffn_fits(contract: Tensor) -> bool:
    """Whether the feed-forward part with this matrix is computed here."""
    return joins(contract) and contract.shape[1] % 16 == 0  # bytes of a row of slopes


def expand_gelu(x: Tensor, expand: Tensor, bias: Tensor, active: Tensor, slope: Tensor) -> None:
    """What `bias_gelu` gives for x @ expand.t(), which is not rounded before.

    The slopes are in an order for `contract_backward`.
    """
    if resident(expand):
        _launch("gemm_epilogue.gemm_bias_gelu", x, expand, active, bias.float(), slope)
    else:
        _multiply(x, expand, bias, active, slope[: len(x)], gelu=True)


def product_bias(x: Tensor, matrix: Tensor, bias: Tensor, out: Tensor) -> None:
    """x @ matrix.t() + bias."""
    if resident(matrix):
        _launch("gemm_epilogue.gemm_bias", x, matrix, out, bias.to(matrix.dtype))
    else:
        _multiply(x, matrix, bias, out, out, gelu=False)


def product_back(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix."""
    if not resident(matrix.t()):
        return x @ matrix
    out = x.new_empty(len(x), matrix.shape[1])
    _launch("gemm_epilogue.gemm_grad_input", x, matrix, out)
    return out


def resident(matrix: Tensor) -> bool:
    """Whether products with this matrix (width, depth), or its transpose, are those in CUDA."""
    width, depth = matrix.shape
    whole = depth == SQUARE and width % SQUARE == 0
    return whole and matrix.dtype == torch.bfloat16 and is_supported(matrix.device)


def _launch(name: str, x: Tensor, matrix: Tensor, out: Tensor, *others: Tensor) -> None:
    rows, width = out.shape
    grid = width // SQUARE * _parts(rows, width, x.device)
    launch(name, grid, SHARED, tensor_map(x), tensor_map(matrix), tensor_map(out), *others, rows, width)


def _parts(rows: int, width: int, device: torch.device) -> int:
    """Programs in CUDA for each square of the matrix."""
    return programs(triton.cdiv(rows, WHOLE_ROWS), device, SQUARE / width)


def _multiply(
    x: Tensor, matrix: Tensor, bias: Tensor, out: Tensor, slope: Tensor, *, gelu: bool
) -> None:
    (rows, depth), width = x.shape, len(matrix)
    tall, wide = FORTH["TALL"], FORTH["WIDE"]
    across = triton.cdiv(width, wide)
    multiply_kernel[(across, programs(triton.cdiv(rows, tall), x.device, 1 / across))](
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
            z, bend = gelu_stored(z, out.dtype, slope.dtype)
            slope.store([first, start], bend)
        out.store([first, start], z.to(out.dtype))


def contract_backward(
    through: Tensor, contract: Tensor, slope: Tensor, sums: Tensor, of_inner: Tensor
) -> None:
    """From the gradient of the contracted, that of what went into gelu, whose slopes these are.

    `sums` gets the bias's gradient in `ffn_parts` parts.
    """
    if resident(contract.t()):
        _launch("gemm_epilogue.gemm_grad_gelu", through, contract, of_inner, slope, sums)
        return
    (rows, depth), width = through.shape, contract.shape[1]
    tall, wide = BACK["TALL"], BACK["WIDE"]
    contract_backward_kernel[(triton.cdiv(width, wide), len(sums))](
        in_tiles(through, tall, depth), in_tiles(contract, depth, wide),
        in_tiles(slope[:rows], tall, wide), in_tiles(of_inner, tall, wide), sums, rows, width,
        **BACK,
    )  # fmt: skip


def ffn_parts(rows: int, contract: Tensor) -> int:
    """How many parts the sums of `contract_backward` come in."""
    width, device = contract.shape[1], contract.device
    if resident(contract.t()):
        return WARPGROUPS * _parts(rows, width, device)
    across = triton.cdiv(width, BACK["WIDE"])
    return programs(triton.cdiv(rows, BACK["TALL"]), device, 1 / across)


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
