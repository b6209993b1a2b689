"""Detection at masked positions alone, in two stages, with gdes, and from word frequencies."""

import math

import pytest
import torch
from scipy.stats import chisquare
from sklearn.metrics import precision_score, recall_score

from electra.models.electra import (
    DisentangledEmbeddings,
    GeneratorConfig,
    build_pair,
    merge_disentangled,
    resize_token_embeddings,
)
from electra.models.encoder import EncoderConfig
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.objective import sum_each

HEADS = {"discriminator.dense.weight", "discriminator.score.weight"}


def chance(score: float) -> float:
    return 1 / (1 + math.exp(-score))


@pytest.mark.parametrize("draw", ["distinct", "repeated"])
def test_masked_positions_alone_against_a_slow_reference(draw, make, batch, ask):
    """A position that was drawn twice is two predictions and one verdict."""
    objective = make("rtd-masked", mask_sampling=draw, mask_rate=0.3)
    masked, outcome, sums = ask(objective, batch)
    logits = objective.generator(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    )
    scores = objective.discriminator(outcome.corrupted, batch.segments, batch.attention_mask)
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
                fake = bool(outcome.corrupted[row, place] != true)
                p = chance(scores[row, place].item())
                detection.append(-math.log(p if fake else 1 - p))
                labels.append(fake)
                flags.append(p > 0.5)
    expected = sum(mlm) / len(mlm) + 50 * sum(detection) / len(detection)
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-5)
    figures = objective.compute_metrics(sums)
    assert figures["loss"] == pytest.approx(expected, rel=1e-5)
    assert figures["recall"] == pytest.approx(recall_score(labels, flags))
    assert figures["precision"] == pytest.approx(precision_score(labels, flags, zero_division=0))
    assert figures["replaced_rate"] == pytest.approx(sum(labels) / int(batch.attention_mask.sum()))
    assert outcome.loss_mask.sum() == len(labels)
    assert (len(labels) < len(mlm)) == (draw == "repeated")


def test_positions_that_were_not_masked_teach_nothing(make, batch, ask):
    objective = make("rtd-masked", generator_weight=0.0)
    kept = []
    objective.discriminator.register_forward_hook(
        lambda _, __, scores: kept.append(scores) or scores.retain_grad()
    )
    masked, outcome, _ = ask(objective, batch)
    outcome.loss.backward()
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


def test_the_first_stage_teaches_the_generator_alone(make, batch, reached, ask):
    objective = make("two-stage")
    assert not objective.update_progress(0.49)
    found = reached(objective, batch)
    own = {n for n, _ in objective.named_parameters() if n.startswith("generator.")}
    assert found == own
    assert all(p.grad is None for p in objective.discriminator.parameters())  # nor does it decay
    masked, outcome, sums = ask(objective, batch)
    logits = objective.generator(
        masked.inputs, batch.segments, batch.attention_mask, masked.positions
    )
    losses = [
        -math.log(logits[r, s].detach().double().softmax(0)[masked.labels[r, s]])
        for r, s in masked.is_masked.nonzero().tolist()
    ]
    assert outcome.loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    figures = objective.compute_metrics(sums)
    assert figures["loss"] == figures["mlm_loss"] == pytest.approx(outcome.loss.item(), rel=1e-5)
    assert not {"recall", "detection_loss", "replaced_rate"} & figures.keys()
    assert outcome.logits is None


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
    _, outcome, sums = ask(objective, batch)
    scores = objective.discriminator(
        outcome.corrupted, batch.segments, batch.attention_mask
    ).detach()
    losses = [
        -math.log(chance(s if fake else -s))
        for s, fake in zip(
            scores[batch.attention_mask].tolist(),
            outcome.replaced[batch.attention_mask].tolist(),
            strict=True,
        )
    ]
    expected = 50 * sum(losses) / len(losses)
    assert outcome.loss.item() == pytest.approx(expected, rel=1e-5)
    assert objective.compute_metrics(sums)["loss"] == pytest.approx(expected, rel=1e-5)


