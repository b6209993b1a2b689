"""A product and `add_norm` behind it at once: what lies between them never lies in memory.

For narrow models, where a program has whole rows of the product, and needs no other one's numbers
for their means.

On Hopper GPUs, in bf16, rows of 256 (`shares`) have a form in CUDA C++, join.cu, and there the way
back through a norm goes together with the product before it, too. Each tile of rows needs the whole
matrix, which limits Triton's kernel: the second cache does not deliver more. There two programs
share it. On an H200, for 16,384 and 131,072 tokens, in microseconds:

    forth, depth 256     14.6 -> 13.5    99.7 -> 79.2
    forth, depth 1024    24.5 -> 23.2     164 -> 147
    back, depth 768      25.8 -> 23.1     172 -> 140    (before: the library's product, and norm.cu)
    back, depth 1024     28.4 -> 26.6     193 -> 168
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.kernels.cuda.runtime import launch, tensor_map, is_supported
from electra.kernels.any_gpu.dropout import (
    bit_keys,
    by_halves,
    column_keys,
    drop_count,
    drop_rows,
    rescale,
)
from electra.kernels.any_gpu.launch import call_next, early, programs
from electra.kernels.any_gpu.layernorm import add_norm_backward, normalise

TALL, DEEP = 128, 128
"""Rows of a tile, and bytes of each of them, and of the matrix's, that come to it at once."""
WIDE = {"num_warps": 16, "num_stages": 4}
NARROW = {"num_warps": 8, "num_stages": 3}
WIDTHS = (16, 32, 64, 128, 256)
HOPPER = 9
"""Devices with shared memory for a wide tile, 192 KiB, that copy tiles without their threads."""
GROUP = tl.constexpr(4)
SQUARE, CLUSTER = 256, 2
FORTH_SHARED, BACK_SHARED = 216704, 231424
"""In CUDA (join.cu): the width, programs that share a matrix, and bytes on the chip."""


def joins(matrix: Tensor) -> bool:
    """Whether a product with this matrix is computed here."""
    (width, depth), size = matrix.shape, matrix.element_size()
    # In fp32 threads compute products, and would need more registers than there are.
    able = not matrix.is_cuda or (
        size == 2 and torch.cuda.get_device_capability(matrix.device)[0] == HOPPER
    )
    return able and width in WIDTHS and depth * size % 16 == 0  # a copy's rows: whole 16 bytes


