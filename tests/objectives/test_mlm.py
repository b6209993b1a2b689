"""BERT against a slow reference, and its masks."""

from statistics import fmean

import pytest
import torch

MASK = 4


def test_mlm_against_a_slow_reference(make, batch, ask, losses_at):
    objective = make("mlm")
    masked, output, sums = ask(objective, batch)
    logits = objective.mlm(masked.inputs, batch.segments, batch.attention_mask, masked.positions)
    expected = fmean(losses_at(logits, masked))
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == metrics["model_loss"] == pytest.approx(expected, rel=1e-5)
    right = (logits.argmax(-1) == masked.labels)[masked.is_masked].float().mean().item()
    assert metrics["model_accuracy"] == pytest.approx(right)


def test_mlm_trains_one_network_of_the_discriminators_size(make, batch, reached):
    objective = make("mlm")
    assert objective.mlm.encoder.config.hidden == 32
    assert reached(objective, batch) == {n for n, _ in objective.named_parameters()}
    assert not hasattr(objective, "generator")


def test_80_10_10(make, batch, repeat):
    """Some 70,000 drawn positions: sigma 0.0015 and less."""
    objective = make("mlm", mask_token_prob=0.8, random_token_prob=0.1, absent=(20, 21))
    big = repeat(batch, 3000)
    big = big._replace(ids=torch.where((big.ids == 20) | (big.ids == 21), 5, big.ids))
    masked = objective.mask(big)
    shown = masked.inputs.gather(1, masked.positions)[masked.is_masked]
    true = masked.labels[masked.is_masked]
    assert (shown == MASK).float().mean().item() == pytest.approx(0.8, abs=0.008)
    other = shown[(shown != MASK) & (shown != true)]
    # a random word is the true one now and then: 54 words, about equally frequent
    assert len(other) / len(shown) == pytest.approx(0.1 * 53 / 54, abs=0.006)
    assert not set(other.tolist()) & {0, 2, 3, 4, 20, 21, *range(60, 64)}
    assert len(other.unique()) == 54
    untouched = torch.ones_like(big.attention_mask)
    untouched.scatter_(1, masked.positions, ~masked.is_masked)
    assert torch.equal(masked.inputs[untouched], big.ids[untouched])


def test_masks_are_dynamic(make, batch):
    objective = make("mlm")
    rows = torch.cat([batch.ids, torch.full((6, 2), 40)], 1)
    masked = []
    for step in (0, 1, 0):
        objective.set_step(step)
        masked.append(objective.mask_batch(rows)[1].inputs)
    assert not torch.equal(masked[0], masked[1])
    assert torch.equal(masked[0], masked[2])
