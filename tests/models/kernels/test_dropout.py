"""The random bits of the kernels: those of the twins, and random enough."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from electra.models.kernels.dropout import (
    draw_seeds,
    keep_mask,
    keep_table,
    random_bits,
    random_keys,
    scramble,
    threshold,
)


@triton.jit
def bits_kernel(seed, flat, table, COUNT: tl.constexpr, WIDE: tl.constexpr):
    """Both kinds of bits, as numbers that torch has."""
    at = tl.arange(0, COUNT)
    tl.store(flat + at, random_bits(at, seed).to(tl.int64))
    column = tl.arange(0, WIDE)
    down, across = random_keys(at, seed, 0), random_keys(column, seed, 1)
    to = table + at[:, None] * WIDE + column[None, :]
    tl.store(to, scramble(down[:, None] ^ across[None, :]).to(tl.int64))


@pytest.mark.parametrize("keys", [(123456789, -987654321), (0, 0), (-1, 2**31 - 1)])
def test_the_twins_have_the_bits_of_the_kernels(keys, device):
    seed = torch.tensor([*keys, 0, 0], dtype=torch.int32, device=device)
    flat = torch.zeros(512, dtype=torch.int64, device=device)
    table = torch.zeros(512, 32, dtype=torch.int64, device=device)
    bits_kernel[(1,)](seed, flat, table, 512, 32)
    for p in (0.1, 0.5, 0.9):
        assert torch.equal((flat >= threshold(p)) / (1 - p), keep_mask((512,), seed, p))
        assert torch.equal((table >= threshold(p)) / (1 - p), keep_table(512, 32, seed, p))


def kept(shape: tuple[int, int], seed: torch.Tensor, p: float, kind: str) -> torch.Tensor:
    """Dropout of either kind as numbers with mean 0 and variance 1."""
    factors = keep_mask(shape, seed, p) if kind == "mask" else keep_table(*shape, seed, p)
    return ((factors > 0).float() - (1 - p)) / (p * (1 - p)) ** 0.5


SEEDS = ((7, 80), (8, 80), (7, 81), (-5, 123456), (1 << 30, -(1 << 30)), (0, 1))
SHAPE = 1500, 256


@pytest.mark.parametrize("kind", ["mask", "table"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_share_that_is_dropped(kind, p):
    """In all, in each column and in each row: 0.0026 would be five standard deviations of all."""
    for keys in SEEDS:
        x = kept(SHAPE, torch.tensor(keys), p, kind)
        assert x.mean().abs() < 5 / x.numel() ** 0.5, keys
        for dim in (0, 1):  # sums of independent numbers have the variance of one of them
            spread = (x.sum(dim) / x.shape[dim] ** 0.5).var().item()
            assert 0.6 < spread < 1.5, (keys, dim)


@pytest.mark.parametrize("kind", ["mask", "table"])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_and_seeds_have_nothing_in_common(kind, p):
    seen = [kept(SHAPE, torch.tensor(keys), p, kind) for keys in SEEDS]

    def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
        return (a * b).mean().abs().item() < 6 / a.numel() ** 0.5

    for x in seen:
        for shift in (1, 2, 3, 16, 128):
            assert apart(x[:, shift:], x[:, :-shift])
            assert apart(x[shift:], x[:-shift])
        assert apart(x[1:, 1:], x[:-1, :-1])
        corners = x[1:, 1:] * x[:-1, 1:], x[1:, :-1] * x[:-1, :-1]  # a table is made of two keys
        assert apart(*corners)
    for i, x in enumerate(seen):
        for y in seen[:i]:
            assert apart(x, y)
            for shift in (1, 64):  # nor is one a stretch of the other
                assert apart(x.flatten()[shift:], y.flatten()[:-shift])
                assert apart(x.flatten()[:-shift], y.flatten()[shift:])


def test_seeds_follow_torchs_generator(device):
    torch.manual_seed(1)
    first = draw_seeds(50, device)
    assert first.shape == (50, 4)
    assert first.dtype == torch.int32
    assert len(first[:, :2].unique(dim=0)) == 50
    assert (first[:, :2] < 0).any(0).all()
    assert not torch.equal(draw_seeds(50, device), first)
    torch.manual_seed(1)
    assert torch.equal(draw_seeds(50, device), first)
