"""The linear maps of a layer in CUDA C++, for a hidden size of 256 in bf16.

On an H200, against Triton, for 16,384 and 131,072 tokens of ELECTRA-Small, in microseconds:

    QKV projection              15.7 -> 14.3      96 -> 91
    up-projection and GELU      38.9 -> 22.3     295 -> 149
    its backward pass           28.3 -> 19.6     194 -> 142
    LayerNorm, depth 256        14.6 -> 13.5    99.7 -> 79.2
    LayerNorm, depth 1024       24.5 -> 23.2     164 -> 147
    its backward, depth 768     25.8 -> 23.1     172 -> 140    (against cuBLAS and LayerNorm)
    its backward, depth 1024    28.4 -> 26.6     193 -> 168

`gemm_epilogue.cu`: in Triton a program loads, multiplies, computes and stores one after the other.
Here two warpgroups ping-pong, so that one multiplies while the other computes and stores, and a
third issues loads. GELU is computed in fp16. Its derivatives are stored in the order in which
threads hold them, so forward and backward must be of the same tier.

`gemm_layernorm.cu`: LayerNorm after a GEMM, and in the backward pass before one. Each tile of rows
needs the whole weight, which limits Triton's kernel to the bandwidth of L2; here two thread blocks
of a cluster share it.
"""

import torch
import triton
from torch import Tensor

from electra.kernels.any_gpu.gemm import TILE_ROWS
from electra.kernels.any_gpu.random import drop_count, pairwise_compare, rescale
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.cuda.runtime import WARPGROUPS, is_supported, launch, tensor_map

DEPTH = 256
"""Depth of the GEMM, and columns of the weight that a thread block keeps in shared memory."""
SHARED = 2 * DEPTH * (DEPTH + 2 * TILE_ROWS) + 32 * 1024 + 128 + 1024
"""Bytes of shared memory: the weight, rows for each warpgroup, output tiles, barriers, the bias."""
WIDTH, CLUSTER, BLOCK_M = 256, 2, 128
"""Columns of the output, thread blocks that share a weight, and rows of a tile."""
FORWARD_SHARED, BACKWARD_SHARED = 216704, 231424
"""Bytes of shared memory of each kernel."""
PARTIAL_ROWS = 16
"""Rows for each partial sum where there are few."""


def supports(hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of these sizes are computed here, forward and backward."""
    fits = hidden == DEPTH and inner % DEPTH == 0
    return fits and dtype == torch.bfloat16 and is_supported(device)


def gemm_bias(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """As `any_gpu.gemm.gemm_bias`."""
    _launch("gemm_epilogue.gemm_bias", x, weight, out, bias.to(weight.dtype))


def gemm_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, gelu_out: Tensor, gelu_grad: Tensor
) -> None:
    """As `any_gpu.gemm.gemm_bias_gelu`; the derivatives are in an order of their own."""
    _launch("gemm_epilogue.gemm_bias_gelu", x, weight, gelu_out, bias.float(), gelu_grad)


def gemm_gelu_backward(
    grad: Tensor, weight: Tensor, gelu_grad: Tensor, partials: Tensor, out: Tensor
) -> None:
    """As `any_gpu.gemm.gemm_gelu_backward`."""
    _launch("gemm_epilogue.gemm_grad_gelu", grad, weight, out, gelu_grad, partials)


def gemm_grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    """As `any_gpu.gemm.gemm_grad_input`."""
    out = grad.new_empty(len(grad), weight.shape[1])
    _launch("gemm_epilogue.gemm_grad_input", grad, weight, out)
    return out


def gelu_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `gemm_gelu_backward` writes."""
    return WARPGROUPS * _blocks(rows, width, device)


def _launch(name: str, x: Tensor, weight: Tensor, out: Tensor, *others: Tensor) -> None:
    rows, width = out.shape
    grid = width // DEPTH * _blocks(rows, width, x.device)
    maps = map(tensor_map, (x, weight, out))
    launch(name, grid, SHARED, *maps, *others, rows, width)


def _blocks(rows: int, width: int, device: torch.device) -> int:
    """Thread blocks for each square of the weight."""
    return num_programs(triton.cdiv(rows, TILE_ROWS), device, DEPTH / width)


def supports_layernorm(
    hidden: int, inner: int, p: float, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether layers of these sizes are computed here, forward and backward."""
    fits = hidden == WIDTH and inner % WIDTH == 0 and pairwise_compare(p)
    return fits and dtype == torch.bfloat16 and is_supported(device)


def gemm_layernorm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor,
    norm: tuple[Tensor, Tensor, float], seed: Tensor, p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `any_gpu.gemm.gemm_layernorm`."""
    rows, depth = x.shape
    x_hat = torch.empty_like(residual)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    vectors = [vector.float() for vector in (bias, *norm[:2])]
    launch(
        "gemm_layernorm.gemm_layernorm", _layernorm_grid(rows, x.device), FORWARD_SHARED,
        *map(tensor_map, (x, weight, residual, x_hat, out)), *vectors, rstd, seed, rows, depth,
        norm[2], drop_count(p), rescale(p),
    )  # fmt: skip
    return x_hat, rstd


def gemm_layernorm_backward(
    x: Tensor, weight: Tensor, grad: Tensor, x_hat: Tensor, rstd: Tensor, norm_weight: Tensor,
    partials: Tensor, seed: Tensor, p: float, grad_x: Tensor,
) -> Tensor:  # fmt: skip
    """As `any_gpu.gemm.gemm_layernorm_backward`."""
    (rows, depth), grad_residual = x.shape, torch.empty_like(grad)
    launch(
        "gemm_layernorm.gemm_layernorm_backward", _layernorm_grid(rows, x.device), BACKWARD_SHARED,
        *map(tensor_map, (x, weight, grad, x_hat, grad_residual, grad_x)), norm_weight.float(),
        rstd, partials, seed, rows, depth, len(partials), drop_count(p), rescale(p),
    )  # fmt: skip
    return grad_residual


def layernorm_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `gemm_layernorm_backward` writes."""
    return num_programs(triton.cdiv(rows, PARTIAL_ROWS), device, 1)


def _layernorm_grid(rows: int, device: torch.device) -> int:
    """Thread blocks."""
    return CLUSTER * num_programs(triton.cdiv(rows, CLUSTER * BLOCK_M), device, 1 / CLUSTER)
