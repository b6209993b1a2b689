"""The CPU's dropout is dropout, with fewer random numbers."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from electra.models.dropout import attend, drop


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("shape", [(1001, 37), (3, 5, 7, 1001)])
def test_rate_and_scale(p, shape):
    torch.manual_seed(0)
    x = torch.ones(shape)
    found = drop(x, p, training=True)
    kept = found > 0
    count = x.numel()
    assert abs(kept.sum() - count * (1 - p)) < 5 * (count * p * (1 - p)) ** 0.5
    torch.testing.assert_close(
        found[kept], torch.full_like(found[kept], 1 / (1 - p)), rtol=1e-4, atol=0
    )
    flat = kept.flatten().float() - (1 - p)
    for lag in (1, 2, 3, 4, 8):  # four elements share a draw
        product = (flat[lag:] * flat[:-lag]).mean() / (p * (1 - p))
        assert abs(product) < 5 / count**0.5, lag


def test_the_highest_rates_leave_something():
    assert drop(torch.ones(400_000), 0.999999, training=True).isfinite().all()


def test_what_is_dropped_has_no_gradient():
    x = torch.randn(100, 30, requires_grad=True)
    found = drop(x, 0.3, training=True)
    found.sum().backward()
    assert torch.equal(x.grad == 0, found == 0)
    assert 0.2 < (found == 0).float().mean() < 0.4


def test_no_random_numbers_without_dropout():
    x, before = torch.randn(8, 8), torch.get_rng_state()
    assert drop(x, 0.5, training=False) is x
    assert drop(x, 0.0, training=True) is x
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("masked", [False, True])
def test_attention(masked):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 4, 9, 16)
    mask = torch.rand(2, 1, 1, 9) < 0.7 if masked else None
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(attend(q, k, v, mask, lambda x: x), wanted)
    half = partial(drop, p=0.5, training=True)
    mean = torch.stack([attend(q, k, v, mask, half) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, wanted, rtol=0, atol=0.1)
