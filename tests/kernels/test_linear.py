"""A linear layer whose gradients come in fp32."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import linear
from electra.kernels.any_gpu.linear import Linear, sum_rows

NAMES = ("x", "weight", "bias")


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 16, 48), (37, 48, 96), (700, 24, 64), (9, 32, 8)]
)
def test_linear(rows, inputs, outputs, normal, near):
    leaves = normal(rows, inputs), normal(outputs, inputs), normal(outputs)
    found, wanted = Linear.apply(*leaves), F.linear(*leaves)
    near(found, wanted)
    grad = normal(rows, outputs).detach()
    grads = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_gradient_that_repeats_one_number(normal, near):
    leaves = normal(70, 24), normal(48, 24), normal(48)
    grads = (torch.autograd.grad(f(*leaves).sum(), leaves) for f in (Linear.apply, F.linear))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_half_precision_is_added_up_in_fp32(device, normal, near, monkeypatch):
    """A thousand rows, which bf16 would add up to the nearest multiple of 4 or more."""
    if device.type == "cpu":  # which has no products with another result

        def product(a, b):
            assert a.dtype == b.dtype == torch.bfloat16
            return a.float() @ b.float()

        monkeypatch.setattr(linear, "product", product)
    weight, bias = normal(48, 24), normal(48)
    x = normal(1000, 24).detach().bfloat16().requires_grad_()
    out = Linear.apply(x, weight, bias)
    assert out.dtype == torch.bfloat16
    exact = F.linear(x.float(), weight.bfloat16().float(), bias.bfloat16().float())
    near(out.float(), exact, share=4e-3)
    grad = (1 + normal(1000, 48).detach()).bfloat16()
    of_x, of_weight, of_bias = torch.autograd.grad(out, (x, weight, bias), grad)
    assert of_x.dtype == torch.bfloat16
    assert of_weight.dtype == of_bias.dtype == torch.float32
    near(of_x.float(), grad.float() @ weight.bfloat16().float(), share=4e-3)
    near(of_weight, grad.float().t() @ x.float())
    near(of_bias, grad.float().sum(0), share=1e-6)


@pytest.mark.parametrize("width", [8, 96, 300])
def test_every_row_is_added_once(width, device):
    """Powers of two tell which were not, or were twice."""
    for rows in (1, 2, 20):
        x = (2.0 ** torch.arange(rows, device=device))[:, None].expand(-1, width).contiguous()
        assert (sum_rows(x) == 2**rows - 1).all()
    assert (sum_rows(torch.ones(1500, width, device=device)) == 1500).all()
