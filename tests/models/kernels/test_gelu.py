"""gelu(x + bias), its gradients, and the same together with the product before them."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.models.kernels import gelu
from electra.models.kernels.ffn import contract_backward, contract_parts
from electra.models.kernels.gelu import bias_gelu, bias_gelu_backward_, gelu_parts


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (16, 128), (37, 96), (70, 200)])
def test_bias_gelu(rows, width, device, normal, near):
    x, bias, grad = normal(rows, width), normal(width), normal(rows, width).detach()
    wanted = F.gelu(x + bias)
    out = torch.empty_like(x)
    bias_gelu(x, bias, out)
    near(out, wanted)

    of_x, of_bias = torch.autograd.grad(wanted, (x, bias), grad)
    sums = torch.full((gelu_parts(rows, width, device), width), torch.nan, device=device)
    bias_gelu_backward_(grad, x, bias, sums)
    near(grad, of_x, "x")  # in its place
    near(sums.sum(0), of_bias, "bias")


def test_a_million_tokens_have_a_grid_that_a_gpu_takes(monkeypatch):
    """Its first number may be anything, the others end at 65,535."""
    launched = []

    class Kernel:
        def __getitem__(self, grid):
            launched.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(gelu, "bias_gelu_kernel", Kernel())
    monkeypatch.setattr(gelu, "bias_gelu_backward_kernel", Kernel())
    x = torch.empty(2**20, 1024, device="meta")
    sums = torch.empty(gelu_parts(2**20, 1024, x.device), 1024, device="meta")
    bias_gelu(x, x[0], x)
    bias_gelu_backward_(x, x, x[0], sums)
    assert len(launched) == 2
    assert all(number < 2**16 for grid in launched for number in grid[1:])


@pytest.mark.gpu
def test_a_million_tokens(device, near):
    x = torch.randn(2**20 + 1, 136, device=device)
    out = torch.empty_like(x)
    bias_gelu(x, x[0].clone(), out)
    near(out[-40:], F.gelu(x[-40:] + x[0]))


def test_the_erf_form_to_six_digits(device):
    """The tanh form is off by 5e-4, and nothing overflows far out."""
    x = torch.linspace(-12, 12, 4001, device=device)[None]
    zero, grad, sums = torch.zeros_like(x[0]), torch.ones_like(x), torch.empty_like(x)
    exact = x.double().requires_grad_()
    wanted = F.gelu(exact)
    out = torch.empty_like(x)
    bias_gelu(x, zero, out)
    assert (out - wanted).abs().max() < 1.5e-6
    bias_gelu_backward_(grad, x, zero, sums)
    assert (grad - torch.autograd.grad(wanted.sum(), exact)[0]).abs().max() < 1.5e-6
    far = torch.tensor([[-1e4, 1e4]], device=device)
    bias_gelu(far, zero[:2], far)
    assert far.tolist() == [[0.0, 1e4]]


@pytest.mark.parametrize(
    ("rows", "depth", "width"), [(1, 12, 48), (37, 48, 192), (150, 96, 200), (64, 64, 128)]
)
def test_back_through_the_contraction(rows, depth, width, device, normal, near):
    inner, bias = normal(rows, width), normal(width)
    weight, through = normal(depth, width).detach(), normal(rows, depth).detach()
    wanted = F.gelu(inner + bias)
    expected = torch.autograd.grad(wanted @ weight.t(), (inner, bias), through)
    sums = torch.full((contract_parts(rows, width, device), width), torch.nan, device=device)
    of_inner = torch.full_like(inner, torch.nan)
    contract_backward(through, weight, inner, bias, sums, of_inner)
    near(of_inner, expected[0], "inner")
    near(sums.sum(0), expected[1], "bias")
