"""Objectives whose kept network predicts words: against slow references, and their gradients."""

import math

import pytest
import torch

from electra.objectives.all_tokens_mlm import TokenLogProbs, best_token, mixture

MASK = 4
TABLES = {
    f"mlm.encoder.embeddings.{part}"
    for part in ("token.weight", "position.weight", "segment.weight", "norm.weight", "norm.bias")
}


def losses_at(logits, masked) -> list[float]:
    """-log p of each drawn position's token, one by one."""
    return [
        -math.log(logits[row, slot].detach().double().softmax(0)[masked.labels[row, slot]])
        for row, slot in masked.is_masked.nonzero().tolist()
    ]


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def test_mlm_against_a_slow_reference(make, batch, ask):
    objective = make("mlm")
    masked, outcome, sums = ask(objective, batch)
    logits = objective.mlm(masked.inputs, batch.segments, batch.attention_mask, masked.positions)
    expected = mean(losses_at(logits, masked))
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-5)
    figures = objective.compute_metrics(sums)
    assert figures["loss"] == figures["model_loss"] == pytest.approx(expected, rel=1e-5)
    right = (logits.argmax(-1) == masked.labels)[masked.is_masked].float().mean().item()
    assert figures["model_accuracy"] == pytest.approx(right)


def test_mlm_is_one_big_network_and_all_of_it_learns(make, batch, reached):
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


def test_replace_mlm_against_a_slow_reference(make, batch, ask):
    objective = make("replace-mlm", generator_weight=0.7, model_weight=3.0, absent=(MASK,))
    masked, outcome, sums = ask(objective, batch)
    inputs = (batch.segments, batch.attention_mask, masked.positions)
    theirs = losses_at(objective.generator(masked.inputs, *inputs), masked)
    assert not (outcome.corrupted == MASK).any()  # which the generator cannot sample here
    mine = losses_at(objective.mlm(outcome.corrupted, *inputs), masked)
    expected = 0.7 * mean(theirs) + 3.0 * mean(mine)
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-5)
    figures = objective.compute_metrics(sums)
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["model_loss"] == pytest.approx(mean(mine), rel=1e-5)
    changed = outcome.corrupted != batch.ids
    assert figures["replaced_rate"] == pytest.approx(
        (changed.sum() / batch.attention_mask.sum()).item()
    )
    is_masked = torch.zeros_like(batch.attention_mask)
    for row, slot in masked.is_masked.nonzero().tolist():
        is_masked[row, masked.positions[row, slot]] = True
    assert not (changed & ~is_masked).any()


@pytest.mark.parametrize("kind", ["replace-mlm", "all-tokens-mlm"])
def test_neither_network_teaches_the_other(kind, make, batch, reached):
    found = reached(make(kind, generator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("generator.")}
    objective = make(kind, model_weight=0.0, gate_weight=0.0)
    found = reached(objective, batch)
    own = {n for n, _ in objective.named_parameters() if n.startswith("generator.")}
    assert found == own | TABLES
    everything = make(kind)
    assert reached(everything, batch) == {n for n, _ in everything.named_parameters()}


def test_all_tokens_against_a_slow_reference(make, batch, ask):
    """D x [the word that is there] + (1 - D) x softmax, at every real position."""
    objective = make("all-tokens-mlm", model_weight=2.0, gate_weight=0.3)
    masked, outcome, sums = ask(objective, batch)
    inputs = (masked.inputs, batch.segments, batch.attention_mask, masked.positions)
    theirs = losses_at(objective.generator(*inputs), masked)
    hidden = objective.mlm.encoder(outcome.corrupted, batch.segments, batch.attention_mask)
    logits = objective.mlm.predict(hidden).detach().double()
    gates = objective.gate(hidden).squeeze(-1).detach().double().sigmoid()
    words, gate, right, flagged, caught = [], [], [], 0, 0
    is_masked = {
        (row, int(masked.positions[row, slot])) for row, slot in masked.is_masked.nonzero().tolist()
    }
    for row, place in batch.attention_mask.nonzero().tolist():
        true, here = int(batch.ids[row, place]), int(outcome.corrupted[row, place])
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
    kept = 2.0 * mean(words) + 0.3 * mean(gate)
    assert outcome.loss.item() == pytest.approx(mean(theirs) + kept, rel=1e-5)
    figures = objective.compute_metrics(sums)
    assert figures["loss"] == pytest.approx(outcome.loss.item(), rel=1e-5)
    assert figures["model_loss"] == pytest.approx(mean(words), rel=1e-5)
    assert figures["gate_loss"] == pytest.approx(mean(gate), rel=1e-5)
    assert figures["model_accuracy"] == pytest.approx(mean(right))
    assert (sums["predicted_replaced"], sums["true_positives"]) == (flagged, caught)
    assert torch.equal(outcome.logits > 0, gates < 0.5)  # a score is the logit of 'replaced'


def test_the_gate_is_taught_by_the_mixture_and_by_its_own_loss(make, batch, reached):
    for weights in ({"gate_weight": 0.0}, {"model_weight": 0.0}):
        found = reached(make("all-tokens-mlm", generator_weight=0.0, **weights), batch)
        assert {"gate.weight", "gate.bias"} <= found
        assert ("mlm.dense.weight" in found) == ("gate_weight" in weights)


def test_the_mixture_is_sound_where_numbers_are_extreme():
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
