"""Grids, programmatic dependent launch, and sums over rows and over partial sums."""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M, BLOCK_N = 256, 16
"""Partial sums and columns of a tile, all loaded at once."""


def num_programs(num_tiles: int, device: torch.device, per_sm: float) -> int:
    """Programs for a kernel that loops over tiles: few, as each writes its partial sums once."""
    if device.type != "cuda":
        return min(num_tiles, 2)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(num_tiles, int(per_sm * sms)))


@functools.cache
def pdl_supported(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch (PDL): NVIDIA GPUs from Hopper on."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def pdl_launch_dependents(PDL: tl.constexpr):
    """Let the next kernel start, if `electra.kernels.cuda.runtime` launches it: others wait."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()


def weight_grad(a: Tensor, b: Tensor) -> Tensor:
    """a @ b: a weight's gradient, or one for each layer, in fp32 whatever the inputs are."""
    if a.dtype == torch.float32:
        return a @ b
    multiply = torch.bmm if a.ndim == 3 else torch.mm
    return multiply(a, b, out_dtype=torch.float32)


def reduce_partials(partials: Tensor, dim: int) -> Tensor:
    """partials.sum(dim), in fp32.

    torch's sum lets several blocks add to one number where partials are many, and has to clear a
    counter first.
    """
    before, count, after = partials.shape[:dim], partials.shape[dim], partials.shape[dim + 1 :]
    out = torch.empty(*before, *after, device=partials.device)
    width = math.prod(after)
    grid = (triton.cdiv(width, BLOCK_N), math.prod(before))
    reduce_partials_kernel[grid](partials, out, count, width, BLOCK_M, BLOCK_N, num_warps=8)
    return out


@triton.jit
def reduce_partials_kernel(
    partials, out, count, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    partials += tl.program_id(1).to(tl.int64) * count * width
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, count, BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < count)[:, None] & (col < width)[None, :]
        total += tl.load(partials + row[:, None] * width + col[None, :], here, 0.0)
    tl.store(out + tl.program_id(1) * width + col, tl.sum(total, 0), col < width)


@triton.jit
def column_sums(x):
    """tl.sum(x, 0), faster where several warps hold rows.

    Warps exchange their sums through shared memory. Threads hold eight columns each, so all threads
    of a warp would write to one bank. In this order of columns, which moves no data, threads that
    write at once have adjacent columns.
    """
    x = tl.permute(tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8)), (0, 2, 1))
    x = tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] * x.shape[2])), 0)
    x = tl.permute(tl.reshape(x, (8, x.shape[0] // 8)), (1, 0))
    return tl.reshape(x, (x.shape[0] * x.shape[1],))


@triton.jit
def sum_rows_by_dot(x):
    """Sums over rows as a matmul with eight columns of ones: fewer exchanges than tl.sum."""
    ones = tl.full((x.shape[0], 8), 1.0, x.dtype)
    return tl.sum(tl.dot(tl.trans(x), ones, input_precision="ieee"), 1) * 0.125


@triton.jit
def sum_row_groups(x, ROW_GROUPS: tl.constexpr):
    """Add up every ROW_GROUPS-th row: those that one thread holds."""
    return tl.sum(tl.reshape(x, (x.shape[0] // ROW_GROUPS, ROW_GROUPS, x.shape[1])), 0)