def test_without_the_copied_start_nothing_is_copied_and_sizes_are_free(make):
    objective = make("two-stage", generator={"width": 0.5}, init_from_generator=False)
    before = {n: w.clone() for n, w in objective.discriminator.state_dict().items()}
    assert objective.update_progress(0.7)
    for name, weights in objective.discriminator.state_dict().items():
        assert torch.equal(weights, before[name]), name


def test_each_stage_has_a_whole_schedule(make):
    objective = make("two-stage")
    found = [objective.stage_progress(p) for p in (0.0, 0.25, 0.4999, 0.5, 0.75, 1.0)]
    assert found == pytest.approx([0, 0.5, 0.9998, 0, 0.5, 1])
    assert make("rtd").stage_progress(0.3) == 0.3


def test_gdes_begins_as_shared_tables_do(batch):
    sizes = EncoderConfig(layers=2, hidden=32, embedding=16, vocab_size=60, dropout=0.0)
    for init in ("paper", "local"):
        model = EncoderConfig(**{n: getattr(sizes, n) for n in sizes.__slots__} | {"init": init})
        torch.manual_seed(0)
        generator, discriminator = build_pair(model, GeneratorConfig(width=0.5, tie="gdes"))
        ids, segments, *_ = batch
        mine = discriminator.encoder.embeddings(ids, segments)
        torch.testing.assert_close(mine, generator.encoder.embeddings(ids, segments))


