"""The linear maps of a layer: cuBLAS, and kernels for GELU, dropout, residual and LayerNorm.

GELU is computed together with its derivative, which is kept for the backward pass instead of the
input. In half precision the derivative is stored as a byte. It lies between -0.13 and 1.13, and
steps of 1/200 are as fine as bf16 around 1, at half the bytes; the error is small beside that of
the matmuls. LayerNorm(residual + dropout(x + bias)) is one pass, and its gradient another.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.random import (
    ASM,
    column_keys,
    drop_count,
    drop_rows,
    rescale,
    seed_keys,
)
from electra.kernels.any_gpu.reduce import (
    column_sums,
    num_programs,
    pdl_launch_dependents,
    pdl_supported,
    sum_row_groups,
    tile,
)

GELU = {"BLOCK_M": 8, "BLOCK_N": 128, "TIMES": 4, "num_warps": 4}
GELU_BACKWARD = {"BLOCK_M": 8, "BLOCK_N": 256, "num_warps": 8}
"""Rows and columns of a tile: eight elements per thread, so that bytes have the same layout as the
other tensors."""
STEPS, ZERO = tl.constexpr(200.0), tl.constexpr(27.0)
"""The derivative's byte is ZERO + STEPS x derivative."""
WHOLE, BITS = tl.constexpr(2.0**23), tl.constexpr(0x4B000000)
"""From 2^23 on fp32 has integers only, in its lowest bits: adding it rounds. The conversion
instructions would take as long as everything else."""
TILE_ROWS = 64
"""Rows of a derivative are padded to a multiple of this: CUDA C++ kernels write whole tiles."""
NORM_ELEMENTS, NORM_BACKWARD_ELEMENTS = 2048, 1024
"""Elements of a tile of LayerNorm. In the backward pass one warp works on a tile, so that no sum is
exchanged between warps; in the forward pass four do."""


