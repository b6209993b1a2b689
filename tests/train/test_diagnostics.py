"""Diagnostics of validation, compared with plain loops and with scikit-learn."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import roc_auc_score

from electra.config import override
from electra.hub.folders import export
from electra.objectives.batch import Batch
from electra.train.diagnostics import (
    accuracy_floor,
    fixed_corruption,
    local_attention,
    mean_cosine,
    run_diagnostics,
)
from electra.train.validation import validate

MASKABLE = torch.arange(40) > 4


def make_rows(seed: int = 0) -> torch.Tensor:
    """Rows of 24 tokens with padding; token 7 is frequent."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(5, 40, (50, 26), generator=generator, dtype=torch.int32)
    rows[:, ::3] = 7
    rows[:, 0], rows[:, -2] = 2, 10
    rows[:, -1] = torch.randint(12, 25, (50,), generator=generator)
    return rows


def test_the_mean_cosine_is_that_of_all_pairs():
    states = torch.randn(3, 6, 4) + 0.5
    mask = torch.arange(6) < torch.tensor([[6], [4], [1]])
    batch = Batch(*[mask.long()] * 2, mask, mask, mask.long()[:, 0])
    found = mean_cosine(states, batch)
    for row, n in enumerate([6, 4]):
        pairs = [
            torch.cosine_similarity(states[row, i], states[row, j], dim=0)
            for i in range(n)
            for j in range(i)
        ]
        assert found[row].item() == pytest.approx(torch.stack(pairs).mean().item(), abs=1e-5)
    assert found[2].item() == pytest.approx(0, abs=1e-5)  # one token has no pair
    parallel = mean_cosine(torch.ones(3, 6, 4) * torch.rand(3, 6, 1), batch)
    assert parallel[:2].tolist() == pytest.approx([1.0, 1.0], abs=1e-4)


def test_the_fixed_corruption():
    """The same each time; only ordinary tokens, replaced by tokens of these rows."""
    rows = make_rows()
    ids = rows[:, :-2].long()
    corrupted = fixed_corruption(rows, MASKABLE)
    torch.rand(3)
    assert torch.equal(fixed_corruption(rows, MASKABLE), corrupted)
    changed = corrupted != ids
    real = (torch.arange(24) < rows[:, -1:]) & MASKABLE[ids]
    assert not changed[~real].any()
    assert 0.09 < changed.sum() / real.sum() < 0.16  # the same token may be drawn
    assert MASKABLE[corrupted[real]].all()
    drawn = corrupted[changed]
    assert (drawn == 7).float().mean() > 0.1  # by frequency, not uniformly
    padded = rows.clone()
    padded[:, :-2][torch.arange(24) >= rows[:, -1:]] = 9
    same = torch.arange(24) < rows[:, -1:]
    assert torch.equal(fixed_corruption(padded, MASKABLE)[same], corrupted[same])


@pytest.mark.parametrize(
    ("settings", "visible"),
    [
        ((), 0.15),
        (("objective.mask_token_prob=0.5",), 0.5),
        (("objective.mask_token_prob=1.0",), 0.0),
        (("objective.kind=mlm",), 0.15),
    ],
)
def test_the_accuracy_floor(settings, visible, tiny, make_step):
    step, _ = make_step(override(tiny, settings))
    counts = torch.tensor([0, 6, 3, 1])
    floor = accuracy_floor(step.objective, counts)
    assert floor == pytest.approx(visible + (1 - visible) * 0.6)
    assert accuracy_floor(step.objective, torch.zeros(4)) is None


def test_a_generator_that_copies_and_guesses_is_at_the_floor(tiny, make_step):
    """Held-out accuracy of such a generator, through a whole validation."""
    step, batches = make_step(tiny)
    objective, rows = step.objective, torch.cat(batches)
    ids = rows[:, :-2][torch.arange(32) < rows[:, -1:]].long()
    top = ids[objective.maskable[ids]].bincount().argmax()

    def logits(inputs, segments, mask, positions):
        shown = inputs.gather(1, positions)
        best = torch.where(shown == objective.mask_id, top, shown)
        return torch.nn.functional.one_hot(best, len(objective.maskable)).float() * 9

    objective.generator.forward = logits
    found = validate(objective, rows, 8, torch.float32)
    assert found["accuracy_floor"] > 0.2
    assert found["generator_accuracy"] == pytest.approx(found["accuracy_floor"], abs=0.06)
    assert found["accuracy_above_floor"] == pytest.approx(
        found["generator_accuracy"] - found["accuracy_floor"]
    )


@pytest.mark.parametrize("micro_batch", [7, 40])
def test_scores_and_states_are_those_of_the_networks(micro_batch, tiny, make_step):
    step, batches = make_step(replace(tiny))
    objective, rows = step.objective.eval(), torch.cat(batches)
    metrics, fixed = run_diagnostics(objective, rows, micro_batch, torch.float32)
    batch = objective.unpack(rows)
    corrupted = fixed_corruption(rows, objective.maskable)
    with torch.no_grad():
        scores = objective.discriminator(corrupted, batch.segments, batch.attention_mask)
        states = objective.generator.encoder(batch.ids, batch.segments, batch.attention_mask)
    labels = (corrupted != batch.ids)[batch.attention_mask]
    torch.testing.assert_close(fixed[0], scores[batch.attention_mask])
    assert torch.equal(fixed[1], labels)
    found = validate(objective, rows, micro_batch, torch.float32)
    expected = roc_auc_score(labels, scores[batch.attention_mask])
    assert found["fixed_auc"] == pytest.approx(expected, abs=1e-6)
    assert metrics["generator_state_cosine"] == pytest.approx(
        mean_cosine(states, batch).mean().item(), abs=1e-5
    )


def test_local_attention_is_that_of_transformers_probabilities(tiny, make_step, tmp_path):
    from transformers import ElectraForPreTraining

    step, batches = make_step(override(tiny, ["model.init_std=0.2", "model.layers=2"]))
    network, batch = step.objective.discriminator.eval(), step.objective.unpack(batches[0])
    assert not batch.attention_mask.all()
    export(network, tmp_path, 0)
    peer = ElectraForPreTraining.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        layers = peer(
            input_ids=batch.ids,
            token_type_ids=batch.segments,
            attention_mask=batch.attention_mask.long(),
            output_attentions=True,
        ).attentions
        found = local_attention(network.encoder, batch)
    shares = [
        layer[row, head, i, max(0, i - 1) : i + 2].sum()
        for layer in layers
        for row, length in enumerate(batch.attention_mask.sum(1))
        for head in range(layer.shape[1])
        for i in range(length)
    ]
    assert found.item() == pytest.approx(torch.stack(shares).mean().item(), abs=1e-6)
    even = 3 / batch.attention_mask.sum(1).float().mean().item()
    assert abs(found.item() - even) > 1e-3  # not what even attention would give
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_networks_that_predict_no_tokens_have_no_floor(tiny, make_step):
    step, batches = make_step(override(tiny, ["generator.kind=unigram"]))
    found = validate(step.objective, batches[0], 8, torch.float32)
    assert "accuracy_floor" not in found
    assert "generator_state_cosine" not in found
    assert "discriminator_state_cosine" in found
