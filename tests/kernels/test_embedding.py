"""The embedding block and the gradients of its tables."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import embedding as embed
from electra.kernels.any_gpu.embedding import Embedding
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
