"""The discriminator's verdict and its gradients."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.rtd_head import Score

NAMES = ("x", "dense", "bias", "weight", "shift")


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (37, 96), (150, 64)])
def test_score(rows, width, normal, near):
    leaves = (
        *(normal(rows, width), normal(width, width), normal(width)),
        *(normal(1, width), normal(1)),
    )
    x, dense, bias, weight, shift = leaves
    wanted = F.linear(F.gelu(F.linear(x, dense, bias)), weight, shift).squeeze(-1)
    found = Score.apply(*leaves)
    near(found, wanted)
    grad = normal(rows).detach()
    grads = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    for name, a, b in zip(NAMES, *grads, strict=True):
        near(a, b, name)


def test_a_gradient_that_repeats_one_number(normal, near):
    leaves = normal(9, 48), normal(48, 48), normal(48), normal(1, 48), normal(1)
    found = torch.autograd.grad(Score.apply(*leaves).sum(), leaves)  # expanded, not stored
    wanted = torch.autograd.grad(
        (Score.apply(*leaves) * torch.ones_like(leaves[0][:, 0])).sum(), leaves
    )
    for name, a, b in zip(NAMES, found, wanted, strict=True):
        near(a, b, name)
