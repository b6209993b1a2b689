"""GEMMs with GELU or LayerNorm as their epilogue, against the two one after the other."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import gemm as any_gemm
from electra.kernels.any_gpu.gemm import add_layernorm, bias_gelu, empty_gelu_grad, gelu_backward_
from electra.kernels.any_gpu.random import keep_mask
from electra.kernels.hopper.gemm import (
    BLOCK_M,
    gelu_partials,
    gemm_bias,
    gemm_bias_gelu,
    gemm_gelu_backward,
    gemm_layernorm,
    supports,
)

EPS = 1e-12


SHARES = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Differences that are allowed: in half precision by a gelu_grad's byte."""


PRODUCTS = [(1, 16, 48), (37, 64, 192), (150, 128, 208), (200, 256, 256)]
"""Rows, depth and width."""


@pytest.mark.parametrize(("rows", "depth", "width"), PRODUCTS)
def test_up_projection_forward(rows, depth, width, dtype, device, normal, near):
    x, weight = (normal(n, depth).detach().to(dtype) for n in (rows, width))
    weight, bias = weight / depth, normal(width).detach()
    inner = (x.double() @ weight.double().t() + bias).requires_grad_()
    value = F.gelu(inner)
    (derivative,) = torch.autograd.grad(value.sum(), inner)
    out = torch.full((rows, width), torch.nan, dtype=dtype, device=device)
    gelu_grad = empty_gelu_grad(out)
    gemm_bias_gelu(x, weight, bias, out, gelu_grad)
    near(out, value, "value", SHARES[dtype])
    found = torch.ones(rows, width, device=device)
    gelu_backward_(
        found,
        gelu_grad,
        torch.empty(any_gemm.gelu_partials(rows, width, device), width, device=device),
    )
    near(found, derivative, "gelu_grad", SHARES[dtype])


@pytest.mark.parametrize(("rows", "depth", "width"), PRODUCTS)
def test_projection(rows, depth, width, dtype, device, normal, near):
    x, weight = (normal(n, depth).detach().to(dtype) for n in (rows, width))
    bias = normal(width).detach().to(dtype)
    out = torch.full((rows, width), torch.nan, dtype=dtype, device=device)
    gemm_bias(x, weight, bias, out)
    near(out, x.double() @ weight.double().t() + bias, share=SHARES[dtype])


@pytest.mark.parametrize(("rows", "depth", "width"), PRODUCTS)
def test_down_projection_backward(rows, depth, width, dtype, device, normal, near):
    weight, through = (normal(n, m).detach().to(dtype) for n, m in ((depth, width), (rows, depth)))
    inner = normal(rows, width)
    gelu_grad = empty_gelu_grad(inner.to(dtype))
    bias_gelu(inner.detach(), torch.zeros(width, device=device), torch.empty_like(inner), gelu_grad)
    expected = torch.autograd.grad(F.gelu(inner) @ weight.float().t(), inner, through.float())[0]
    sums = torch.full((gelu_partials(rows, width, device), width), torch.nan, device=device)
    grad_up_proj = torch.full_like(inner, torch.nan, dtype=dtype)
    gemm_gelu_backward(through, weight, gelu_grad, sums, grad_up_proj)
    near(grad_up_proj, expected, "inner", SHARES[dtype])
    near(sums.sum(0), expected.sum(0), "bias", SHARES[dtype])


@pytest.mark.parametrize("shape", [(48, 192), (512, 2048), (64, 72)])
def test_feed_forward_parts_that_do_not_fit(shape):
    assert not supports(*shape, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(
    ("rows", "width", "depth"),
    [(1, 16, 32), (70, 64, 64), (300, 32, 128), (130, 64, 80), (129, 128, 20), (200, 256, 256)],
)
def test_gemm_layernorm(rows, width, depth, p, seed, normal, near):
    x, matrix, residual, bias, weight, shift = (
        normal(*shape).detach()
        for shape in ((rows, depth), (width, depth), (rows, width), (width,), (width,), (width,))
    )
    exact = (x.double() @ matrix.double().t() + bias) * keep_mask((rows, width), seed, p) + residual
    even = F.layer_norm(exact, (width,), eps=EPS)
    scale = (exact.var(1, correction=0) + EPS).rsqrt()
    wanted = even * weight + shift, even, scale
    out = torch.full_like(residual, torch.nan)
    kept = gemm_layernorm(x, matrix, bias, residual, (weight, shift, EPS), seed, p, out)
    for name, a, b in zip(("out", "x_hat", "rstd"), (out, *kept), wanted, strict=True):
        near(a, b.float(), name)


def test_the_shapes_are_supported_and_do_not_all_fill_their_tiles():
    for sizes in ((16, 32), (64, 80), (256, 256)):
        assert supports(*sizes, torch.float32, torch.device("cpu"))
    assert BLOCK_M < 130


def test_the_gemm_is_rounded_before_the_bias(device, seed, near):
    """As a library's is. Sums of whole numbers are the same in any order."""
    torch.manual_seed(0)
    x, matrix = (torch.randint(-30, 31, (n, 64)).to(device, torch.float16) for n in (50, 32))
    bias, weight, shift = torch.randn(3, 32).to(device)
    residual = torch.randn(50, 32).to(device, torch.float16)
    product = x.float() @ matrix.float().t()
    assert (product.half() != product).any()
    rest = (bias, residual, (weight, shift, EPS), seed, 0.3, torch.empty_like(residual))
    _, found = gemm_layernorm(x, matrix, *rest)
    near(found, add_layernorm(product.half(), *rest)[1], share=3e-6)
    assert (found - add_layernorm(product, *rest)[1]).abs().max() > 1e-5 * found.max()


@pytest.mark.parametrize("sizes", [(48, 64), (8, 64), (512, 64), (768, 768), (64, 30)])
def test_sizes_that_are_not_supported(sizes):
    assert not supports(*sizes, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("dtype", "generation", "fits"),
    [
        (torch.bfloat16, 9, True),
        (torch.float16, 9, True),
        (torch.float32, 9, False),
        (torch.bfloat16, 8, False),
        (torch.bfloat16, 10, False),
    ],
)
def test_gpus_that_are_supported(dtype, generation, fits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (generation, 0))
    assert supports(64, 256, dtype, torch.device("cuda")) == fits
