"""gelu(x + bias), its gradients, and the same together with the product before them."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

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