def gemm_bias(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> None:
    """Write x @ weight.t() + bias to `out`."""
    torch.addmm(bias, x, weight.t(), out=out)


def gemm_bias_gelu(
    x: Tensor, weight: Tensor, bias: Tensor, gelu_out: Tensor, gelu_grad: Tensor
) -> None:
    """`bias_gelu` of x @ weight.t()."""
    bias_gelu(x @ weight.t(), bias, gelu_out, gelu_grad)


def gemm_gelu_backward(
    grad: Tensor, weight: Tensor, gelu_grad: Tensor, partials: Tensor, out: Tensor
) -> None:
    """Write (grad @ weight) x gelu_grad to `out`: from the gradient of a projection's output, that
    of the input of the GELU before it; `partials` gets the gradient of the GELU's bias."""
    torch.mm(grad, weight, out=out)
    gelu_backward_(out, gelu_grad, partials)


def gemm_grad_input(grad: Tensor, weight: Tensor) -> Tensor:
    """The gradient of a projection's input."""
    return grad @ weight


def bias_gelu(x: Tensor, bias: Tensor, out: Tensor, gelu_grad: Tensor) -> None:
    """The erf form, as BERT; `gelu_grad` is from `empty_gelu_grad`."""
    rows, width = x.shape
    # One dimension for both: the second of a grid ends at 65,535
    down = triton.cdiv(rows, GELU["BLOCK_M"] * GELU["TIMES"])
    num_tiles = triton.cdiv(width, GELU["BLOCK_N"]) * down
    bias_gelu_kernel[(num_tiles,)](x, bias, out, gelu_grad, rows, width, **GELU)


def empty_gelu_grad(like: Tensor) -> Tensor:
    """A tensor for the derivatives of a GELU with this output."""
    rows = triton.cdiv(len(like), TILE_ROWS) * TILE_ROWS
    dtype = torch.uint8 if like.element_size() == 2 else like.dtype
    return like.new_empty(rows, like.shape[1], dtype=dtype)


def gelu_backward_(grad: Tensor, gelu_grad: Tensor, partials: Tensor) -> None:
    """Multiply `grad` by the derivatives in place; `partials` gets the bias's gradient."""
    rows, width = grad.shape
    grid = (triton.cdiv(width, GELU_BACKWARD["BLOCK_N"]), partials.shape[0])
    gelu_backward_kernel[grid](grad, gelu_grad, partials, rows, width, **GELU_BACKWARD)


def gelu_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `gelu_backward_` writes."""
    across = triton.cdiv(width, GELU_BACKWARD["BLOCK_N"])
    return num_programs(triton.cdiv(rows, GELU_BACKWARD["BLOCK_M"]), device, 3 / across)


@triton.jit
def gelu_at(z):
    """gelu(z) and its derivative.

    The normal distribution is Abramowitz and Stegun's formula 7.1.26, off by about 1e-7: the exact
    function would take longer than the memory does.
    """
    u = 1 + 0.23164190 * tl.abs(z)
    t = tl.rsqrt(u * u)  # 1 / u in one instruction, where a division takes eight
    bell = tl.exp2(z * z * -0.7213475204444817)  # exp(-z^2 / 2)
    tail = 0.530702714 * t - 0.726576013
    tail = (tail * t + 0.710706870) * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * bell
    cdf = tl.where(z > 0, 1 - tail, tail)
    return z * cdf, cdf + z * 0.3989422804014327 * bell


@triton.jit
def gelu_stored(z, dtype: tl.constexpr, grad_dtype: tl.constexpr):
    """`gelu_at`, both results as they are stored.

    In bf16 on NVIDIA GPUs it is the tanh form in fp16, two numbers per instruction: rounded to bf16
    its error is hardly larger than that of the rounding. `layer.cuh` has the same.
    """
    if ASM and dtype == tl.bfloat16 and grad_dtype == tl.uint8:
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
        value, derivative = gelu_at(z)
        return value.to(dtype), quantize_derivative(derivative, grad_dtype)


@triton.jit
def quantize_derivative(derivative, dtype: tl.constexpr):
    """A derivative as it is stored."""
    if dtype == tl.uint8:
        return (derivative * STEPS + (WHOLE + ZERO)).to(tl.int32, bitcast=True).to(dtype)
    else:
        return derivative.to(dtype)


@triton.jit
def dequantize_derivative(stored):
    """A stored derivative in fp32."""
    if stored.dtype == tl.uint8:
        whole = (stored.to(tl.int32) | BITS).to(tl.float32, bitcast=True)
        return (whole - (WHOLE + ZERO)) * (1 / STEPS)
    else:
        return stored.to(tl.float32)


@triton.jit
def bias_gelu_kernel(
    x,
    bias,
    out,
    gelu_grad,
    rows,
    width,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    TIMES: tl.constexpr,
):
    across = tl.cdiv(width, BLOCK_N)
    col = tl.program_id(0) % across * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(0) // across * (BLOCK_M * TIMES) + tl.arange(0, BLOCK_M)
    offset = tl.load(bias + col, col < width, 0.0)[None, :]
    at = row[:, None] * width + col[None, :]
    for _ in tl.static_range(TIMES):
        here = (row < rows)[:, None] & (col < width)[None, :]
        value, derivative = gelu_at(tl.load(x + at, here, 0.0).to(tl.float32) + offset)
        tl.store(out + at, value, here)
        tl.store(gelu_grad + at, quantize_derivative(derivative, gelu_grad.dtype.element_ty), here)
        row += BLOCK_M
        at += BLOCK_M * width


@triton.jit
def gelu_backward_kernel(
    grad,
    gelu_grad,
    partials,
    rows,
    width: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    col = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # The width is a constexpr: comparisons that hold for all columns are optimised away.
    inside = (col < width) | (width % BLOCK_N == 0)
    grad_bias = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(tl.program_id(1) * BLOCK_M, rows, tl.num_programs(1) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        derivative = tl.load(gelu_grad + at, here, 0)
        g = tl.load(grad + at, here, 0.0).to(tl.float32)  # loaded before the other is used
        g *= dequantize_derivative(derivative)
        tl.store(grad + at, g, here)
        grad_bias += g
    tl.store(partials + tl.program_id(1) * width + col, column_sums(grad_bias), inside)


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
    block_n, block_m = tile(width, NORM_ELEMENTS)
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
    block_n, block_m = tile(width, NORM_BACKWARD_ELEMENTS)
    row_groups = max(1, 256 // block_n)  # a warp reads 256 numbers at once
    grad_residual = torch.empty_like(grad)
    tensors = (grad, x_hat, rstd, weight, grad_residual, grad_x, partials, seed)
    add_layernorm_backward_kernel[(partials.shape[0],)](
        *tensors, rows, width, drop_count(p), rescale(p), row_groups, block_m, block_n,
        pdl_supported(grad.device), num_warps=max(1, block_n // NORM_BACKWARD_ELEMENTS),
    )  # fmt: skip
    return grad_residual


def layernorm_partials(rows: int, width: int, device: torch.device) -> int:
    """How many partial sums `add_layernorm_backward` writes."""
    return num_programs(triton.cdiv(rows, tile(width, NORM_BACKWARD_ELEMENTS)[1]), device, 8)


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
