"""Masking and sampling: properties over many shapes, and statistics of the draws."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.objectives import corrupt
from electra.objectives.corrupt import (
    mask_counts,
    mask_tokens,
    max_masked,
    sample_positions,
    sample_tokens,
    scatter_tokens,
)
from electra.objectives.random import row_keys

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL = (PAD, CLS, SEP, MASK)
MASKABLE = torch.ones(50, dtype=torch.bool)
MASKABLE[list(SPECIAL)] = False


def keys(rows: int, seed: int = 0):
    return row_keys(torch.tensor([seed, 0, 0]), rows)


def rows(batch: int, length: int, seed: int):
    """Rows [CLS] … [SEP] … [SEP] of different lengths, padded."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, length + 1, (batch, 1), generator=g)
    place = torch.arange(length)[None]
    attention_mask = place < lengths
    ids = torch.randint(5, 50, (batch, length), generator=g)
    ids = torch.where(place == 0, CLS, ids)
    ids = torch.where((place == lengths - 1) | (place == lengths // 2), SEP, ids)
    return torch.where(attention_mask, ids, PAD), attention_mask


@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_nearly_everything_can_be_masked(rounding):
    ids, attention_mask = rows(2, 512, seed=0)
    m = mask_tokens(
        ids, attention_mask, MASKABLE, MASK, keys(len(ids)), rate=0.999, rounding=rounding
    )
    assert m.positions.shape == (2, 512)
    assert (m.is_masked.sum(1) == (attention_mask & MASKABLE[ids]).sum(1)).all()


@settings(deadline=None, max_examples=60)
@given(
    batch=st.integers(1, 6),
    length=st.integers(4, 70),
    seed=st.integers(0, 10_000),
    rate=st.sampled_from([0.05, 0.15, 0.25, 0.5]),
    rounding=st.sampled_from(["round", "ceil"]),
    draw=st.sampled_from(["distinct", "repeated"]),
)
def test_masking(batch, length, seed, rate, rounding, draw):
    ids, attention_mask = rows(batch, length, seed)
    torch.manual_seed(seed)
    m = mask_tokens(
        ids,
        attention_mask,
        MASKABLE,
        MASK,
        keys(len(ids)),
        rate=rate,
        rounding=rounding,
        sampling=draw,
    )
    slots = max_masked(length, rate, rounding)
    assert m.positions.shape == m.is_masked.shape == m.labels.shape == (batch, slots)
    for row in range(batch):
        is_masked = m.positions[row][m.is_masked[row]].tolist()
        allowed = (attention_mask[row] & MASKABLE[ids[row]]).nonzero().flatten().tolist()
        assert set(is_masked) <= set(allowed)  # never special, never padding
        if draw == "distinct":
            assert len(set(is_masked)) == len(is_masked)
        tokens = int(attention_mask[row].sum())
        wanted = -(-tokens * rate // 1) if rounding == "ceil" else round(tokens * rate)
        if abs(tokens * rate % 1 - 0.5) > 1e-6:  # a tie may fall either way in fp32
            assert len(is_masked) == min(max(1, wanted), slots, len(allowed))
        untouched = [p for p in range(length) if p not in is_masked]
        assert torch.equal(m.inputs[row, untouched], ids[row, untouched])
        hidden = m.inputs[row, is_masked]
        assert ((hidden == MASK) | (hidden == ids[row, is_masked])).all()  # no random words
    assert torch.equal(m.labels, ids.gather(1, m.positions))


def test_slots_are_those_of_the_released_code():
    assert [max_masked(n, r, "round") for n, r in ((128, 0.15), (512, 0.15), (512, 0.25))] == [
        19,
        79,
        130,
    ]
    assert max_masked(128, 0.15, "ceil") == 20
    assert max_masked(5, 0.15, "round") == 1


@pytest.mark.parametrize("rounding", ["round", "ceil"])
def test_a_mask_rate_in_a_tensor_gives_the_same_counts(rounding):
    """Each length and many rates, those at which a count changes among them."""
    for length in (5, 20, 32, 100, 128, 512):
        attention_mask = torch.arange(length) < torch.arange(1, length + 1)[:, None]
        for part in range(1, 200):
            for rate in (part / 200, part / length % 1 or 0.5, (part / length - 0.005) % 1 or 0.5):
                tensor = torch.tensor(rate, dtype=torch.float64)
                one = mask_counts(attention_mask, attention_mask, rate, rounding)
                assert torch.equal(
                    mask_counts(attention_mask, attention_mask, tensor, rounding), one
                ), (length, rate)


def test_a_mask_rate_in_a_tensor_gives_the_same_masks():
    ids, attention_mask = rows(6, 64, 0)
    for rate in (0.05, 0.15, 0.3):
        found = []
        for share in (rate, torch.tensor(rate, dtype=torch.float64)):
            torch.manual_seed(0)
            found.append(
                mask_tokens(
                    ids, attention_mask, MASKABLE, MASK, keys(len(ids)), rate=share, top_rate=0.3
                )
            )
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_rate_below_the_highest_masks_as_many_as_it_would_alone():
    for length in range(3, 70):
        ids, attention_mask = torch.full((1, length), 9), torch.ones(1, length, dtype=torch.bool)
        alone, below = (
            mask_tokens(
                ids, attention_mask, MASKABLE, MASK, keys(len(ids)), rate=0.15, top_rate=top
            ).is_masked.sum()
            for top in (0.0, 0.5)
        )
        assert alone == below, length


def test_85_percent_of_masked_positions_show_the_mask_token():
    torch.manual_seed(0)
    ids = torch.randint(5, 50, (2000, 128))
    attention_mask = torch.ones_like(ids, dtype=torch.bool)
    m = mask_tokens(ids, attention_mask, MASKABLE, MASK, keys(len(ids)), rate=0.15)
    shown = (m.inputs == MASK).sum() / m.is_masked.sum()
    assert shown.item() == pytest.approx(0.85, abs=0.005)  # 38,000 draws: sigma 0.0018
    assert (m.inputs != ids).sum() == (m.inputs == MASK).sum()


def test_each_position_is_as_likely_and_draws_differ_between_rows_and_calls():
    torch.manual_seed(0)
    candidates = torch.ones(4000, 20, dtype=torch.bool)
    candidates[:, 0] = False
    first = sample_positions(candidates, 3, "distinct", keys(4000))
    counts = torch.bincount(first.flatten(), minlength=20)
    assert counts[0] == 0
    assert counts[1:].float() == pytest.approx(4000 * 3 / 19, abs=120)  # five sigma
    assert not torch.equal(first, sample_positions(candidates, 3, "distinct", keys(4000, seed=1)))
    assert len({tuple(sorted(r)) for r in first.tolist()}) > 500


def test_with_replacement_masks_fewer_tokens():
    torch.manual_seed(0)
    candidates = torch.ones(2000, 128, dtype=torch.bool)
    is_masked = sample_positions(candidates, 19, "repeated", keys(2000))
    distinct = sum(len(set(row)) for row in is_masked.tolist()) / 2000
    assert distinct == pytest.approx(17.7, abs=0.15)  # 13.8 % of 128, the released code's rate


def test_a_row_without_candidates_is_not_masked():
    ids = torch.tensor([[CLS, SEP, PAD, PAD], [CLS, 9, 9, SEP]])
    for draw in ("distinct", "repeated"):
        m = mask_tokens(ids, ids != PAD, MASKABLE, MASK, keys(len(ids)), rate=0.5, sampling=draw)
        assert m.is_masked.sum(1).tolist() == [0, 2]
        assert torch.equal(m.inputs[0], ids[0])


def test_unknown_tokens_are_maskable_as_in_the_released_code():
    ids = torch.full((4, 16), UNK)
    m = mask_tokens(ids, torch.ones_like(ids).bool(), MASKABLE, MASK, keys(len(ids)), rate=0.25)
    assert m.is_masked.all()


@pytest.mark.parametrize("words", [96, 1536, 1501])
def test_samples_of_a_large_vocabulary_follow_the_softmax(words):
    """A few words to a group, many, and one; some words have no chance."""
    torch.manual_seed(0)
    logits = 3 * torch.randn(words)
    logits[::7] = float("-inf")
    found = torch.bincount(
        sample_tokens(logits.expand(20_000, words), 1.0, torch.rand(2, 20_000)), minlength=words
    )
    assert len(found) == words
    expected = 20_000 * logits.softmax(0)
    assert found[expected == 0].sum() == 0
    often = expected > 5
    rest = [found[~often].sum(), expected[~often].sum()]
    squares = ((found - expected) ** 2 / expected)[often].sum() + (rest[0] - rest[1]) ** 2 / rest[1]
    free = int(often.sum())
    assert squares < free + 4 * (2 * free) ** 0.5  # mean and spread of chi-square


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_follow_the_softmax(temperature):
    from scipy.stats import chisquare

    torch.manual_seed(0)
    logits = torch.randn(8) * 2
    draws = 40_000
    found = torch.bincount(
        sample_tokens(logits.expand(draws, 8), temperature, torch.rand(2, draws)), minlength=8
    )
    expected = (logits / temperature).softmax(0) * draws
    assert chisquare(found, expected.double() / expected.double().sum() * draws).pvalue > 1e-4


def test_half_precision_logits_are_sampled_in_fp32():
    """Noise in bf16 has so few values that rare tokens would be drawn far too often or never."""
    torch.manual_seed(0)
    logits = torch.zeros(20_000, 1000)
    logits[:, 0] = 9.0  # the others share 11 %
    found = sample_tokens(logits.bfloat16(), 1.0, torch.rand(2, 20_000))
    assert (found != 0).float().mean().item() == pytest.approx(0.1098, abs=0.012)
    assert len(found.unique()) > 700


def test_the_original_token_can_be_excluded():
    logits = torch.zeros(5000, 4)
    logits[:, 2] = 20
    true = torch.full((5000,), 2)
    assert (sample_tokens(logits, 1.0, torch.rand(2, 5000)) == 2).float().mean() > 0.99
    assert not (sample_tokens(logits, 1.0, torch.rand(2, 5000), excluded=true) == 2).any()


def test_no_gradient_and_never_an_id_of_probability_zero():
    logits = torch.zeros(1000, 6, requires_grad=True)
    masked = logits.masked_fill(torch.tensor([0, 0, 0, 0, 1, 1]).bool(), float("-inf"))
    samples = sample_tokens(masked, 1.0, torch.rand(2, 1000))
    assert not samples.requires_grad
    assert samples.max() == 3


def test_the_largest_and_the_smallest_random_number_hit_a_weight():
    weights = torch.rand(5000, 7) * (torch.rand(5000, 7) < 0.7)
    weights[:, 3] += 1e-3
    for height in (0.0, 1 - 2**-24):
        found = corrupt.sample_categorical(weights, torch.full((5000,), height))
        assert (weights.gather(1, found[:, None]) > 0).all()


def test_only_entries_with_weight_are_sampled_if_the_cdf_is_not_monotonic(monkeypatch):
    """As on a GPU, where a sum may be below the one before it by a rounding."""
    weights = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0])
    little = 2**-20
    cdf = torch.tensor([0.5, 0.5 - little, 1.0, 1.0 - 8 * little, 1.0 + 8 * little])
    monkeypatch.setattr(torch.Tensor, "cumsum", lambda *_: cdf)
    for height in (0.0, 0.5 - little / 2, 1 - 4 * little, 1 - 2**-24):
        assert weights[corrupt.sample_categorical(weights, torch.tensor(height))] > 0


@pytest.mark.gpu
def test_only_entries_with_weight_are_sampled_on_a_gpu():
    torch.manual_seed(0)
    weights = (3 * torch.randn(20_000, 128, device="cuda")).exp()
    weights[:, 100:], weights[:, 40:50] = 0, 0
    for _ in range(50):
        found = corrupt.sample_categorical(weights, torch.rand(20_000, device="cuda"))
        assert (weights.gather(1, found[:, None]) > 0).all()


def test_scatter_tokens_takes_the_larger_id():
    ids = torch.tensor([[1, 2, 3]])
    positions = torch.tensor([[1, 1, 0]])
    tokens = torch.tensor([[7, 9, 5]])
    assert scatter_tokens(ids, positions, tokens, torch.tensor([[True, True, False]])).tolist() == [
        [1, 9, 3]
    ]
