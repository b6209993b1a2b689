"""The embedding block and the gradients of its tables."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import embedding as embed
from electra.kernels.any_gpu.embedding import Embedding, Linear
from electra.kernels.any_gpu.random import keep_mask

EPS = 1e-12
WORDS, PLACES = 40, 160


@pytest.fixture
def tables(normal):
    """Made for a width: tokens, positions, segments, weight and shift of the norm."""
    return lambda width: [
        *(normal(WORDS, width), normal(PLACES, width), normal(2, width)),
        *(normal(width), normal(width)),
    ]


def plain(ids, segments, tables, mask):
    token, position, segment, weight, shift = tables
    x = token[ids] + position[: ids.shape[1]] + segment[segments]
    x = F.layer_norm(x, weight.shape, weight, shift, EPS)
    return x.flatten(0, 1) * mask


def compare(ids, segments, tables, seed, p, near) -> None:
    width = tables[0].shape[1]
    mask = keep_mask((ids.numel(), width), seed, p)
    wanted = plain(ids, segments, tables, mask)
    found = Embedding.apply(ids, segments, *tables, EPS, p, torch.float32)
    near(found, wanted)
    grad = torch.randn(wanted.shape).to(wanted)
    grads = (torch.autograd.grad(out, tables, grad) for out in (found, wanted))
    for name, a, b in zip(("token", "position", "segment", "weight", "shift"), *grads, strict=True):
        near(a, b, name)


@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize(
    ("rows", "length", "width"), [(3, 21, 48), (2, 70, 96), (5, 5, 16), (1, 150, 64)]
)
def test_embed(rows, length, width, p, device, seed, tables, near, monkeypatch):
    monkeypatch.setattr(embed, "draw_seeds", lambda *_: seed[None])
    made = tables(width)
    ids = torch.randint(0, WORDS // 2, (rows, length)).to(device)  # many words twice, some never
    segments = torch.randint(0, 2, (rows, length)).to(device)
    compare(ids, segments, made, seed, p, near)


def test_rows_that_are_cut_from_wider_ones(device, seed, tables, near):
    stored = torch.randint(0, WORDS, (4, 12)).to(device)
    halves = torch.randint(0, 2, (4, 12)).to(device)
    compare(stored[:, :-2], halves[:, 1:-1], tables(48), seed, 0.0, near)


def test_each_pass_has_its_own_dropout(device, tables):
    made, ids = tables(48), torch.zeros(2, 9, dtype=torch.long, device=device)
    first, second = (Embedding.apply(ids, ids, *made, EPS, 0.5, torch.float32) for _ in range(2))
    assert not torch.equal(first == 0, second == 0)


LINEAR = ("x", "weight", "bias")


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

        monkeypatch.setattr(embed, "weight_grad", weight_grad)
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
