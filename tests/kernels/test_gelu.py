"""gelu(x + bias), its gradients, and the same together with a product."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import gelu
from electra.kernels.any_gpu.gelu import bias_gelu, empty_gelu_grad, gelu_backward_, num_partials
from electra.kernels.hopper import gemm_gelu
from electra.kernels.hopper.gemm_gelu import (
    gemm_bias,
    gemm_bias_gelu,
    gemm_gelu_backward,
    supports,
)


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (16, 128), (37, 96), (70, 200)])
def test_bias_gelu(rows, width, device, normal, near):
    x, bias, grad = normal(rows, width), normal(width), normal(rows, width).detach()
    wanted = F.gelu(x + bias)
    out, gelu_grad = torch.empty_like(x), empty_gelu_grad(x)
    bias_gelu(x, bias, out, gelu_grad)
    near(out, wanted)

    grad_x, grad_bias = torch.autograd.grad(wanted, (x, bias), grad)
    sums = torch.full((num_partials(rows, width, device), width), torch.nan, device=device)
    gelu_backward_(grad, gelu_grad, sums)
    near(grad, grad_x, "x")  # in its place
    near(sums.sum(0), grad_bias, "bias")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_derivative_is_a_byte_in_half_precision(dtype, device):
    """To half a step; 0 and 1, where most are, as they are."""
    x = torch.linspace(-12, 12, 4000, device=device, dtype=dtype).view(40, 100)
    exact = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(F.gelu(exact).sum(), exact)
    out, gelu_grad = torch.empty_like(x), empty_gelu_grad(x)
    bias_gelu(x, torch.zeros(100, device=device), out, gelu_grad)
    assert gelu_grad.dtype == torch.uint8
    grad = torch.ones(x.shape, device=device)
    sums = torch.empty(num_partials(*x.shape, device), 100, device=device)
    gelu_backward_(grad, gelu_grad, sums)
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
    monkeypatch.setattr(gelu, "gelu_backward_kernel", Kernel())
    x = torch.empty(2**20, 1024, device="meta")
    sums = torch.empty(num_partials(2**20, 1024, x.device), 1024, device="meta")
    bias_gelu(x, x[0], x, x)
    gelu_backward_(x, x, sums)
    assert len(launched) == 2
    assert all(number < 2**16 for grid in launched for number in grid[1:])


@pytest.mark.gpu
def test_a_million_tokens(device, near):
    x = torch.randn(2**20 + 1, 136, device=device)
    out = torch.empty_like(x)
    bias_gelu(x, x[0].clone(), out, empty_gelu_grad(x))
    near(out[-40:], F.gelu(x[-40:] + x[0]))


def test_the_erf_form_to_six_digits(device):
    """The tanh form is off by 5e-4, and nothing overflows far out."""
    x = torch.linspace(-12, 12, 4001, device=device)[None]
    zero, grad, sums = torch.zeros_like(x[0]), torch.ones_like(x), torch.empty_like(x)
    exact = x.double().requires_grad_()
    wanted = F.gelu(exact)
    out, gelu_grad = torch.empty_like(x), empty_gelu_grad(x)
    bias_gelu(x, zero, out, gelu_grad)
    assert (out - wanted).abs().max() < 1.5e-6
    gelu_backward_(grad, gelu_grad, sums)
    assert (grad - torch.autograd.grad(wanted.sum(), exact)[0]).abs().max() < 1.5e-6
    far = torch.tensor([[-1e4, 1e4]], device=device)
    bias_gelu(far, zero[:2], far, torch.empty_like(far))
    assert far.tolist() == [[0.0, 1e4]]


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
        found, gelu_grad, torch.empty(num_partials(rows, width, device), width, device=device)
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
    sums = torch.full(
        (gemm_gelu.num_partials(rows, width, device), width), torch.nan, device=device
    )
    grad_up_proj = torch.full_like(inner, torch.nan, dtype=dtype)
    gemm_gelu_backward(through, weight, gelu_grad, sums, grad_up_proj)
    near(grad_up_proj, expected, "inner", SHARES[dtype])
    near(sums.sum(0), expected.sum(0), "bias", SHARES[dtype])


@pytest.mark.parametrize("shape", [(48, 192), (512, 2048), (64, 72)])
def test_feed_forward_parts_that_do_not_fit(shape):
    assert not supports(*shape, torch.float32, torch.device("cpu"))
