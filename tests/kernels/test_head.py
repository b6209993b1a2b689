"""The generator's head before its table, and its gradients."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import head
from electra.kernels.any_gpu.mlm_head import Head

NAMES = ("x", "dense", "bias", "weight", "shift")
EPS = 1e-12


@pytest.fixture
def leaves(normal):
    """`leaves(9, 24, 48)`: of slots, hidden and width, in the order of `NAMES`."""
    return lambda slots, hidden, width: (
        *(normal(slots, hidden), normal(width, hidden), normal(width)),
        *(normal(width), normal(width)),
    )


def plain(x, dense, bias, weight, shift, eps=EPS):
    return F.layer_norm(F.gelu(F.linear(x, dense, bias)), weight.shape, weight, shift, eps)


@pytest.mark.parametrize("eps", [EPS, 0.5])
@pytest.mark.parametrize(
    ("slots", "hidden", "width"),
    [(1, 16, 48), (37, 24, 96), (70, 32, 128), (150, 64, 16), (5, 48, 300), (4, 8, 4)],
)
def test_head(slots, hidden, width, eps, leaves, normal, near):
    given = leaves(slots, hidden, width)
    found, wanted = Head.apply(*given, eps), plain(*given, eps)
    near(found, wanted)
    grad = normal(slots, width).detach()
    grads = (torch.autograd.grad(out, given, grad) for out in (found, wanted))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_gradient_that_is_a_part_of_a_larger_tensor(leaves, normal, near):
    given, grad = leaves(9, 24, 48), normal(9, 60).detach()[:, 5:53]
    grads = (
        torch.autograd.grad(out, given, grad) for out in (Head.apply(*given, EPS), plain(*given))
    )
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_wide_row_takes_several_warps(leaves, normal, near):
    given = leaves(3, 16, 1100)
    grad = normal(3, 1100).detach()
    grads = (
        torch.autograd.grad(out, given, grad) for out in (Head.apply(*given, EPS), plain(*given))
    )
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_half_precision_keeps_the_parameters_gradients_in_fp32(
    device, leaves, normal, near, monkeypatch
):
    if device.type == "cpu":  # which has no products with another result

        def product(a, b):
            assert a.dtype == b.dtype == torch.bfloat16
            return a.float() @ b.float()

        monkeypatch.setattr(head, "product", product)
    x, *params = leaves(200, 24, 48)
    half = x.detach().bfloat16().requires_grad_()
    exact = half.detach().float().requires_grad_()
    found, wanted = Head.apply(half, *params, EPS), plain(exact, *params)
    assert found.dtype == torch.bfloat16
    near(found.float(), wanted, share=0.02)
    grad = normal(200, 48).detach().bfloat16()
    grads = torch.autograd.grad(found, (half, *params), grad)
    expected = torch.autograd.grad(wanted, (exact, *params), grad.float())
    assert [g.dtype for g in grads] == [torch.bfloat16, *[torch.float32] * 4]
    for name, a, b in zip(NAMES, grads, expected, strict=True):
        assert (a - b).norm() < 0.01 * b.norm(), name
    assert not torch.equal(grads[1], grads[1].bfloat16().float())  # it never was bf16
    near(grads[4], grad.float().sum(0), "shift", share=1e-6)
