"""GEMMs with an epilogue in CUDA C++ (`gemm_epilogue.cu`), for a depth of 256 in bf16.

In Triton a program loads, multiplies, computes and stores one after the other. Here two warpgroups
ping-pong, so that one multiplies while the other computes and stores, and a third issues loads. On
an H200, for 16,384 and 131,072 tokens of ELECTRA-Small, in microseconds:

    up-projection and GELU     38.9 -> 22.3    295 -> 149 its backward pass          28.3 -> 22.4
    194 -> 158    (19.6 and 142 with prefetched derivatives) QKV projection             15.7 -> 14.3
    96 -> 91

GELU is computed in fp16. Its derivatives are stored in the order in which threads hold them, so
forward and backward must be of the same tier.
"""

import torch
import triton
from torch import Tensor

from electra.kernels.any_gpu.gelu import TILE_ROWS
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.cuda.runtime import WARPGROUPS, is_supported, launch, tensor_map

DEPTH = 256
"""Depth of the GEMM, and columns of the weight that a thread block keeps in shared memory."""
SHARED = 2 * DEPTH * (DEPTH + 2 * TILE_ROWS) + 32 * 1024 + 128 + 1024
"""Bytes of shared memory: the weight, rows for each warpgroup, output tiles, barriers, the bias."""


def supports(hidden: int, inner: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether layers of these sizes are computed here, forward and backward."""
    fits = hidden == DEPTH and inner % DEPTH == 0
    return fits and dtype == torch.bfloat16 and is_supported(device)


def gemm_bias(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """As `any_gpu.gelu.gemm_bias`."""
    _launch("gemm_epilogue.gemm_bias", x, weight, out, bias.to(weight.dtype))


def gemm_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, gelu_out: Tensor, gelu_grad: Tensor
) -> None:
    """As `any_gpu.gelu.gemm_bias_gelu`; the derivatives are in an order of their own."""
    _launch("gemm_epilogue.gemm_bias_gelu", x, weight, gelu_out, bias.float(), gelu_grad)


def gemm_gelu_backward(
    grad: Tensor, weight: Tensor, gelu_grad: Tensor, partials: Tensor, out: Tensor
) -> None:
    """As `any_gpu.gelu.gemm_gelu_backward`."""
    _launch("gemm_epilogue.gemm_grad_gelu", grad, weight, out, gelu_grad, partials)


def gemm_grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    """As `any_gpu.gelu.gemm_grad_input`."""
    out = grad.new_empty(len(grad), weight.shape[1])
    _launch("gemm_epilogue.gemm_grad_input", grad, weight, out)
    return out


def num_partials(rows: int, width: int, device: torch.device) -> int:
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
