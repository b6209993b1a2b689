"""The linear maps of a layer in Triton, for narrow models on Hopper GPUs.

A program keeps a tile of the weight in shared memory while rows stream by. The output of the up-
projection never goes to memory: gelu's value and its derivative do. The QKV projection has the same
kernel without GELU: cuBLAS, which clears a counter first, takes a sixth longer for few rows. Where
LayerNorm follows, a program holds whole rows of the output, which does not go to memory either.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.kernels.any_gpu.gemm import (
    dequantize_derivative,
    gelu_stored,
    gemm_grad_input,
    gemm_layernorm_backward,
    layernorm_partials,
    layernorm_rows,
)
from electra.kernels.any_gpu.random import column_keys, drop_count, drop_rows, rescale, seed_keys
from electra.kernels.any_gpu.reduce import num_programs, pdl_launch_dependents, pdl_supported

__all__ = [
    "gelu_partials",
    "gemm_bias",
    "gemm_bias_gelu",
    "gemm_gelu_backward",
    "gemm_grad_input",
    "gemm_layernorm",
    "gemm_layernorm_backward",
    "layernorm_partials",
    "supports",
]


GELU = {"BLOCK_M": 64, "BLOCK_N": 128, "STAGES": 4, "num_warps": 4}
GELU_BACKWARD = {"BLOCK_M": 64, "BLOCK_N": 128, "STAGES": 3, "num_warps": 8}
"""Rows and columns of a tile. With fewer stages loads are not prefetched."""
BLOCK_M, BLOCK_BYTES = 128, 128
"""Rows of a tile, and bytes of each row, and of each row of the weight, that are loaded at once."""
WIDE = {"num_warps": 16, "num_stages": 4}
NARROW = {"num_warps": 8, "num_stages": 3}
WIDTHS = (16, 32, 64, 128, 256)
HOPPER = 9
"""Compute capability of GPUs with TMA and 192 KiB of shared memory for a wide tile."""
GROUP = tl.constexpr(4)


def supports(hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of these sizes run on this tier; the CPU stands for Triton's interpreter."""
    # In fp32 threads compute the matmuls, and would need too many registers.
    able = device.type != "cuda" or (
        dtype.itemsize == 2 and torch.cuda.get_device_capability(device)[0] == HOPPER
    )
    return able and hidden in WIDTHS and inner % 16 == 0  # TMA copies rows of 16 bytes


def gemm_bias(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """As `any_gpu.gemm.gemm_bias`."""
    _gemm(x, weight, bias, out, out, gelu=False)


def gemm_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, gelu_out: Tensor, gelu_grad: Tensor
) -> None:
    """As `any_gpu.gemm.gemm_bias_gelu`, without rounding the input of the GELU."""
    _gemm(x, weight, bias, gelu_out, gelu_grad[: len(x)], gelu=True)


def gemm_gelu_backward(
    grad: Tensor, weight: Tensor, gelu_grad: Tensor, partials: Tensor, out: Tensor
) -> None:
    """As `any_gpu.gemm.gemm_gelu_backward`."""
    (rows, depth), width = grad.shape, weight.shape[1]
    block_m, block_n = GELU_BACKWARD["BLOCK_M"], GELU_BACKWARD["BLOCK_N"]
    gemm_gelu_backward_kernel[(triton.cdiv(width, block_n), len(partials))](
        descriptor(grad, block_m, depth), descriptor(weight, depth, block_n),
        descriptor(gelu_grad[:rows], block_m, block_n), descriptor(out, block_m, block_n),
        partials, rows, width, **GELU_BACKWARD,
    )  # fmt: skip


def gelu_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `gemm_gelu_backward` writes."""
    across = triton.cdiv(width, GELU_BACKWARD["BLOCK_N"])
    return num_programs(triton.cdiv(rows, GELU_BACKWARD["BLOCK_M"]), device, 1 / across)


def _gemm(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, gelu_grad: Tensor, *, gelu: bool
) -> None:
    (rows, depth), width = x.shape, len(weight)
    block_m, block_n = GELU["BLOCK_M"], GELU["BLOCK_N"]
    across = triton.cdiv(width, block_n)
    grid = (across, num_programs(triton.cdiv(rows, block_m), x.device, 1 / across))
    gemm_bias_gelu_kernel[grid](
        descriptor(x, block_m, depth), descriptor(weight, block_n, depth), bias,
        descriptor(out, block_m, block_n), descriptor(gelu_grad, block_m, block_n), rows, width,
        gelu, **GELU,
    )  # fmt: skip


@triton.jit
def gemm_bias_gelu_kernel(
    x, weight, bias, out, gelu_grad, rows, width, GELU: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program keeps the weight of some columns and loops over tiles of rows."""
    start = tl.program_id(0) * BLOCK_N
    col = start + tl.arange(0, BLOCK_N)
    offset = tl.load(bias + col, col < width, 0.0).to(tl.float32)[None, :]
    b = weight.load([start, 0])
    step = tl.num_programs(1) * BLOCK_M
    for first in tl.range(tl.program_id(1) * BLOCK_M, rows, step, num_stages=STAGES):
        z = tl.dot(x.load([first, 0]), b.T, input_precision="ieee") + offset
        if GELU:
            z, derivative = gelu_stored(z, out.dtype, gelu_grad.dtype)
            gelu_grad.store([first, start], derivative)
        out.store([first, start], z.to(out.dtype))


