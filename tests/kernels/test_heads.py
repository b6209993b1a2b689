"""The embedding projection, the heads of both networks, and their gradients."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import heads
from electra.kernels.any_gpu.heads import Linear, MlmHead, RtdHead, sum_rows

NAMES = ("x", "dense", "bias", "weight", "shift")
LINEAR = ("x", "weight", "bias")
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
def test_mlm_head(slots, hidden, width, eps, leaves, normal, near):
    given = leaves(slots, hidden, width)
    found, wanted = MlmHead.apply(*given, eps), plain(*given, eps)
    near(found, wanted)
    grad = normal(slots, width).detach()
    grads = (torch.autograd.grad(out, given, grad) for out in (found, wanted))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_gradient_that_is_a_part_of_a_larger_tensor(leaves, normal, near):
    given, grad = leaves(9, 24, 48), normal(9, 60).detach()[:, 5:53]
    grads = (
        torch.autograd.grad(out, given, grad) for out in (MlmHead.apply(*given, EPS), plain(*given))
    )
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_wide_row_takes_several_warps(leaves, normal, near):
    given = leaves(3, 16, 1100)
    grad = normal(3, 1100).detach()
    grads = (
        torch.autograd.grad(out, given, grad) for out in (MlmHead.apply(*given, EPS), plain(*given))
    )
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_half_precision_keeps_the_parameters_gradients_in_fp32(
    device, leaves, normal, near, monkeypatch
):
    if device.type == "cpu":  # which has no products with another result

        def weight_grad(a, b):
            assert a.dtype == b.dtype == torch.bfloat16
            return a.float() @ b.float()

        monkeypatch.setattr(heads, "weight_grad", weight_grad)
    x, *params = leaves(200, 24, 48)
    half = x.detach().bfloat16().requires_grad_()
    exact = half.detach().float().requires_grad_()
    found, wanted = MlmHead.apply(half, *params, EPS), plain(exact, *params)
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


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 16, 48), (37, 48, 96), (700, 24, 64), (9, 32, 8)]
)
def test_linear(rows, inputs, outputs, normal, near):
    leaves = normal(rows, inputs), normal(outputs, inputs), normal(outputs)
    found, wanted = Linear.apply(*leaves), F.linear(*leaves)
    near(found, wanted)
    grad = normal(rows, outputs).detach()
    grads = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    for name, a, b in zip(LINEAR, *grads, strict=True):
        near(a, b, name)


def test_linear_with_an_expanded_gradient(normal, near):
    leaves = normal(70, 24), normal(48, 24), normal(48)
    grads = (torch.autograd.grad(f(*leaves).sum(), leaves) for f in (Linear.apply, F.linear))
    for name, a, b in zip(LINEAR, *grads, strict=True):
        near(a, b, name)


def test_half_precision_is_added_up_in_fp32(device, normal, near, monkeypatch):
    """A thousand rows, which bf16 would add up to the nearest multiple of 4 or more."""
    if device.type == "cpu":  # which has no products with another result

        def weight_grad(a, b):
            assert a.dtype == b.dtype == torch.bfloat16
            return a.float() @ b.float()

        monkeypatch.setattr(heads, "weight_grad", weight_grad)
    weight, bias = normal(48, 24), normal(48)
    x = normal(1000, 24).detach().bfloat16().requires_grad_()
    out = Linear.apply(x, weight, bias)
    assert out.dtype == torch.bfloat16
    exact = F.linear(x.float(), weight.bfloat16().float(), bias.bfloat16().float())
    near(out.float(), exact, share=4e-3)
    grad = (1 + normal(1000, 48).detach()).bfloat16()
    grad_x, grad_weight, grad_bias = torch.autograd.grad(out, (x, weight, bias), grad)
    assert grad_x.dtype == torch.bfloat16
    assert grad_weight.dtype == grad_bias.dtype == torch.float32
    near(grad_x.float(), grad.float() @ weight.bfloat16().float(), share=4e-3)
    near(grad_weight, grad.float().t() @ x.float())
    near(grad_bias, grad.float().sum(0), share=1e-6)


@pytest.mark.parametrize("width", [8, 96, 300])
def test_every_row_is_added_once(width, device):
    """Powers of two tell which were not, or were twice."""
    for rows in (1, 2, 20):
        x = (2.0 ** torch.arange(rows, device=device))[:, None].expand(-1, width).contiguous()
        assert (sum_rows(x) == 2**rows - 1).all()
    assert (sum_rows(torch.ones(1500, width, device=device)) == 1500).all()


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (37, 96), (150, 64)])
def test_rtd_head(rows, width, normal, near):
    leaves = (
        *(normal(rows, width), normal(width, width), normal(width)),
        *(normal(1, width), normal(1)),
    )
    x, dense, bias, weight, shift = leaves
    wanted = F.linear(F.gelu(F.linear(x, dense, bias)), weight, shift).squeeze(-1)
    found = RtdHead.apply(*leaves)
    near(found, wanted)
    grad = normal(rows).detach()
    grads = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_rtd_head_with_an_expanded_gradient(normal, near):
    leaves = normal(9, 48), normal(48, 48), normal(48), normal(1, 48), normal(1)
    found = torch.autograd.grad(RtdHead.apply(*leaves).sum(), leaves)  # expanded, not stored
    wanted = torch.autograd.grad(
        (RtdHead.apply(*leaves) * torch.ones_like(leaves[0][:, 0])).sum(), leaves
    )
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        near(a, b, name)
