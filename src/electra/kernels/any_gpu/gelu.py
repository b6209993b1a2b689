"""gelu(x + bias), and its gradient, for which the slope is kept, not what gelu was taken of.

In half precision a slope is a byte. It lies between -0.13 and 1.13, and steps of 1/200 are as fine
as those of bf16 around 1, at half the bytes; beside the errors of the products theirs vanish.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.dropout import ASM
from electra.kernels.any_gpu.launch import programs
from electra.kernels.any_gpu.reduce import column_sums

FORTH = {"TALL": 8, "WIDE": 128, "TIMES": 4, "num_warps": 4}
BACK = {"TALL": 8, "WIDE": 256, "num_warps": 8}
"""Rows and columns of a tile: eight elements for a thread, or the compiler would read and write
bytes in another order than all else."""
STEPS, ZERO = tl.constexpr(200.0), tl.constexpr(27.0)
"""Of a slope's byte: so many to a whole, and where 0 lies."""
WHOLE, BITS = tl.constexpr(2.0**23), tl.constexpr(0x4B000000)
"""From here on fp32 has whole numbers alone, and its lowest bits are theirs: to add it rounds. The
processor's own conversions would take as long as all else."""
WHOLE_ROWS = 64
"""Slopes have room for a multiple of so many rows: kernels in CUDA write whole tiles of them."""


def bias_gelu(x: Tensor, bias: Tensor, out: Tensor, slope: Tensor) -> None:
    """The erf form, as BERT; `slope` is from `empty_slope`."""
    rows, width = x.shape
    # One number for both: the second of a grid ends at 65,535
    tiles = triton.cdiv(width, FORTH["WIDE"]) * triton.cdiv(rows, FORTH["TALL"] * FORTH["TIMES"])
    bias_gelu_kernel[(tiles,)](x, bias, out, slope, rows, width, **FORTH)


def empty_slope(like: Tensor) -> Tensor:
    """Room for the slopes of a gelu, and up to `WHOLE_ROWS`."""
    rows = triton.cdiv(len(like), WHOLE_ROWS) * WHOLE_ROWS
    dtype = torch.uint8 if like.element_size() == 2 else like.dtype
    return like.new_empty(rows, like.shape[1], dtype=dtype)


def bend_(grad: Tensor, slope: Tensor, sums: Tensor) -> None:
    """Multiplies `grad` by the slopes; `sums` gets the bias's gradient in `bend_parts` parts."""
    rows, width = grad.shape
    grid = (triton.cdiv(width, BACK["WIDE"]), sums.shape[0])
    bend_kernel[grid](grad, slope, sums, rows, width, **BACK)


