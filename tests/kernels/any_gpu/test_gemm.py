"""GELU and LayerNorm with what surrounds them, and their gradients, against torch."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import gemm
from electra.kernels.any_gpu.gemm import (
    NORM_BACKWARD_ELEMENTS,
    add_layernorm,
    add_layernorm_backward,
    bias_gelu,
    empty_gelu_grad,
    gelu_backward_,
    gelu_partials,
    layernorm_partials,
)
from electra.kernels.any_gpu.random import keep_mask
from electra.kernels.any_gpu.reduce import tile

EPS = 1e-12


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (16, 128), (37, 96), (70, 200)])
def test_bias_gelu(rows, width, device, normal, near):
    x, bias, grad = normal(rows, width), normal(width), normal(rows, width).detach()
    wanted = F.gelu(x + bias)
    out, gelu_grad = torch.empty_like(x), empty_gelu_grad(x)
    bias_gelu(x, bias, out, gelu_grad)
    near(out, wanted)

    grad_x, grad_bias = torch.autograd.grad(wanted, (x, bias), grad)
    sums = torch.full((gelu_partials(rows, width, device), width), torch.nan, device=device)
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
    sums = torch.empty(gelu_partials(*x.shape, device), 100, device=device)
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

    monkeypatch.setattr(gemm, "bias_gelu_kernel", Kernel())
    monkeypatch.setattr(gemm, "gelu_backward_kernel", Kernel())
    x = torch.empty(2**20, 1024, device="meta")
    sums = torch.empty(gelu_partials(2**20, 1024, x.device), 1024, device="meta")
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


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(
    ("rows", "width"),
    [(1, 48), (200, 16), (37, 48), (70, 96), (300, 64), (37, 256), (7, 400), (9, 768), (5, 1100)],
)
def test_add_layernorm(rows, width, p, device, seed, normal, near):
    x, residual = normal(rows, width), normal(rows, width)
    bias, weight, shift = normal(width), normal(width), normal(width)
    mask = keep_mask((rows, width), seed, p)
    wanted = F.layer_norm(residual + (x + bias) * mask, (width,), weight, shift, EPS)
    found, through = (torch.full_like(x, torch.nan) for _ in range(2))
    kept = add_layernorm(x, bias, residual, (weight, shift, EPS), seed, p, found)
    near(found, wanted)

    grad = normal(rows, width).detach()
    expected = torch.autograd.grad(wanted, (residual, x, weight, shift, bias), grad)
    parts = layernorm_partials(rows, width, device)
    sums = torch.full((parts, 3, width), torch.nan, device=device)
    grad_residual = add_layernorm_backward(grad, *kept, weight, sums, seed, p, through)
    names = ("residual", "x", "weight", "shift", "bias")
    for name, a, b in zip(names, (grad_residual, through, *sums.sum(0)), expected, strict=True):
        near(a, b, name)


def test_the_shapes_do_not_all_fill_their_tiles():
    assert tile(48, NORM_BACKWARD_ELEMENTS)[0] > 48
    assert 37 % tile(48, NORM_BACKWARD_ELEMENTS)[1]
    assert tile(256, NORM_BACKWARD_ELEMENTS)[1] * 2 < 37  # more than one for each program


def test_a_mean_of_1000_leaves_the_spread(device, seed, normal, near):
    """Sums of squares minus the square of the sum would lose it."""
    x, weight, zero = normal(8, 48), normal(48), torch.zeros(48, device=device)
    residual = torch.full((8, 48), 1000.0, device=device)
    found = torch.empty_like(residual)
    add_layernorm(x, zero, residual, (weight, zero, EPS), seed, 0.0, found)
    exact = (x.detach() + 1000).double()
    near(found, F.layer_norm(exact, (48,), weight.detach().double()).float(), share=3e-4)