def product_norm(
    x: Tensor, matrix: Tensor, bias: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor, float],
    seed: Tensor, p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `add_norm` gives for x @ matrix.t()."""
    (rows, depth), width = x.shape, matrix.shape[0]
    normal = torch.empty_like(residual)
    scale = torch.empty(rows, dtype=torch.float32, device=x.device)
    if shares(matrix, p):
        vectors = [vector.float() for vector in (bias, *norm[:2])]
        launch(
            "gemm_layernorm.gemm_layernorm", _grid(rows, x.device), FORTH_SHARED,
            *map(tensor_map, (x, matrix, residual, normal, out)), *vectors, scale, seed, rows, depth,
            norm[2], drop_count(p), rescale(p),
        )  # fmt: skip
        return normal, scale
    deep = DEEP // x.element_size()
    factors = in_tiles(x, TALL, deep), in_tiles(matrix, width, deep)
    tensors = (*factors, bias, residual, norm[0], norm[1], out, normal, scale, seed)
    product_norm_kernel[(triton.cdiv(rows, TALL),)](
        *tensors, rows, width, depth, norm[2], drop_count(p), rescale(p), TALL, deep,
        early(x.device), **(WIDE if width == 256 else NARROW),
    )  # fmt: skip
    return normal, scale


def product_norm_backward(
    x: Tensor, matrix: Tensor, grad: Tensor, normal: Tensor, scale: Tensor, weight: Tensor,
    sums: Tensor, seed: Tensor, p: float, through: Tensor,
) -> Tensor:  # fmt: skip
    """What `add_norm_backward` gives for grad + x @ matrix, which need not be kept."""
    if not shares(matrix.t(), p):
        return add_norm_backward(
            grad.addmm_(x, matrix), normal, scale, weight, sums, seed, p, through
        )
    (rows, depth), residual = x.shape, torch.empty_like(grad)
    launch(
        "gemm_layernorm.gemm_layernorm_backward", _grid(rows, x.device), BACK_SHARED,
        *map(tensor_map, (x, matrix, grad, normal, residual, through)), weight.float(), scale, sums,
        seed, rows, depth, len(sums), drop_count(p), rescale(p),
    )  # fmt: skip
    return residual


def shares(matrix: Tensor, p: float) -> bool:
    """Whether products with this matrix (width, depth), or its transpose, are those in CUDA."""
    width, depth = matrix.shape
    whole = width == SQUARE and depth % SQUARE == 0 and by_halves(p)
    return whole and matrix.dtype == torch.bfloat16 and is_supported(matrix.device)


def _grid(rows: int, device: torch.device) -> int:
    """Programs in CUDA."""
    return CLUSTER * programs(triton.cdiv(rows, CLUSTER * TALL), device, 1 / CLUSTER)


def in_tiles(x: Tensor, tall: int, wide: int) -> TensorDescriptor:
    """`x` as a kernel reads or writes it: beyond its end it reads zeros, and writes nothing."""
    return TensorDescriptor.from_tensor(x, [tall, wide])


@triton.jit
def product_norm_kernel(
    x, matrix, bias, residual, weight, shift, out, normal, scale, seed, rows,
    width: tl.constexpr, depth: tl.constexpr, eps, drop: tl.constexpr, rescale: tl.constexpr,
    TALL: tl.constexpr, DEEP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    call_next(EARLY)
    first = tl.program_id(0) * TALL
    z = tl.zeros((TALL, width), tl.float32)
    for start in range(0, depth, DEEP):  # beyond rows and depth come zeros
        a, b = x.load([first, start]), matrix.load([0, start])
        z = tl.dot(a, b.T, z, input_precision="ieee")
    before = rows_at(residual, first, rows, width, TALL)
    norm_rows(
        z, before, first, bias, weight, shift, out, normal, scale, seed, rows, width, eps, drop,
        rescale,
    )  # fmt: skip


@triton.jit
def norm_rows(
    z, before, first, bias, weight, shift, out, normal, scale, seed, rows, width: tl.constexpr,
    eps, drop: tl.constexpr, rescale: tl.constexpr,
):  # fmt: skip
    """What `add_norm` does, for a tile of a product and the residual; returns what `out` gets.

    The residual is from `rows_at`, read after the product: so the compiler brings the product, in
    half precision, into the order of memory, and does the rest in this order. Otherwise it would
    bring three tensors from one order into the other.
    """
    TALL: tl.constexpr = z.shape[0]
    z = in_order(z.to(out.dtype.element_ty)).to(tl.float32)
    row, col = numbers(first, TALL), tl.arange(0, width)[None, None, :]
    at = row[:, :, None] * width + col
    here = (row < rows)[:, :, None]
    offset = tl.load(bias + col).to(tl.float32)
    gain, move = tl.load(weight + col), tl.load(shift + col)
    z += offset
    if drop > 0:
        of_rows, of_columns = bit_keys(seed)
        across = column_keys(width, of_columns)
        z = drop_rows(z, row[:, :, None], of_rows, across, drop, rescale)
    z, inverse = normalise(z + before, True, width, eps)
    tl.store(normal + at, z, here)
    tl.store(scale + row, inverse, row < rows)
    z = (z * gain + move).to(out.dtype.element_ty)
    tl.store(out + at, z, here)
    return z


@triton.jit
def rows_at(x, first, rows, width: tl.constexpr, TALL: tl.constexpr):
    """Rows from `first` on, zeros beyond the last, in the order of memory."""
    row = numbers(first, TALL)
    at = row[:, :, None] * width + tl.arange(0, width)[None, None, :]
    return tl.load(x + at, (row < rows)[:, :, None], 0.0).to(tl.float32)


@triton.jit
def numbers(first, TALL: tl.constexpr):
    """Of the rows of a tile, (TALL / GROUP, GROUP) of them, as all that is in memory's order."""
    return first + tl.arange(0, TALL // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def in_order(x):
    return tl.reshape(x, (x.shape[0] // GROUP, GROUP, x.shape[1]))
