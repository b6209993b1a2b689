"""gelu(x + bias), its gradients, and the same together with a product."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import ffn, gelu
from electra.kernels.hopper.gemm_gelu import (
    contract_backward,
    expand_gelu,
    ffn_fits,
    ffn_parts,
    product_bias,
)
from electra.kernels.any_gpu.gelu import bend_, bend_parts, bias_gelu, empty_slope


@pytest.fixture(autouse=True)
def _triton(monkeypatch):
    """Triton's form on every GPU; test_cuda.py has the other one."""
    monkeypatch.setattr(ffn, "usable", lambda device: False)


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (16, 128), (37, 96), (70, 200)])
def test_bias_gelu(rows, width, device, normal, near):
    x, bias, grad = normal(rows, width), normal(width), normal(rows, width).detach()
    wanted = F.gelu(x + bias)
    out, slope = torch.empty_like(x), empty_slope(x)
    bias_gelu(x, bias, out, slope)
    near(out, wanted)

    of_x, of_bias = torch.autograd.grad(wanted, (x, bias), grad)
    sums = torch.full((bend_parts(rows, width, device), width), torch.nan, device=device)
    bend_(grad, slope, sums)
    near(grad, of_x, "x")  # in its place
    near(sums.sum(0), of_bias, "bias")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_slope_is_a_byte_in_half_precision(dtype, device):
    """To half a step; 0 and 1, where most are, as they are."""
    x = torch.linspace(-12, 12, 4000, device=device, dtype=dtype).view(40, 100)
    exact = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.gelu(exact).sum(), exact)
    out, slope = torch.empty_like(x), empty_slope(x)
    bias_gelu(x, torch.zeros(100, device=device), out, slope)
    assert slope.dtype == torch.uint8
    grad = torch.ones(x.shape, device=device)
    sums = torch.empty(bend_parts(*x.shape, device), 100, device=device)
    bend_(grad, slope, sums)
    assert (grad - wanted).abs().max() < 0.00251
    far = exact.abs() > 6
    assert torch.equal(grad[far], (exact[far] > 0).float())
    assert (sums.sum(0) - grad.sum(0)).abs().max() < 1e-5


def test_a_million_tokens_have_a_grid_that_a_gpu_takes(monkeypatch):
    """Its first number may be anything, the others end at 65,535."""
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            launched.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(gelu, "bias_gelu_kernel", Kernel())
    monkeypatch.setattr(gelu, "bend_kernel", Kernel())
    x = torch.empty(2**20, 1024, device="meta")
    sums = torch.empty(bend_parts(2**20, 1024, x.device), 1024, device="meta")
    bias_gelu(x, x[0], x, x)
    bend_(x, x, sums)
    assert len(launched) == 2
    assert all(number < 2**16 for grid in launched for number in grid[1:])


@pytest.mark.gpu
def test_a_million_tokens(device, near):
    x = torch.randn(2**20 + 1, 136, device=device)
    out = torch.empty_like(x)
    bias_gelu(x, x[0].clone(), out, empty_slope(x))
    near(out[-40:], F.gelu(x[-40:] + x[0]))


def test_the_erf_form_to_six_digits(device):
    """The tanh form is off by 5e-4, and nothing overflows far out."""
    x = torch.linspace(-12, 12, 4001, device=device)[None]
    zero, grad, sums = torch.zeros_like(x[0]), torch.ones_like(x), torch.empty_like(x)
    exact = x.double().requires_grad_()
    wanted = F.gelu(exact)
    out, slope = torch.empty_like(x), empty_slope(x)
    bias_gelu(x, zero, out, slope)
    assert (out - wanted).abs().max() < 1.5e-6
    bend_(grad, slope, sums)
    assert (grad - torch.autograd.grad(wanted.sum(), exact)[0]).abs().max() < 1.5e-6
    far = torch.tensor([[-1e4, 1e4]], device=device)
    bias_gelu(far, zero[:2], far, torch.empty_like(far))
    assert far.tolist() == [[0.0, 1e4]]


SHARES = {torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 1e-2}
"""Differences that are allowed: in half precision by a slope's byte."""


PRODUCTS = [(1, 16, 48), (37, 64, 192), (150, 128, 208), (200, 256, 256)]
"""Rows, depth and width."""


@pytest.mark.parametrize(("rows", "depth", "width"), PRODUCTS)
def test_forth_through_the_expansion(rows, depth, width, dtype, device, normal, near):
    x, weight = (normal(n, depth).detach().to(dtype) for n in (rows, width))
    weight, bias = weight / depth, normal(width).detach()
    inner = (x.double() @ weight.double().t() + bias).requires_grad_()
    value = F.gelu(inner)
    (bend,) = torch.autograd.grad(value.sum(), inner)
    out = torch.full((rows, width), torch.nan, dtype=dtype, device=device)
    slope = empty_slope(out)
    expand_gelu(x, weight, bias, out, slope)
    near(out, value, "value", SHARES[dtype])
    found = torch.ones(rows, width, device=device)
    bend_(found, slope, torch.empty(bend_parts(rows, width, device), width, device=device))
    near(found, bend, "slope", SHARES[dtype])


@pytest.mark.parametrize(("rows", "depth", "width"), PRODUCTS)
def test_projection(rows, depth, width, dtype, device, normal, near):
    x, weight = (normal(n, depth).detach().to(dtype) for n in (rows, width))
    bias = normal(width).detach().to(dtype)
    out = torch.full((rows, width), torch.nan, dtype=dtype, device=device)
    product_bias(x, weight, bias, out)
    near(out, x.double() @ weight.double().t() + bias, share=SHARES[dtype])


@pytest.mark.parametrize(("rows", "depth", "width"), PRODUCTS)
def test_back_through_the_contraction(rows, depth, width, dtype, device, normal, near):
    weight, through = (normal(n, m).detach().to(dtype) for n, m in ((depth, width), (rows, depth)))
    inner = normal(rows, width)
    slope = empty_slope(inner.to(dtype))
    bias_gelu(inner.detach(), torch.zeros(width, device=device), torch.empty_like(inner), slope)
    expected = torch.autograd.grad(F.gelu(inner) @ weight.float().t(), inner, through.float())[0]
    sums = torch.full((ffn_parts(rows, weight), width), torch.nan, device=device)
    of_inner = torch.full_like(inner, torch.nan, dtype=dtype)
    contract_backward(through, weight, slope, sums, of_inner)
    near(of_inner, expected, "inner", SHARES[dtype])
    near(sums.sum(0), expected.sum(0), "bias", SHARES[dtype])


@pytest.mark.parametrize("shape", [(48, 192), (512, 2048), (64, 72)])
def test_feed_forward_parts_that_do_not_fit(shape):
    assert not ffn_fits(torch.empty(shape))
