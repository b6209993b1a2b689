"""One training step, taken without a run."""

from dataclasses import replace

import pytest
import torch

from electra.config import override


def test_a_step_returns_the_metric_sums_and_the_gradient_norm(tiny, make_step):
    step, (rows, *_) = make_step(tiny)
    sums = step(rows, 1e-3)
    assert sums.shape == (len(step.objective.metric_names) + 2,)
    assert not sums.requires_grad
    tokens = step.objective.metric_names.index("tokens")
    assert sums[tokens].item() == int(rows[:, -1].sum())
    assert sums[-2].item() > 0
    assert sums[-1].item() == 0  # it was not skipped
    assert all(p.grad is None for p in step.objective.parameters())


def test_a_learning_rate_of_zero_changes_no_weight(tiny, make_step):
    step, (rows, *_) = make_step(tiny)
    before = [p.detach().clone() for p in step.objective.parameters()]
    step(rows, 0.0)
    for p, old in zip(step.objective.parameters(), before, strict=True):
        assert torch.equal(p, old)
    step(rows, 1e-3)
    assert not all(
        torch.equal(p, old) for p, old in zip(step.objective.parameters(), before, strict=True)
    )


def test_micro_batches_accumulate_the_gradient_of_the_batch(tiny, make_step):
    """Rows of different lengths, no dropout; at this temperature each sample is the best guess."""
    tiny = override(
        tiny,
        ["model.dropout=0", "model.attention_dropout=0", "objective.temperature=1e-6"],
    )
    grads = []
    for pieces in (1, 4):
        step, (rows, *_) = make_step(override(tiny, [f"train.grad_accumulation={pieces}"]))
        assert step.micro_batch == 8 // pieces
        step.backward(*step.objective.mask_batch(rows))
        grads.append([p.grad for p in step.objective.parameters()])
    for whole, parts in zip(*grads, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-4)


def test_the_optimizer_has_the_settings(tiny, make_step):
    optim = replace(tiny.optim, betas=(0.8, 0.9), eps=1e-3, clip=0.25, weight_decay=0.3)
    step, (rows, *_) = make_step(replace(tiny, optim=optim))
    named = dict(step.objective.named_parameters())
    before = {n: p.detach().clone() for n, p in named.items()}
    step(rows, 0.01)
    grads = {n: step.optimizer.moments(p)["mean"] / 0.2 for n, p in named.items()}
    assert sum(g.square().sum() for g in grads.values()).sqrt().item() == pytest.approx(0.25)
    for name, p in named.items():
        square = 0.1 * grads[name].square()
        decay = 0.3 * before[name] if p.ndim > 1 else 0.0
        expected = before[name] - 0.01 * (0.2 * grads[name] / (square.sqrt() + 1e-3) + decay)
        torch.testing.assert_close(p.detach(), expected, rtol=1e-4, atol=1e-6, msg=name)


def test_one_clip_over_both_networks(tiny, make_step):
    """The norm is that of all gradients together; shared parameters count once."""
    step, (rows, *_) = make_step(tiny)
    objective = step.objective
    random = torch.get_rng_state()
    step.backward(*objective.mask_batch(rows))
    squares = [p.grad.double().square().sum() for p in objective.parameters()]
    names = [n for n, p in objective.named_parameters() if p.grad.abs().sum() > 0]
    assert {n.split(".")[0] for n in names} == {"generator", "discriminator"}
    step.optimizer.zero_grad()
    torch.set_rng_state(random)
    sums = step(rows, 0.0)
    means = [step.optimizer.moments(p)["mean"] for p in objective.parameters()]
    clipped = sum((mean.double() / 0.1).square().sum() for mean in means)
    norm = sum(squares).sqrt().item()
    assert norm > 1  # so that there is something to clip
    assert sums[-2].item() == pytest.approx(norm, rel=1e-4)
    assert clipped.sqrt().item() == pytest.approx(1.0, rel=1e-3)
