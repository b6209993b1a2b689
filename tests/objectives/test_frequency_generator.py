"""Objectives with a generator that does not learn."""

import math

import pytest
import torch
from scipy.stats import chisquare

from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch


def test_unigram_samples_follow_the_frequencies(make, batch, repeat):
    """Some 50,000 draws; special tokens and holes of the vocabulary are never among them."""
    absent = (50, 51)
    objective = make("rtd", generator={"kind": "unigram"}, absent=absent)
    counts = torch.zeros(64, dtype=torch.float64)
    counts[:60] = torch.rand(60, dtype=torch.float64) ** 3 * 1e5
    objective.generator.set_counts(counts)
    big = repeat(batch, 1500)
    masked = objective.mask(big)
    is_masked = torch.bincount(
        objective.run_mlm(
            objective.generator, masked.inputs, big, masked, sample=True
        ).samples.flatten(),
        minlength=64,
    )
    words = [i for i in range(60) if i not in (0, 2, 3, 4, *absent)]
    assert is_masked.sum() == is_masked[words].sum() > 50_000
    expected = counts[words] / counts[words].sum() * is_masked.sum()
    assert chisquare(is_masked[words], expected).pvalue > 1e-4


def test_uniform_samples_are_uniform(make, batch, repeat):
    objective = make("rtd", generator={"kind": "uniform"})
    big = repeat(batch, 300)
    masked = objective.mask(big)
    mlm = objective.run_mlm(objective.generator, masked.inputs, big, masked, sample=True)
    is_masked = torch.bincount(mlm.samples.flatten(), minlength=64)
    words = [i for i in range(60) if i not in (0, 2, 3, 4)]
    assert is_masked.sum() == is_masked[words].sum()
    assert chisquare(is_masked[words]).pvalue > 1e-4
    assert mlm.loss.item() / int(masked.is_masked.sum()) == pytest.approx(math.log(56), rel=1e-5)


def test_a_token_that_was_never_counted_has_a_finite_loss(make, batch, ask):
    objective = make("rtd", generator={"kind": "unigram"})
    counts = torch.zeros(64, dtype=torch.float64)
    counts[7] = 1000
    objective.generator.set_counts(counts)
    _, output, sums = ask(objective, batch)
    assert output.loss.isfinite()
    assert objective.compute_metrics(sums)["mlm_loss"] > 5


def test_unused_slots_have_no_loss(make, ask):
    """They hold whatever is left: a [CLS] has no probability, and 0 x infinity is no number."""
    ids = torch.tensor([[2, 9, 3, 0, 0, 0, 0, 0], [2, 5, 6, 7, 8, 9, 10, 3]])
    batch = Batch(ids, torch.zeros_like(ids), ids != 0, ids != 0, torch.arange(2))
    objective = make("rtd", generator={"kind": "uniform"}, mask_rate=0.5)
    masked, output, sums = ask(objective, batch)
    assert not masked.is_masked[0].all()
    assert output.loss.isfinite()
    assert objective.compute_metrics(sums)["mlm_loss"] == pytest.approx(math.log(56), rel=1e-5)


def test_a_generator_without_weights_is_neither_trained_nor_exported(make, batch, reached):
    for kind in ("rtd", "rtd-masked", "replace-mlm", "all-tokens-mlm"):
        objective = make(kind, generator={"kind": "unigram"})
        assert isinstance(objective.generator, FrequencyGenerator)
        found = reached(objective, batch)
        assert found == {n for n, _ in objective.named_parameters()}
        assert "generator" not in objective.networks()
        assert objective.hidden_share() is None  # the health check must not blame it
