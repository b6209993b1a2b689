"""Two stages: which network learns, from what, and on which schedule."""

import math

import pytest
import torch


def chance(score: float) -> float:
    return 1 / (1 + math.exp(-score))


def test_the_first_stage_trains_the_generator_only(make, batch, reached, ask):
    objective = make("two-stage")
    assert not objective.update_progress(0.49)
    found = reached(objective, batch)
    own = {n for n, _ in objective.named_parameters() if n.startswith("generator.")}
    assert found == own
    assert all(p.grad is None for p in objective.discriminator.parameters())  # nor does it decay
    masked, output, sums = ask(objective, batch)
    logits = objective.generator(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    )
    losses = [
        -math.log(logits[r, s].detach().double().softmax(0)[masked.labels[r, s]])
        for r, s in masked.is_masked.nonzero().tolist()
    ]
    assert output.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    metrics = objective.compute_metrics(sums)
    assert metrics["loss"] == metrics["mlm_loss"] == pytest.approx(output.loss.item(), rel=1e-5)
    assert not {"recall", "detection_loss", "replaced_rate"} & metrics.keys()
    assert output.logits is None


def test_the_second_stage_starts_from_the_generator_and_freezes_it(make, batch, reached, ask):
    objective = make("two-stage")
    head = objective.discriminator.dense.weight.detach().clone()
    assert objective.update_progress(0.5)
    assert not objective.update_progress(0.51)  # once
    for name, weights in objective.discriminator.encoder.state_dict().items():
        assert torch.equal(weights, objective.generator.encoder.state_dict()[name]), name
    assert torch.equal(objective.discriminator.dense.weight, head)
    found = reached(objective, batch)
    assert found == {n for n, _ in objective.named_parameters() if n.startswith("discriminator.")}
    assert all(p.grad is None for p in objective.generator.parameters())
    _, output, sums = ask(objective, batch)
    scores = objective.discriminator(
        output.corrupted, batch.segments, batch.attention_mask
    ).detach()
    losses = [
        -math.log(chance(s if fake else -s))
        for s, fake in zip(
            scores[batch.attention_mask].tolist(),
            output.replaced[batch.attention_mask].tolist(),
            strict=True,
        )
    ]
    expected = 50 * sum(losses) / len(losses)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    assert objective.compute_metrics(sums)["loss"] == pytest.approx(expected, rel=1e-5)


def test_without_init_from_generator_nothing_is_copied(make):
    objective = make("two-stage", generator={"width": 0.5}, init_from_generator=False)
    before = {n: w.clone() for n, w in objective.discriminator.state_dict().items()}
    assert objective.update_progress(0.7)
    for name, weights in objective.discriminator.state_dict().items():
        assert torch.equal(weights, before[name]), name


def test_each_stage_has_its_own_schedule(make):
    objective = make("two-stage")
    spans = []
    for progress in (0.0, 0.4999, 0.5, 1.0):
        objective.update_progress(progress)
        spans.append(objective.schedule_span)
    assert spans == [(0.0, 0.5), (0.0, 0.5), (0.5, 1.0), (0.5, 1.0)]
    assert make("rtd").schedule_span == (0.0, 1.0)


@pytest.mark.parametrize("tie", ["embeddings", "none", "gdes", "all"])
def test_the_generator_first_leaves_all_that_the_discriminator_uses(make, batch, reached, tie):
    sizes = {"tie": tie, "width": 1.0 if tie == "all" else 0.5}
    objective = make("rtd", generator=sizes, generator_first=0.25)
    before = objective.networks()["discriminator"].state_dict()
    before = {name: weights.clone() for name, weights in before.items()}
    assert not objective.update_progress(0.24)
    assert objective.schedule_span == (0.0, 0.25)
    found = reached(objective, batch)
    assert found
    assert all(name.startswith("generator.") for name in found)
    assert ("generator.encoder.embeddings.token.weight" in found) == (tie == "none")
    with torch.no_grad():
        for p in objective.parameters():
            if p.grad is not None:
                p.add_(0.1)
    for name, weights in objective.networks()["discriminator"].state_dict().items():
        assert torch.equal(weights, before[name]), name


def test_after_the_generator_both_networks_learn_as_in_rtd(make, batch, reached, ask):
    objective, plain = make("rtd", generator_first=0.25), make("rtd")
    assert {"loss", "mlm_loss"} <= objective.compute_metrics(ask(objective, batch)[2]).keys()
    assert "recall" not in objective.compute_metrics(ask(objective, batch)[2])
    assert objective.update_progress(0.25)
    assert not objective.update_progress(0.26)
    assert objective.schedule_span == (0.25, 1.0)
    assert reached(objective, batch) == reached(plain, batch)
    _, output, sums = ask(objective, batch)
    _, expected, expected_sums = ask(plain, batch)
    assert torch.equal(output.loss, expected.loss)
    assert sums == expected_sums
    assert objective.compute_metrics(sums) == plain.compute_metrics(sums)


def test_a_restored_stage(make):
    objective = make("rtd", generator_first=0.25)
    objective.stage.fill_(2)  # as a checkpoint does
    assert objective.in_second_stage
    kinds = [objective.step_kind for _ in objective.each_step_kind()]
    assert kinds == [0, 1]
    assert objective.in_second_stage
    assert all(p.requires_grad for p in objective.parameters())
