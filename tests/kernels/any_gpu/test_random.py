"""The random bits of the kernels: those of the reference implementations, and random enough."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import triton
import triton.language as tl

from electra.kernels.any_gpu.random import (
    INFINITY,
    attention_keep_mask,
    column_keys,
    draw_seeds,
    drop_count,
    drop_rows,
    dropped,
    hash_keys,
    keep_mask,
    pair_bits,
    rescale,
    score_grads,
    seed_keys,
)

RATES = (0.1, 0.48, 0.5, 0.9)


@triton.jit
def tables_kernel(seed, tables, drop: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Ones with attention's dropout; the same as (columns, queries); 2 * kept * 3 + 2 * 5; then
    ones with that of rows, and in three dimensions."""
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    query_key, pair_key = seed_keys(seed)
    down, across = hash_keys(m, query_key), hash_keys(tl.arange(0, BLOCK_N // 2), pair_key)
    bits = pair_bits(down, across, 1)
    ones = tl.full((BLOCK_M, BLOCK_N), 1.0, tl.float32)
    turned = dropped(tl.trans(ones), pair_bits(down, across, 0), drop, 0)
    both = score_grads(ones * 2, ones * 3, tl.full((BLOCK_M, 1), 5.0, tl.float32), bits, drop)
    to = tables + m[:, None] * BLOCK_N + n[None, :]
    tl.store(to, dropped(ones, bits, drop, 1))
    tl.store(to + BLOCK_M * BLOCK_N, tl.trans(turned))
    tl.store(to + 2 * BLOCK_M * BLOCK_N, both)
    pairs = column_keys(BLOCK_N, pair_key)
    tl.store(to + 3 * BLOCK_M * BLOCK_N, drop_rows(ones, m[:, None], query_key, pairs, drop, 1.0))
    deep = tl.reshape(ones, (BLOCK_M // 4, 4, BLOCK_N))
    deep = drop_rows(deep, tl.reshape(m, (BLOCK_M // 4, 4, 1)), query_key, pairs, drop, 1.0)
    tl.store(to + 4 * BLOCK_M * BLOCK_N, tl.reshape(deep, (BLOCK_M, BLOCK_N)))


@pytest.mark.parametrize("keys", [(123456789, -987654321), (0, 0), (-1, 2**31 - 1)])
def test_the_reference_implementations_have_the_bits_of_the_kernels(keys, device):
    seed = torch.tensor([*keys, 0, 0], dtype=torch.int32, device=device)
    tables = torch.zeros(5, 512, 32, device=device)
    for p in RATES:
        tables_kernel[(1,)](seed, tables, drop_count(p), 512, 32)
        kept = attention_keep_mask(512, 32, seed, p) > 0
        mask = keep_mask((512, 32), seed, p) > 0
        assert torch.equal(tables, torch.stack([kept, kept, 6 * kept + 10, mask, mask]).float())


@triton.jit
def patterns_kernel(words, out, drop: tl.constexpr):
    """A tile of ones, 16 x 128, after dropout by given words."""
    row, pair, column = tl.arange(0, 16), tl.arange(0, 64), tl.arange(0, 128)
    bits = tl.load(words + tl.program_id(0) * 1024 + row[:, None] * 64 + pair[None, :])
    bits = tl.reshape(bits.to(tl.uint32), (16, 8, 8))
    to = out + tl.program_id(0) * 2048 + row[:, None] * 128 + column[None, :]
    tl.store(to, dropped(tl.full((16, 128), 1.0, tl.float32), bits, drop, 1))


@pytest.mark.parametrize("drop", [1, 6554, 0x7C00, 0x7C01, 40000, 65535])
def test_the_patterns_that_drop_an_element(drop, device):
    """Exactly as many as they should be, in either half of a word."""
    lower = torch.arange(65536, device=device)
    upper = lower * 40503 % 65536  # in another order
    out = torch.zeros(8192, 2, 8, device=device)  # eight words, lower and upper halves
    patterns_kernel[(64,)](lower | (upper << 16), out, drop)
    for bits, kept in zip((lower, upper), out.unbind(1), strict=True):
        gone = kept.flatten()[bits.argsort()] == 0
        assert gone.sum() == drop
        assert gone[[(0x7C00 - i) % 65536 for i in range(drop)]].all()
        if drop <= INFINITY.value:
            numbers = lower.short().view(torch.float16)
            assert torch.equal(gone, numbers >= numbers[0x7C01 - drop])


@pytest.mark.parametrize("p", [0.0, 1e-5, 0.1, 0.3333, 0.4843, 0.4845, 0.5, 0.97, 0.9999])
def test_the_rate_of_dropout_and_its_expectation(p):
    assert abs(drop_count(p) / 65536 - p) <= 0.5 / 65536
    assert (1 - drop_count(p) / 65536) * rescale(p) == pytest.approx(1, rel=1e-12)
    assert rescale(1 - 1e-9) == 65536  # no division by zero


def kept(shape: tuple[int, int], seed: torch.Tensor, p: float, kind: str) -> torch.Tensor:
    """Dropout of either kind as numbers with mean 0 and variance 1."""
    factors = keep_mask(shape, seed, p) if kind == "mask" else attention_keep_mask(*shape, seed, p)
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
    masks = [kept(SHAPE, torch.tensor(keys), p, kind) for keys in SEEDS]

    def apart(a: torch.Tensor, b: torch.Tensor) -> bool:
        return (a * b).mean().abs().item() < 6 / a.numel() ** 0.5

    for x in masks:
        for shift in (1, 2, 3, 8, 16, 128):
            assert apart(x[:, shift:], x[:, :-shift])
            assert apart(x[shift:], x[:-shift])
        assert apart(x[1:, 1:], x[:-1, :-1])
        corners = x[1:, 1:] * x[:-1, 1:], x[1:, :-1] * x[:-1, :-1]  # a table is made of two keys
        assert apart(*corners)
        # The two whom one word decides about
        form = (-1, 2) if kind == "mask" else (-1, 2, 8)
        lower, upper = x.view(len(x), *form).unbind(2)
        assert apart(lower, upper)
        assert apart(lower[1:], upper[:-1])
    for i, x in enumerate(masks):
        for y in masks[:i]:
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
