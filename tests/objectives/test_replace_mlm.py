"""Replace MLM against a slow reference, and its gradients."""

from statistics import fmean

import pytest
import torch

MASK = 4
TABLES = {
    f"mlm.encoder.embeddings.{part}"
    for part in ("token.weight", "position.weight", "segment.weight", "norm.weight", "norm.bias")
}


def test_replace_mlm_against_a_slow_reference(make, batch, ask, losses_at):
    objective = make("replace-mlm", generator_weight=0.7, model_weight=3.0, absent=(MASK,))
    masked, output, sums = ask(objective, batch)
    inputs = (batch.segments, batch.attention_mask, masked.positions)
    theirs = losses_at(objective.generator(masked.inputs, *inputs), masked)
    assert not (output.corrupted == MASK).any()  # which the generator cannot sample here
    mine = losses_at(objective.mlm(output.corrupted, *inputs), masked)
    expected = 0.7 * fmean(theirs) + 3.0 * fmean(mine)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert metrics["model_loss"] == pytest.approx(fmean(mine), rel=1e-5)
    changed = output.corrupted != batch.ids
    assert metrics["replaced_rate"] == pytest.approx(
        (changed.sum() / batch.attention_mask.sum()).item()
    )
    is_masked = torch.zeros_like(batch.attention_mask)
    for row, slot in masked.is_masked.nonzero().tolist():
        is_masked[row, masked.positions[row, slot]] = True
    assert not (changed & ~is_masked).any()


@pytest.mark.parametrize("kind", ["replace-mlm", "all-tokens-mlm"])
def test_each_loss_trains_its_own_network(kind, make, batch, reached):
    found = reached(make(kind, generator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("generator.")}
    objective = make(kind, model_weight=0.0, gate_weight=0.0)
    found = reached(objective, batch)
    own = {n for n, _ in objective.named_parameters() if n.startswith("generator.")}
    assert found == own | TABLES
    everything = make(kind)
    assert reached(everything, batch) == {n for n, _ in everything.named_parameters()}
