"""GEMMs with bias and GELU as their epilogue, in Triton, for narrow models on Hopper GPUs.

A program keeps a tile of the weight in shared memory while rows stream by. The output of the up-
projection never goes to memory: gelu's value and its derivative do. The QKV projection has the same
kernel without GELU: cuBLAS, which clears a counter first, takes a sixth longer for few rows. The
CUDA C++ form for a depth of 256 is `electra.kernels.cuda.gemm_epilogue`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.gelu import dequantize_derivative, gelu_stored, gemm_grad_input
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.hopper.gemm_layernorm import descriptor, supports

__all__ = [
    "gemm_bias",
    "gemm_bias_gelu",
    "gemm_gelu_backward",
    "gemm_grad_input",
    "num_partials",
    "supports",
]

FORWARD = {"BLOCK_M": 64, "BLOCK_N": 128, "STAGES": 4, "num_warps": 4}
BACKWARD = {"BLOCK_M": 64, "BLOCK_N": 128, "STAGES": 3, "num_warps": 8}
"""Rows and columns of a tile. With fewer stages loads are not prefetched."""


def gemm_bias(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """As `any_gpu.gelu.gemm_bias`."""
    _gemm(x, weight, bias, out, out, gelu=False)


def gemm_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, gelu_out: Tensor, gelu_grad: Tensor
) -> None:
    """As `any_gpu.gelu.gemm_bias_gelu`, without rounding the input of the GELU."""
    _gemm(x, weight, bias, gelu_out, gelu_grad[: len(x)], gelu=True)


def gemm_gelu_backward(
    grad: Tensor, weight: Tensor, gelu_grad: Tensor, partials: Tensor, out: Tensor
) -> None:
    """As `any_gpu.gelu.gemm_gelu_backward`."""
    (rows, depth), width = grad.shape, weight.shape[1]
    block_m, block_n = BACKWARD["BLOCK_M"], BACKWARD["BLOCK_N"]
    gemm_gelu_backward_kernel[(triton.cdiv(width, block_n), len(partials))](
        descriptor(grad, block_m, depth), descriptor(weight, depth, block_n),
        descriptor(gelu_grad[:rows], block_m, block_n), descriptor(out, block_m, block_n),
        partials, rows, width, **BACKWARD,
    )  # fmt: skip


def num_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `gemm_gelu_backward` writes."""
    across = triton.cdiv(width, BACKWARD["BLOCK_N"])
    return num_programs(triton.cdiv(rows, BACKWARD["BLOCK_M"]), device, 1 / across)


def _gemm(
    x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, gelu_grad: Tensor, *, gelu: bool
) -> None:
    (rows, depth), width = x.shape, len(weight)
    block_m, block_n = FORWARD["BLOCK_M"], FORWARD["BLOCK_N"]
    across = triton.cdiv(width, block_n)
    grid = (across, num_programs(triton.cdiv(rows, block_m), x.device, 1 / across))
    gemm_bias_gelu_kernel[grid](
        descriptor(x, block_m, depth), descriptor(weight, block_n, depth), bias,
        descriptor(out, block_m, block_n), descriptor(gelu_grad, block_m, block_n), rows, width,
        gelu, **FORWARD,
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