def bend_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `bend_` come in."""
    tiles, across = triton.cdiv(rows, BACK["TALL"]), triton.cdiv(width, BACK["WIDE"])
    return programs(tiles, device, 3 / across)


@triton.jit
def gelu_at(z):
    """z times the normal distribution's share below z, and the derivative of this.

    The share is Abramowitz and Stegun's formula 7.1.26, off by some 1e-7: the exact function would
    take longer than the memory does.
    """
    u = 1 + 0.23164190 * tl.abs(z)
    t = tl.rsqrt(u * u)  # 1 / u in one instruction, where a division takes eight
    bell = tl.exp2(z * z * -0.7213475204444817)  # exp(-z^2 / 2)
    tail = 0.530702714 * t - 0.726576013
    tail = (tail * t + 0.710706870) * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * bell
    share = tl.where(z > 0, 1 - tail, tail)
    return z * share, share + z * 0.3989422804014327 * bell


@triton.jit
def gelu_stored(z, dtype: tl.constexpr, slope_dtype: tl.constexpr):
    """What `gelu_at` gives, as both are stored.

    In bf16 on NVIDIA's GPUs in half precision, two numbers an instruction and one for tanh: rounded
    to bf16 it is off by hardly more than the rounding. As `gelu` in gelu.cuh.
    """
    if ASM and dtype == tl.bfloat16 and slope_dtype == tl.uint8:
        return tl.inline_asm_elementwise(
            """{
            .reg .b32 x<2>, s<2>, p<2>, w<2>, once, cube, cap, half, twice, square, steps, zero;
            .reg .b16 l<2>, h<2>;
            .reg .f32 a<2>, b<2>;
            mov.b32 once, 0x3A663A66; mov.b32 cube, 0x28722872; mov.b32 cap, 0x4C004C00;
            mov.b32 half, 0x38003800; mov.b32 twice, 0x3E663E66; mov.b32 square, 0x32AC32AC;
            mov.b32 steps, 0x5A405A40; mov.b32 zero, 0x641B641B;
            cvt.rn.satfinite.f16x2.f32 x0, $4, $3; cvt.rn.satfinite.f16x2.f32 x1, $6, $5;
            mul.rn.f16x2 s0, x0, x0; mul.rn.f16x2 s1, x1, x1;
            min.f16x2 s0, s0, cap; min.f16x2 s1, s1, cap;
            fma.rn.f16x2 p0, s0, cube, once; fma.rn.f16x2 p1, s1, cube, once;
            mul.rn.f16x2 p0, p0, x0; mul.rn.f16x2 p1, p1, x1;
            tanh.approx.f16x2 p0, p0; tanh.approx.f16x2 p1, p1;
            fma.rn.f16x2 p0, p0, half, half; fma.rn.f16x2 p1, p1, half, half;
            mul.rn.f16x2 w0, p0, x0; mul.rn.f16x2 w1, p1, x1;
            mov.b32 {l0, h0}, w0; mov.b32 {l1, h1}, w1;
            cvt.f32.f16 a0, l0; cvt.f32.f16 b0, h0; cvt.f32.f16 a1, l1; cvt.f32.f16 b1, h1;
            cvt.rn.bf16x2.f32 $0, b0, a0; cvt.rn.bf16x2.f32 $1, b1, a1;
            fma.rn.f16x2 s0, s0, square, twice; fma.rn.f16x2 s1, s1, square, twice;
            neg.f16x2 w0, p0; neg.f16x2 w1, p1;
            fma.rn.f16x2 w0, w0, p0, p0; fma.rn.f16x2 w1, w1, p1, p1;
            mul.rn.f16x2 w0, w0, s0; mul.rn.f16x2 w1, w1, s1;
            fma.rn.f16x2 w0, w0, x0, p0; fma.rn.f16x2 w1, w1, x1, p1;
            fma.rn.f16x2 w0, w0, steps, zero; fma.rn.f16x2 w1, w1, steps, zero;
            prmt.b32 $2, w0, w1, 0x6420;
            }""",
            "=&r,=&r,=&r,f,f,f,f", [z], (tl.bfloat16, tl.uint8), True, 4,
        )  # fmt: skip
    else:
        value, slope = gelu_at(z)
        return value.to(dtype), packed(slope, slope_dtype)


@triton.jit
def packed(slope, dtype: tl.constexpr):
    """A slope as it is stored."""
    if dtype == tl.uint8:
        return (slope * STEPS + (WHOLE + ZERO)).to(tl.int32, bitcast=True).to(dtype)
    else:
        return slope.to(dtype)


@triton.jit
def unpacked(stored):
    """A slope that was stored."""
    if stored.dtype == tl.uint8:
        whole = (stored.to(tl.int32) | BITS).to(tl.float32, bitcast=True)
        return (whole - (WHOLE + ZERO)) * (1 / STEPS)
    else:
        return stored.to(tl.float32)


@triton.jit
def bias_gelu_kernel(
    x, bias, out, slope, rows, width, TALL: tl.constexpr, WIDE: tl.constexpr, TIMES: tl.constexpr
):
    across = tl.cdiv(width, WIDE)
    col = tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)
    row = tl.program_id(0) // across * (TALL * TIMES) + tl.arange(0, TALL)
    offset = tl.load(bias + col, col < width, 0.0)[None, :]
    at = row[:, None] * width + col[None, :]
    for _ in tl.static_range(TIMES):
        here = (row < rows)[:, None] & (col < width)[None, :]
        value, bend = gelu_at(tl.load(x + at, here, 0.0).to(tl.float32) + offset)
        tl.store(out + at, value, here)
        tl.store(slope + at, packed(bend, slope.dtype.element_ty), here)
        row += TALL
        at += TALL * width


@triton.jit
def bend_kernel(
    grad, slope, sums, rows, width: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr
):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    # The width is known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width % WIDE == 0)
    of_bias = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        bend = tl.load(slope + at, here, 0)
        g = tl.load(grad + at, here, 0.0).to(tl.float32)  # asked for before the other is used
        g *= unpacked(bend)
        tl.store(grad + at, g, here)
        of_bias += g
    tl.store(sums + tl.program_id(1) * width + col, column_sums(of_bias), inside)
