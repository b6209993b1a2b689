"""Grids, programmatic dependent launch, and sums over rows and over partial sums."""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_M, BLOCK_N = 256, 16
"""Partial sums and columns of a tile of `reduce_partials`, all loaded at once."""
SUM_ELEMENTS = 8192
"""Elements of a tile of `sum_rows`: in bf16 eight loads of 16 bytes per thread at once."""


def num_programs(num_tiles: int, device: torch.device, per_sm: float) -> int:
    """Programs for a kernel that loops over tiles: few, as each writes its partial sums once."""
    if device.type != "cuda":
        return min(num_tiles, 2)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(num_tiles, int(per_sm * sms)))


def tile(width: int, elements: int) -> tuple[int, int]:
    """Columns and rows of a tile: a whole row, rounded up to a power of two."""
    block = triton.next_power_of_2(width)
    return block, max(1, elements // block)


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


def sum_rows(x: Tensor) -> Tensor:
    """x.sum(0) in fp32."""
    rows, width = x.shape
    block_n, block_m = tile(width, SUM_ELEMENTS)
    parts = num_programs(triton.cdiv(rows, block_m), x.device, 2)
    partials = torch.empty(parts, width, device=x.device)
    sum_rows_kernel[(parts,)](x, partials, rows, width, block_m, block_n, num_warps=4)
    return reduce_partials(partials, 0)


@triton.jit
def sum_rows_kernel(
    x, partials, rows, width: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr
):
    col = tl.arange(0, BLOCK)
    # The width is a constexpr: comparisons that hold for all columns are optimised away.
    inside = (col < width) | (width == BLOCK)
    total = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & inside[None, :]
        total += tl.load(x + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    tl.store(partials + tl.program_id(0) * width + col, column_sums(total), inside)


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
