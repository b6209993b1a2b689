"""A GEMM with LayerNorm as its epilogue in CUDA C++ (`gemm_layernorm.cu`), for a width of 256 in
bf16.

The backward pass of the norm is fused with the GEMM before it, too. Each tile of rows needs the
whole weight, which limits Triton's kernel to the bandwidth of L2; here two thread blocks of a
cluster share it. On an H200, for 16,384 and 131,072 tokens, in microseconds:

    forward, depth 256      14.6 -> 13.5    99.7 -> 79.2
    forward, depth 1024     24.5 -> 23.2     164 -> 147
    backward, depth 768     25.8 -> 23.1     172 -> 140    (before: cuBLAS and a LayerNorm kernel)
    backward, depth 1024    28.4 -> 26.6     193 -> 168
"""

import torch
import triton
from torch import Tensor

from electra.kernels.any_gpu.random import drop_count, pairwise_compare, rescale
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.cuda.runtime import is_supported, launch, tensor_map

WIDTH, CLUSTER, BLOCK_M = 256, 2, 128
"""Columns of the output, thread blocks that share a weight, and rows of a tile."""
FORWARD_SHARED, BACKWARD_SHARED = 216704, 231424
"""Bytes of shared memory of each kernel."""
PARTIAL_ROWS = 16
"""Rows for each partial sum where there are few."""


def supports(hidden: int, inner: int, p: float, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of these sizes are computed here, forward and backward."""
    fits = hidden == WIDTH and inner % WIDTH == 0 and pairwise_compare(p)
    return fits and dtype == torch.bfloat16 and is_supported(device)


def gemm_layernorm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor,
    norm: tuple[Tensor, Tensor, float], seed: Tensor, p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `any_gpu.layernorm.gemm_layernorm`."""
    rows, depth = x.shape
    x_hat = torch.empty_like(residual)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    vectors = [vector.float() for vector in (bias, *norm[:2])]
    launch(
        "gemm_layernorm.gemm_layernorm", _grid(rows, x.device), FORWARD_SHARED,
        *map(tensor_map, (x, weight, residual, x_hat, out)), *vectors, rstd, seed, rows, depth,
        norm[2], drop_count(p), rescale(p),
    )  # fmt: skip
    return x_hat, rstd


def gemm_layernorm_backward(
    x: Tensor, weight: Tensor, grad: Tensor, x_hat: Tensor, rstd: Tensor, norm_weight: Tensor,
    partials: Tensor, seed: Tensor, p: float, grad_x: Tensor,
) -> Tensor:  # fmt: skip
    """As `any_gpu.layernorm.gemm_layernorm_backward`."""
    (rows, depth), grad_residual = x.shape, torch.empty_like(grad)
    launch(
        "gemm_layernorm.gemm_layernorm_backward", _grid(rows, x.device), BACKWARD_SHARED,
        *map(tensor_map, (x, weight, grad, x_hat, grad_residual, grad_x)), norm_weight.float(),
        rstd, partials, seed, rows, depth, len(partials), drop_count(p), rescale(p),
    )  # fmt: skip
    return grad_residual


def num_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `gemm_layernorm_backward` writes."""
    return num_programs(triton.cdiv(rows, PARTIAL_ROWS), device, 1)


def _grid(rows: int, device: torch.device) -> int:
    """Thread blocks."""
    return CLUSTER * num_programs(triton.cdiv(rows, CLUSTER * BLOCK_M), device, 1 / CLUSTER)
