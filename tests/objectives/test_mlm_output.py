"""Loss, accuracy and samples of a masked language model, against NumPy."""

import numpy as np
import torch

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.mlm_output import (
    cross_entropy_sum,
    is_correct,
    mlm_output,
    sample_replacements,
)
from electra.objectives.settings import ObjectiveConfig

ROWS, SLOTS, VOCAB = 4, 6, 11


def made() -> tuple[torch.Tensor, Batch, Masked]:
    """Logits, and rows of which the last slots are unused."""
    torch.manual_seed(0)
    logits = torch.randn(ROWS, SLOTS, VOCAB, requires_grad=True)
    labels = torch.randint(VOCAB, (ROWS, SLOTS))
    is_masked = torch.arange(SLOTS) < torch.tensor([[6], [3], [1], [0]])
    positions = torch.arange(SLOTS).expand(ROWS, SLOTS)
    ids = torch.randint(VOCAB, (ROWS, 16))
    real = torch.ones(ROWS, 16, dtype=torch.bool)
    keys = torch.arange(ROWS)
    batch = Batch(ids, torch.zeros_like(ids), real, real, keys)
    return logits, batch, Masked(ids, positions, is_masked, labels)


def test_the_loss_is_the_sum_over_the_masked_positions():
    logits, _, masked = made()
    scores = logits.detach().double().numpy()
    log_probs = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    wanted = -sum(
        log_probs[row, slot, masked.labels[row, slot]]
        for row in range(ROWS)
        for slot in range(SLOTS)
        if masked.is_masked[row, slot]
    )
    np.testing.assert_allclose(cross_entropy_sum(logits, masked).item(), wanted, rtol=1e-6)


def test_an_unused_slot_has_no_part_in_it():
    logits, _, masked = made()
    with torch.no_grad():
        logits[3, 0, masked.labels[3, 0]] = -torch.inf  # of an unused slot
    loss = cross_entropy_sum(logits, masked)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.equal(logits.grad[~masked.is_masked], torch.zeros(14, VOCAB))


def test_correct_predictions():
    logits, _, masked = made()
    with torch.no_grad():
        logits[0, 0, masked.labels[0, 0]] = 100.0
        logits[3, 0, masked.labels[3, 0]] = 100.0  # unused
    found = is_correct(logits, masked)
    assert found[0, 0]
    assert not found[3].any()
    assert torch.equal(found, (logits.argmax(-1) == masked.labels) & masked.is_masked)


def test_samples_follow_the_probabilities():
    """A chi-square test over many rows with the same logits."""
    rows = 4000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0]).expand(rows, 1, 5)
    ids = torch.zeros(rows, 1, dtype=torch.long)
    batch = Batch(ids, ids, ids.bool(), ids.bool(), torch.arange(rows))
    masked = Masked(ids, ids, ids.bool(), ids)
    counts = torch.bincount(
        sample_replacements(logits, batch, masked, ObjectiveConfig()).flatten(), minlength=5
    )
    expected = rows * logits[0, 0].softmax(-1)
    assert counts[4] == 0
    assert (((counts - expected) ** 2 / expected)[:4]).sum() < 16.3  # p = 0.001, 3 degrees
    other = sample_replacements(logits, batch, masked, ObjectiveConfig(disallow_correct=True))
    assert 0 not in other


def test_without_sampling_the_labels_stay():
    logits, batch, masked = made()
    seen = []

    def network(*inputs):
        seen.append(inputs)
        return logits

    options = ObjectiveConfig()
    output = mlm_output(network, masked.inputs, batch, masked, options, sample=False)
    assert torch.equal(output.samples, masked.labels)
    (inputs,) = seen
    assert inputs[0] is masked.inputs
    assert inputs[3] is masked.positions
    sampled = mlm_output(network, masked.inputs, batch, masked, options, sample=True)
    assert not torch.equal(sampled.samples, masked.labels)
    assert not sampled.samples.requires_grad
    assert sampled.loss.requires_grad
