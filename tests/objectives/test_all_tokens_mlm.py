"""All-Tokens MLM against a slow reference, its mixture and its gate."""

import math
from statistics import fmean

import pytest
import torch

from electra.objectives.all_tokens_mlm import TokenLogProbs, best_token, mixture


def test_all_tokens_against_a_slow_reference(make, batch, ask, losses_at):
    """D x [the word that is there] + (1 - D) x softmax, at every real position."""
    objective = make("all-tokens-mlm", model_weight=2.0, gate_weight=0.3)
    masked, output, sums = ask(objective, batch)
    inputs = (masked.inputs, batch.segments, batch.attention_mask, masked.positions)
    theirs = losses_at(objective.generator(*inputs), masked)
    hidden = objective.mlm.encoder(output.corrupted, batch.segments, batch.attention_mask)
    logits = objective.mlm.predict(hidden).detach().double()
    gates = objective.gate(hidden).squeeze(-1).detach().double().sigmoid()
    words, gate, right, flagged, caught = [], [], [], 0, 0
    is_masked = {
        (row, int(masked.positions[row, slot])) for row, slot in masked.is_masked.nonzero().tolist()
    }
    for row, place in batch.attention_mask.nonzero().tolist():
        true, here = int(batch.ids[row, place]), int(output.corrupted[row, place])
        d = gates[row, place]
        mixed = (1 - d) * logits[row, place].softmax(0)
        mixed[here] += d
        assert mixed.sum().item() == pytest.approx(1)
        words.append(-math.log(mixed[true]))
        gate.append(-math.log(d if here == true else 1 - d))
        flagged += int(d < 0.5)
        caught += int(d < 0.5 and here != true)
        if (row, place) in is_masked:
            right.append(int(mixed.argmax()) == true)
    kept = 2.0 * fmean(words) + 0.3 * fmean(gate)
    assert output.loss.item() == pytest.approx(fmean(theirs) + kept, rel=1e-5)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == pytest.approx(output.loss.item(), rel=1e-5)
    assert metrics["model_loss"] == pytest.approx(fmean(words), rel=1e-5)
    assert metrics["gate_loss"] == pytest.approx(fmean(gate), rel=1e-5)
    assert metrics["model_accuracy"] == pytest.approx(fmean(right))
    assert (sums["predicted_replaced"], sums["true_positives"]) == (flagged, caught)
    assert torch.equal(output.logits > 0, gates < 0.5)  # a score is the logit of 'replaced'


def test_the_mixture_and_the_gate_loss_train_the_gate(make, batch, reached):
    for weights in ({"gate_weight": 0.0}, {"model_weight": 0.0}):
        found = reached(make("all-tokens-mlm", generator_weight=0.0, **weights), batch)
        assert {"gate.weight", "gate.bias"} <= found
        assert ("mlm.dense.weight" in found) == ("gate_weight" in weights)


def test_the_mixture_is_stable_at_extreme_logits():
    copy = torch.tensor([-200.0, 200.0, 200.0, -200.0], requires_grad=True)
    words = torch.tensor([-1e-6, -300.0, -300.0, -300.0])
    found = mixture(copy, words, torch.tensor([False, False, True, True]))
    assert found.tolist() == pytest.approx([0, 0, -500, -300], abs=1e-3)
    found.sum().backward()
    assert copy.grad.isfinite().all()


def test_the_best_token_is_that_of_the_whole_mixture():
    torch.manual_seed(0)
    logits, copy = 2 * torch.randn(200, 1, 7), torch.randn(200, 1)
    here = torch.randint(7, (200, 1))
    mixed = (1 - copy.sigmoid())[..., None] * logits.softmax(-1)
    mixed.scatter_add_(-1, here[..., None], copy.sigmoid()[..., None])
    logs = logits.log_softmax(-1)
    best, word = logs.max(-1)
    said = TokenLogProbs(best, logs.gather(-1, here[..., None]).squeeze(-1), best, word)
    found = best_token(said, copy, here)
    assert torch.equal(found, mixed.argmax(-1))
    assert 0.2 < (found == here).float().mean() < 0.9  # both happen
