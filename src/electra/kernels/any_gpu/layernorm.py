"""LayerNorm(residual + dropout(x + bias)) in one pass, and its gradient in one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.random import column_keys, drop_count, drop_rows, rescale, seed_keys
from electra.kernels.any_gpu.reduce import (
    num_programs,
    pdl_launch_dependents,
    pdl_supported,
    sum_row_groups,
)

FORWARD_ELEMENTS, BACKWARD_ELEMENTS = 2048, 1024
"""Elements of a tile. In the backward pass one warp works on a tile, so that no sum is exchanged
between warps; in the forward pass four do."""


def gemm_layernorm(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor,
    norm: tuple[Tensor, Tensor, float], seed: Tensor, p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """`add_layernorm` of x @ weight.t()."""
    return add_layernorm(x @ weight.t(), bias, residual, norm, seed, p, out)


def gemm_layernorm_backward(
    x: Tensor, weight: Tensor, grad: Tensor, x_hat: Tensor, rstd: Tensor, norm_weight: Tensor,
    partials: Tensor, seed: Tensor, p: float, grad_x: Tensor,
) -> Tensor:  # fmt: skip
    """`add_layernorm_backward` of grad + x @ weight; may overwrite `grad`."""
    grad = grad.addmm_(x, weight)
    return add_layernorm_backward(grad, x_hat, rstd, norm_weight, partials, seed, p, grad_x)


def add_layernorm(
    x: Tensor, bias: Tensor, residual: Tensor, norm: tuple[Tensor, Tensor, float], seed: Tensor,
    p: float, out: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Write LayerNorm(residual + dropout(x + bias)) to `out`; return x_hat and rstd.

    `norm` is weight, bias and eps.
    """
    rows, width = x.shape
    x_hat = torch.empty_like(x)
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    block_n, block_m = tile(width, FORWARD_ELEMENTS)
    tensors = (x, bias, residual, norm[0], norm[1], out, x_hat, rstd, seed)
    add_layernorm_kernel[(triton.cdiv(rows, block_m),)](
        *tensors, rows, width, norm[2], drop_count(p), rescale(p), block_m, block_n, num_warps=4
    )
    return x_hat, rstd


def add_layernorm_backward(
    grad: Tensor, x_hat: Tensor, rstd: Tensor, weight: Tensor, partials: Tensor, seed: Tensor,
    p: float, grad_x: Tensor,
) -> Tensor:  # fmt: skip
    """Return the gradient of the residual and write that of x to `grad_x`.

    `partials` (parts, 3, width) gets the gradients of the norm's weight and bias and of the bias.
    """
    rows, width = grad.shape
    block_n, block_m = tile(width, BACKWARD_ELEMENTS)
    row_groups = max(1, 256 // block_n)  # a warp reads 256 numbers at once
    grad_residual = torch.empty_like(grad)
    tensors = (grad, x_hat, rstd, weight, grad_residual, grad_x, partials, seed)
    add_layernorm_backward_kernel[(partials.shape[0],)](
        *tensors, rows, width, drop_count(p), rescale(p), row_groups, block_m, block_n,
        pdl_supported(grad.device), num_warps=max(1, block_n // BACKWARD_ELEMENTS),
    )  # fmt: skip
    return grad_residual


def num_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `add_layernorm_backward` writes."""
    return num_programs(triton.cdiv(rows, tile(width, BACKWARD_ELEMENTS)[1]), device, 8)


def tile(width: int, elements: int) -> tuple[int, int]:
    """Columns and rows of a tile: a whole row, rounded up to a power of two."""
    block = triton.next_power_of_2(width)
    return block, max(1, elements // block)


@triton.jit
def layernorm_rows(z, here, width, eps):
    """Normalise along the last axis; returns x_hat and rstd."""
    z -= tl.sum(z, -1, keep_dims=True) / width
    z = tl.where(here, z, 0.0)
    inv_std = tl.rsqrt(tl.sum(z * z, -1) / width + eps)
    return z * tl.expand_dims(inv_std, -1), inv_std


@triton.jit
def layernorm_backward_rows(g, n, inv_std, width):
    """The gradient of the input of `layernorm_rows`, whose output is `n`, from that of `n`."""
    inv_std = tl.expand_dims(inv_std, -1)
    along = tl.sum(g * n, -1, keep_dims=True) / width * inv_std
    mean = tl.sum(g, -1, keep_dims=True) / width * inv_std
    return g * inv_std - mean - n * along


@triton.jit
def add_layernorm_kernel(
    x, bias, residual, weight, shift, out, x_hat, rstd, seed, rows, width: tl.constexpr, eps,
    drop: tl.constexpr, rescale: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    # The width is a constexpr: comparisons that hold for all columns are optimised away.
    inside = (col < width) | (width == BLOCK)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    # Issue all loads before the first use.
    z = tl.load(x + at, here, 0.0).to(tl.float32)
    before = tl.load(residual + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, inside, 0.0).to(tl.float32)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    shift_row = tl.load(shift + col, inside, 0.0)[None, :]
    if drop > 0:
        row_key, column_key = seed_keys(seed)
        across = column_keys(BLOCK, column_key)
        z = drop_rows(z, row[:, None], row_key, across, drop, rescale)
    z, inv_std = layernorm_rows(z + before, inside[None, :], width, eps)
    tl.store(x_hat + at, z, here)
    tl.store(out + at, z * gain + shift_row, here)
    tl.store(rstd + row, inv_std, row < rows)


@triton.jit
def add_layernorm_backward_kernel(
    grad, x_hat, rstd, weight, residual, grad_x, partials, seed, rows, width: tl.constexpr,
    drop: tl.constexpr, rescale: tl.constexpr, ROW_GROUPS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Prefetch the next rows while computing the current ones; sums are kept per row group."""
    pdl_launch_dependents(PDL)
    col = tl.arange(0, BLOCK)
    # The width is a constexpr: comparisons that hold for all columns are optimised away, and so
    # are columns for which they never hold.
    inside = (col < width) | (width == BLOCK)
    step = tl.num_programs(0) * BLOCK_M
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    prefetched = load_rows(grad, x_hat, rstd, row, col, inside, rows, width)
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    row_key, column_key = seed_keys(seed)
    across = column_keys(BLOCK, column_key)
    grad_weight = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    grad_shift = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    grad_bias = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, step):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        g, n, inv_std = prefetched
        g, n = g.to(tl.float32), n.to(tl.float32)
        prefetched = load_rows(grad, x_hat, rstd, row + step, col, inside, rows, width)
        grad_weight += sum_row_groups(g * n, ROW_GROUPS)
        grad_shift += sum_row_groups(g, ROW_GROUPS)
        g = layernorm_backward_rows(g * gain, n, inv_std, width)
        tl.store(residual + at, g, here)
        if drop > 0:
            g = drop_rows(g, row[:, None], row_key, across, drop, rescale)
        tl.store(grad_x + at, g, here)
        grad_bias += sum_row_groups(g, ROW_GROUPS)
    to = partials + tl.program_id(0) * 3 * width + col
    tl.store(to, tl.sum(grad_weight, 0), inside)
    tl.store(to + width, tl.sum(grad_shift, 0), inside)
    tl.store(to + 2 * width, tl.sum(grad_bias, 0), inside)


@triton.jit
def load_rows(grad, x_hat, rstd, row, col, inside, rows, width):
    """Load what the backward pass reads of these rows."""
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    g, n = tl.load(grad + at, here, 0.0), tl.load(x_hat + at, here, 0.0)
    return g, n, tl.load(rstd + row, row < rows, 0.0)