def test_gdes_lets_detection_move_the_difference_alone(make, batch, reached):
    """E_D = stop_gradient(E_G) + E_delta."""
    tables = ("token.weight", "position.weight", "segment.weight")
    theirs = {f"generator.encoder.embeddings.{t}" for t in tables}
    mine = {f"discriminator.encoder.embeddings.{t}" for t in tables}
    found = reached(make("rtd", generator={"tie": "gdes"}, generator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("generator.")}
    assert mine <= found
    found = reached(make("rtd", generator={"tie": "gdes"}, discriminator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("discriminator.")}
    assert theirs <= found


def test_gdes_reads_the_sum_and_exports_it(make, batch):
    objective = make("rtd", generator={"tie": "gdes"})
    block = objective.discriminator.encoder.embeddings
    assert isinstance(block, DisentangledEmbeddings)
    with torch.no_grad():
        for p in objective.parameters():
            p += 0.1 * torch.randn_like(p)
    random = torch.get_rng_state()
    plain = merge_disentangled(objective.discriminator)
    assert torch.equal(torch.get_rng_state(), random)
    source = objective.generator.encoder.embeddings
    summed = plain.encoder.embeddings
    assert type(summed) is type(source)
    for name in ("token", "position", "segment"):
        expected = getattr(source, name).weight + getattr(block, name).weight
        assert torch.equal(getattr(summed, name).weight, expected), name
    torch.testing.assert_close(plain(*batch[:3]), objective.discriminator(*batch[:3]))
    assert objective.networks()["discriminator"].encoder.embeddings is not block
    assert objective.discriminator.encoder.embeddings is block  # as it was
    pair = build_pair(objective.discriminator.encoder.config, GeneratorConfig(width=0.5))
    assert merge_disentangled(pair[1]) is pair[1]


def test_gdes_with_another_vocabulary():
    model = EncoderConfig(layers=1, hidden=32, embedding=16, vocab_size=60)
    pair = build_pair(model, GeneratorConfig(width=0.5, tie="gdes"))
    resize_token_embeddings(*pair, 300)
    assert not pair[1].encoder.embeddings.token.weight.any()
    assert pair[0].encoder.embeddings.token.weight[200].any()
    assert merge_disentangled(pair[1]).encoder.embeddings.token.weight.shape[0] == 320


def test_unigram_samples_follow_the_frequencies(make, batch, repeat):
    """Some 50,000 draws; special tokens and holes of the vocabulary are never among them."""
    absent = (50, 51)
    objective = make("rtd", generator={"kind": "unigram"}, absent=absent)
    counts = torch.zeros(64, dtype=torch.float64)
    counts[:60] = torch.rand(60, dtype=torch.float64) ** 3 * 1e5
    objective.generator.set_counts(counts)
    big = repeat(batch, 1500)
    masked = objective.mask(big)
    is_masked = torch.bincount(
        objective.run_mlm(
            objective.generator, masked.inputs, big, masked, sample=True
        ).samples.flatten(),
        minlength=64,
    )
    words = [i for i in range(60) if i not in (0, 2, 3, 4, *absent)]
    assert is_masked.sum() == is_masked[words].sum() > 50_000
    expected = counts[words] / counts[words].sum() * is_masked.sum()
    assert chisquare(is_masked[words], expected).pvalue > 1e-4


def test_uniform_samples_are_uniform(make, batch, repeat):
    objective = make("rtd", generator={"kind": "uniform"})
    big = repeat(batch, 300)
    masked = objective.mask(big)
    guesses = objective.run_mlm(objective.generator, masked.inputs, big, masked, sample=True)
    is_masked = torch.bincount(guesses.samples.flatten(), minlength=64)
    words = [i for i in range(60) if i not in (0, 2, 3, 4)]
    assert is_masked.sum() == is_masked[words].sum()
    assert chisquare(is_masked[words]).pvalue > 1e-4
    assert guesses.loss.item() / int(masked.is_masked.sum()) == pytest.approx(
        math.log(56), rel=1e-5
    )


def test_a_word_that_was_never_counted_costs_much_but_not_everything(make, batch, ask):
    objective = make("rtd", generator={"kind": "unigram"})
    counts = torch.zeros(64, dtype=torch.float64)
    counts[7] = 1000
    objective.generator.set_counts(counts)
    _, outcome, sums = ask(objective, batch)
    assert outcome.loss.isfinite()
    assert objective.compute_metrics(sums)["mlm_loss"] > 5


def test_slots_that_a_short_row_does_not_use_cost_nothing(make, ask):
    """They hold whatever is left: a [CLS] has no probability, and 0 x infinity is no number."""
    ids = torch.tensor([[2, 9, 3, 0, 0, 0, 0, 0], [2, 5, 6, 7, 8, 9, 10, 3]])
    batch = Batch(ids, torch.zeros_like(ids), ids != 0, ids != 0, torch.arange(2))
    objective = make("rtd", generator={"kind": "uniform"}, mask_rate=0.5)
    masked, outcome, sums = ask(objective, batch)
    assert not masked.is_masked[0].all()
    assert outcome.loss.isfinite()
    assert objective.compute_metrics(sums)["mlm_loss"] == pytest.approx(math.log(56), rel=1e-5)


def test_a_generator_without_weights_is_neither_trained_nor_exported(make, batch, reached):
    for kind in ("rtd", "rtd-masked", "replace-mlm", "all-tokens-mlm"):
        objective = make(kind, generator={"kind": "unigram"})
        assert isinstance(objective.generator, FrequencyGenerator)
        found = reached(objective, batch)
        assert found == {n for n, _ in objective.named_parameters()}
        assert "generator" not in objective.networks()
        assert objective.unigram_loss(3.0) == math.inf  # the watch must not blame it


def test_sums_come_in_the_order_in_which_things_are_given():
    """Whatever is added up together."""
    flags, slots, other = torch.rand(3, 8) > 0.3, torch.rand(3, 2) > 0.5, torch.rand(3, 2)
    counted = flags, torch.tensor(2.5), slots, ~flags, other, flags, torch.tensor(4)
    wanted = torch.stack([x.float().sum() for x in counted])
    torch.testing.assert_close(sum_each(*counted), wanted)
