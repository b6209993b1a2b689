"""LayerNorm(residual + dropout(x + bias)) and its gradients against torch's."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.layernorm import (
    BACKWARD_ELEMENTS,
    add_layernorm,
    add_layernorm_backward,
    num_partials,
    tile,
)
from electra.kernels.any_gpu.random import keep_mask

EPS = 1e-12


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
    parts = num_partials(rows, width, device)
    sums = torch.full((parts, 3, width), torch.nan, device=device)
    of_residual = add_layernorm_backward(grad, *kept, weight, sums, seed, p, through)
    names = ("residual", "x", "weight", "shift", "bias")
    for name, a, b in zip(names, (of_residual, through, *sums.sum(0)), expected, strict=True):
        near(a, b, name)


def test_the_shapes_do_not_all_fill_their_tiles():
    assert tile(48, BACKWARD_ELEMENTS)[0] > 48
    assert 37 % tile(48, BACKWARD_ELEMENTS)[1]
    assert tile(256, BACKWARD_ELEMENTS)[1] * 2 < 37  # more than one for each program


def test_a_mean_of_1000_leaves_the_spread(device, seed, normal, near):
    """Sums of squares minus the square of the sum would lose it."""
    x, weight, zero = normal(8, 48), normal(48), torch.zeros(48, device=device)
    residual = torch.full((8, 48), 1000.0, device=device)
    found = torch.empty_like(residual)
    add_layernorm(x, zero, residual, (weight, zero, EPS), seed, 0.0, found)
    exact = (x.detach() + 1000).double()
    near(found, F.layer_norm(exact, (48,), weight.detach().double()).float(), share=3e-4)
