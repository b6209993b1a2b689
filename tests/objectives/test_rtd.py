"""The objective against a slow reference, and where its gradients go."""

import math

import pytest
import torch

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.batch import Batch, unpack
from electra.objectives.corrupt import Masked
from electra.objectives.objective import VocabInfo
from electra.objectives.random import row_keys
from electra.objectives.rtd import METRIC_SUMS, ReplacedTokenDetection, compute_metrics
from electra.objectives.settings import ObjectiveConfig

VOCAB = 60
SPECIAL = (0, 2, 3, 4)  # [PAD] [CLS] [SEP] [MASK]; 1 is [UNK]


def build(share="embeddings", absent=(), **settings) -> ReplacedTokenDetection:
    torch.manual_seed(0)
    model = EncoderConfig(
        layers=2, hidden=32, embedding=16, vocab_size=VOCAB, dropout=0.0, attention_dropout=0.0
    )
    width = 1.0 if share == "all" else 0.5
    generator, discriminator = build_pair(model, GeneratorConfig(width=width, tie=share), absent)
    return ReplacedTokenDetection(
        ObjectiveConfig(**settings), generator, discriminator, VocabInfo(4, SPECIAL)
    )


def text(batch=6, length=40) -> Batch:
    torch.manual_seed(1)
    stored = torch.zeros(batch, length + 2, dtype=torch.int32)
    for row in range(batch):
        total = length - 5 * row
        first = total // 2
        stored[row, :total] = torch.randint(5, VOCAB, (total,))
        stored[row, 0] = 2
        stored[row, [first - 1, total - 1]] = 3
        stored[row, -2], stored[row, -1] = first, total
    return unpack(stored)


def test_loss_against_a_slow_reference():
    """Position by position in Python, from the logits that the networks give."""
    objective = build()
    batch = text()
    masked = objective.mask(batch)
    output = objective(batch, masked, objective.totals(batch, masked))
    logits = objective.generator(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    )
    scores = objective.discriminator(output.corrupted, batch.segments, batch.attention_mask)
    mlm, detection, replaced = [], [], 0
    for row in range(len(batch.ids)):
        is_masked = set()
        for slot in range(masked.positions.shape[1]):
            if masked.is_masked[row, slot]:
                place = int(masked.positions[row, slot])
                is_masked.add(place)
                probs = logits[row, slot].detach().double().softmax(0)
                mlm.append(-math.log(probs[batch.ids[row, place]]))
        for place in range(batch.ids.shape[1]):
            fake = output.corrupted[row, place] != batch.ids[row, place]
            assert not fake or place in is_masked
            if batch.attention_mask[row, place]:  # [CLS] and [SEP] count, padding does not
                p = 1 / (1 + math.exp(-scores[row, place].item()))
                detection.append(-math.log(p if fake else 1 - p))
                replaced += int(fake)
    expected = sum(mlm) / len(mlm) + 50 * sum(detection) / len(detection)
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    sums = dict(zip(METRIC_SUMS, output.metric_sums.tolist(), strict=True))
    assert (sums["masked"], sums["tokens"]) == (len(mlm), len(detection))
    assert sums["replaced"] == replaced
    assert compute_metrics(sums, objective.config)["loss"] == pytest.approx(expected, rel=1e-5)


def test_masked_positions_that_keep_their_token_are_replaced_too():
    objective = build(mask_token_prob=0.0, disallow_correct=True)
    batch = text()
    masked = objective.mask(batch)
    assert torch.equal(masked.inputs, batch.ids)
    output = objective(batch, masked, objective.totals(batch, masked))
    assert output.replaced.sum() == masked.is_masked.sum()
    assert output.replaced.gather(1, masked.positions)[masked.is_masked].all()


def test_a_sample_equal_to_the_original_counts_as_original():
    objective = build()
    batch = text()
    masked = objective.mask(batch)
    with torch.no_grad():
        objective.generator.bias[int(masked.labels[0, 0])] = 1e4  # always this token
    output = objective(batch, masked, objective.totals(batch, masked))
    sums = dict(zip(METRIC_SUMS, output.metric_sums.tolist(), strict=True))
    assert sums["sampled_correct"] >= 1
    assert sums["replaced"] == sums["masked"] - sums["sampled_correct"]