@triton.jit
def gemm_gelu_backward_kernel(
    grad, weight, gelu_grad, out, partials, rows, width, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """A program keeps the weight and the sums of some columns and loops over tiles of rows."""
    start = tl.program_id(0) * BLOCK_N
    b = weight.load([0, start])
    grad_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    step = tl.num_programs(1) * BLOCK_M
    # Set on the loop, so that it holds for the derivatives too, which are no operand of the matmul
    for first in tl.range(tl.program_id(1) * BLOCK_M, rows, step, num_stages=STAGES):
        # Both are zeros beyond the end
        a, derivative = grad.load([first, 0]), gelu_grad.load([first, start])
        g = tl.dot(a, b, input_precision="ieee") * dequantize_derivative(derivative)
        out.store([first, start], g.to(grad.dtype))
        grad_bias += g
    col = start + tl.arange(0, BLOCK_N)
    tl.store(partials + tl.program_id(1) * width + col, tl.sum(grad_bias, 0), col < width)


def gemm_layernorm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor,
    norm: tuple[Tensor, Tensor, float], seed: Tensor, p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `any_gpu.gemm.gemm_layernorm`."""
    (rows, depth), width = x.shape, weight.shape[0]
    x_hat = torch.empty_like(residual)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    block_k = BLOCK_BYTES // x.element_size()
    operands = descriptor(x, BLOCK_M, block_k), descriptor(weight, width, block_k)
    tensors = (*operands, bias, residual, norm[0], norm[1], out, x_hat, rstd, seed)
    gemm_layernorm_kernel[(triton.cdiv(rows, BLOCK_M),)](
        *tensors, rows, width, depth, norm[2], drop_count(p), rescale(p), BLOCK_M, block_k,
        pdl_supported(x.device), **(WIDE if width == 256 else NARROW),
    )  # fmt: skip
    return x_hat, rstd


def descriptor(x: Tensor, block_m: int, block_n: int) -> TensorDescriptor:
    """`x` in tiles for TMA: reads beyond its end give zeros, writes are dropped."""
    return TensorDescriptor.from_tensor(x, [block_m, block_n])


@triton.jit
def gemm_layernorm_kernel(
    x, weight_matrix, bias, residual, weight, shift, out, x_hat, rstd, seed, rows,
    width: tl.constexpr, depth: tl.constexpr, eps, drop: tl.constexpr, rescale: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    pdl_launch_dependents(PDL)
    first = tl.program_id(0) * BLOCK_M
    z = tl.zeros((BLOCK_M, width), tl.float32)
    for start in range(0, depth, BLOCK_K):  # reads beyond rows and depth give zeros
        a, b = x.load([first, start]), weight_matrix.load([0, start])
        z = tl.dot(a, b.T, z, input_precision="ieee")
    residual_rows = rows_at(residual, first, rows, width, BLOCK_M)
    norm_rows(
        z, residual_rows, first, bias, weight, shift, out, x_hat, rstd, seed, rows, width, eps,
        drop,
        rescale,
    )  # fmt: skip


@triton.jit
def norm_rows(
    z, residual_rows, first, bias, weight, shift, out, x_hat, rstd, seed, rows, width: tl.constexpr,
    eps, drop: tl.constexpr, rescale: tl.constexpr,
):  # fmt: skip
    """`add_layernorm` for a tile of a GEMM and the residual; returns what `out` gets.

    The residual is from `rows_at`, loaded after the GEMM: so the compiler converts the half
    precision result to the layout of memory once, instead of converting three tensors.
    """
    BLOCK_M: tl.constexpr = z.shape[0]
    z = memory_layout(z.to(out.dtype.element_ty)).to(tl.float32)
    row, col = row_numbers(first, BLOCK_M), tl.arange(0, width)[None, None, :]
    at = row[:, :, None] * width + col
    here = (row < rows)[:, :, None]
    offset = tl.load(bias + col).to(tl.float32)
    gain, shift_row = tl.load(weight + col), tl.load(shift + col)
    z += offset
    if drop > 0:
        row_key, column_key = seed_keys(seed)
        across = column_keys(width, column_key)
        z = drop_rows(z, row[:, :, None], row_key, across, drop, rescale)
    z, inv_std = layernorm_rows(z + residual_rows, True, width, eps)
    tl.store(x_hat + at, z, here)
    tl.store(rstd + row, inv_std, row < rows)
    z = (z * gain + shift_row).to(out.dtype.element_ty)
    tl.store(out + at, z, here)
    return z


@triton.jit
def rows_at(x, first, rows, width: tl.constexpr, BLOCK_M: tl.constexpr):
    """Rows from `first` on, zeros beyond the last, in the layout of memory."""
    row = row_numbers(first, BLOCK_M)
    at = row[:, :, None] * width + tl.arange(0, width)[None, None, :]
    return tl.load(x + at, (row < rows)[:, :, None], 0.0).to(tl.float32)


@triton.jit
def row_numbers(first, BLOCK_M: tl.constexpr):
    """Row numbers of a tile in the layout of memory: (BLOCK_M / GROUP, GROUP)."""
    return first + tl.arange(0, BLOCK_M // GROUP)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def memory_layout(x):
    return tl.reshape(x, (x.shape[0] // GROUP, GROUP, x.shape[1]))
