"""Detection at the masked positions only, and gradients of detection."""

import math

import pytest
import torch
from sklearn.metrics import precision_score, recall_score

HEADS = {"discriminator.dense.weight", "discriminator.score.weight"}


def chance(score: float) -> float:
    return 1 / (1 + math.exp(-score))


@pytest.mark.parametrize("draw", ["distinct", "repeated"])
def test_masked_positions_alone_against_a_slow_reference(draw, make, batch, ask):
    """A position that was drawn twice is two predictions and one verdict."""
    objective = make("rtd-masked", mask_sampling=draw, mask_rate=0.3)
    masked, output, sums = ask(objective, batch)
    logits = objective.generator(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    )
    scores = objective.discriminator(output.corrupted, batch.segments, batch.attention_mask)
    mlm, detection, labels, flags, loss_mask = [], [], [], [], set()
    for row in range(len(batch.ids)):
        for slot in range(masked.positions.shape[1]):
            if masked.is_masked[row, slot]:
                place = int(masked.positions[row, slot])
                true = batch.ids[row, place]
                mlm.append(-math.log(logits[row, slot].detach().double().softmax(0)[true]))
                if (row, place) in loss_mask:
                    continue
                loss_mask.add((row, place))
                fake = bool(output.corrupted[row, place] != true)
                p = chance(scores[row, place].item())
                detection.append(-math.log(p if fake else 1 - p))
                labels.append(fake)
                flags.append(p > 0.5)
    expected = sum(mlm) / len(mlm) + 50 * sum(detection) / len(detection)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["recall"] == pytest.approx(recall_score(labels, flags))
    assert metrics["precision"] == pytest.approx(precision_score(labels, flags, zero_division=0))
    assert metrics["replaced_rate"] == pytest.approx(sum(labels) / int(batch.attention_mask.sum()))
    assert output.loss_mask.sum() == len(labels)
    assert (len(labels) < len(mlm)) == (draw == "repeated")


def test_unmasked_positions_have_no_gradient(make, batch, ask):
    objective = make("rtd-masked", generator_weight=0.0)
    kept = []
    objective.discriminator.register_forward_hook(
        lambda _, __, scores: kept.append(scores) or scores.retain_grad()
    )
    masked, output, _ = ask(objective, batch)
    output.loss.backward()
    is_masked = torch.zeros_like(batch.attention_mask)
    for row, (places, used) in enumerate(zip(masked.positions, masked.is_masked, strict=True)):
        is_masked[row, places[used]] = True
    assert torch.equal(kept[0].grad != 0, is_masked)


@pytest.mark.parametrize("kind", ["rtd", "rtd-masked", "adversarial"])
def test_detection_does_not_reach_the_generator(kind, make, batch, reached):
    found = reached(make(kind, generator_weight=0.0), batch)
    assert not {n for n in found if n.startswith(("generator.", "baseline."))}
    assert found >= HEADS
    assert "discriminator.encoder.embeddings.token.weight" in found  # the shared tables