def test_ids_that_do_not_exist_are_never_sampled():
    absent = tuple(range(20, 50))
    objective = build(absent=absent, temperature=50.0)
    batch = text()
    batch = batch._replace(ids=torch.where((batch.ids >= 20) & (batch.ids < 50), 5, batch.ids))
    seen = set()
    for seed in range(30):
        batch = batch._replace(row_keys=row_keys(torch.tensor([seed, 0, 0]), len(batch.ids)))
        masked = objective.mask(batch)
        output = objective(batch, masked, objective.totals(batch, masked))
        seen |= set(output.corrupted.unique().tolist())
    assert not seen & {*absent, *range(VOCAB, 64)}
    assert len(seen) > 20


def test_the_generator_is_sampled():
    """At one position of 3,000 equal rows, tokens come as often as the softmax says."""
    objective = build().eval()
    one = Batch(*(t[:1] for t in text()))
    masked = Masked(*(t.expand(3000, -1) for t in objective.mask(one)))
    keys = row_keys(torch.zeros(3, dtype=torch.long), 3000)
    batch = Batch(*(t.expand(3000, -1) for t in one[:4]), keys)
    place = masked.positions[0, 0]
    with torch.no_grad():
        objective.generator.bias[:VOCAB] = torch.linspace(-2, 2, VOCAB)
        logits = objective.generator(
            masked.inputs, batch.segments, batch.attention_mask, masked.positions
        )
        samples = objective(batch, masked, objective.totals(batch, masked)).corrupted[:, place]
    probs = logits[0, 0].softmax(-1)
    found = torch.bincount(samples, minlength=len(probs)) / len(samples)
    sigma = (probs * (1 - probs) / len(samples)).sqrt()
    assert ((found - probs).abs() <= 5 * sigma + 1e-9).all()


def test_one_pass_with_dropout_serves_loss_and_samples():
    """The generator runs once a step, in training mode."""
    objective = build().train()
    calls = []
    objective.generator.register_forward_hook(lambda m, *_: calls.append(m.training))
    batch = text()
    masked = objective.mask(batch)
    objective(batch, masked, objective.totals(batch, masked))
    assert calls == [True]


def gradients(objective, batch, masked, **weights) -> dict[str, torch.Tensor]:
    objective.zero_grad()
    torch.manual_seed(3)
    output = objective(batch, masked, objective.totals(batch, masked))
    output.loss.backward()
    return {n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None}


def test_detection_sends_no_gradient_to_the_generator():
    objective = build(generator_weight=0.0)
    batch = text()
    grads = gradients(objective, batch, objective.mask(batch))
    reached = {n for n, g in grads.items() if g.abs().sum() > 0}
    assert not {n for n in reached if n.startswith("generator.")}
    assert "discriminator.encoder.embeddings.token.weight" in reached  # the shared tables


def test_mlm_loss_trains_the_generator_and_the_shared_embeddings_only():
    objective = build(discriminator_weight=0.0)
    batch = text()
    grads = gradients(objective, batch, objective.mask(batch))
    reached = {n for n, g in grads.items() if g.abs().sum() > 0}
    shared = "discriminator.encoder.embeddings."
    assert {n for n in reached if n.startswith("discriminator.")} == {
        n for n in grads if n.startswith(shared)
    }
    own = {n for n in grads if n.startswith("generator.")}
    assert own <= reached


@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_accumulated_gradients_are_those_of_the_batch(pieces):
    """Rows of different lengths: averaging the micro-batches' means would be another loss."""
    objective = build(temperature=1e-6)  # the best guess each time, so that samples agree
    batch = text()
    masked = objective.mask(batch)
    whole = gradients(objective, batch, masked)
    totals = objective.totals(batch, masked)
    objective.zero_grad()
    size = len(batch.ids) // pieces
    for part in zip(*(t.split(size) for t in (*batch, *masked)), strict=True):
        objective(Batch(*part[:5]), Masked(*part[5:]), totals).loss.backward()
    for name, p in objective.named_parameters():
        torch.testing.assert_close(p.grad, whole[name], atol=2e-5, rtol=1e-4)
