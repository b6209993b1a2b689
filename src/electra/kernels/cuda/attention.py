"""Attention in CUDA C++ (`attention.cu`), for rows of 128 tokens and heads of 64 in bf16.

Matmuls are of 64 rows here, their first operand stays in registers, and the next heads are loaded
while one is computed. On an H200, against Triton, for 128 and 1024 rows, in microseconds:

    forward, four heads     15.1 -> 12.3    99.5 -> 69.7
    forward, one head        4.9 ->  4.4    27.2 -> 21.3
    backward, four heads    37.1 -> 24.1     269 -> 141
    backward, one head      13.4 -> 10.5    69.9 -> 41.3
"""

import torch
from torch import Tensor

from electra.kernels.any_gpu.attention import kernel_scalars
from electra.kernels.any_gpu.random import pairwise_compare
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.cuda.runtime import (
    WARP_ROWS,
    WARPGROUPS,
    is_supported,
    launch,
    tensor_map,
)

LENGTH, HEAD_DIM = 128, 64
FORWARD_WARPGROUPS = 3
FORWARD_SHARED, BACKWARD_SHARED = 223360, 231808
"""Bytes of shared memory of each kernel."""


def supports(
    length: int, head_dim: int, p: float, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether these kernels compute such rows, forward and backward."""
    fits = length == LENGTH and head_dim == HEAD_DIM and pairwise_compare(p)
    return fits and dtype == torch.bfloat16 and is_supported(device)


def attention_forward(
    qkv: Tensor, doc_ids: Tensor, heads: int, seed: Tensor, p: float, out: Tensor
) -> Tensor:
    """As `any_gpu.attention.attention_forward`."""
    rows, length = doc_ids.shape
    lse = torch.empty(rows, heads, length, dtype=torch.float32, device=qkv.device)
    scalars = kernel_scalars(length, heads, HEAD_DIM, p)
    launch(
        "attention.attention_forward", num_programs(rows * heads, qkv.device, 1), FORWARD_SHARED,
        tensor_map(qkv), tensor_map(out, WARP_ROWS), doc_ids, lse, seed, rows, *scalars[1:],
        warpgroups=FORWARD_WARPGROUPS,
    )  # fmt: skip
    return lse


def attention_backward(
    grad: Tensor, qkv: Tensor, doc_ids: Tensor, out: Tensor, lse: Tensor, heads: int,
    seed: Tensor, p: float, grad_qkv: Tensor, partials: Tensor,
) -> None:  # fmt: skip
    """As `any_gpu.attention.attention_backward`."""
    rows, length = doc_ids.shape
    scalars = kernel_scalars(length, heads, HEAD_DIM, p)
    launch(
        "attention.attention_backward", num_programs(rows * heads, qkv.device, 1), BACKWARD_SHARED,
        *map(tensor_map, (grad, qkv, out, grad_qkv)), doc_ids, lse, partials, seed, rows,
        *scalars[1:],
    )  # fmt: skip


def num_partials(rows: int, length: int) -> int:
    """How many partial sums `attention_backward` writes: one for each warpgroup."""
    return rows * WARPGROUPS
