"""Every objective: what must not be put together, the mask rate, micro-batches, no surprises."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from electra.config import override
from electra.errors import UserError
from electra.models.encoder import Encoder
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, max_masked
from electra.objectives.kinds import KINDS
from electra.objectives.settings import ObjectiveConfig
from electra.recipes import recipe


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ("objective.kind=bert", "'objective.kind' must be one of rtd, rtd-masked, mlm"),
        ("objective.kind=two-stage", "cannot share weights: set generator.tie=none"),
        (
            "objective.kind=two-stage generator.tie=none",
            "same size: set generator.width=1 generator.depth=1, or "
            "objective.init_from_generator=false",
        ),
        (
            "objective.kind=two-stage generator.tie=none generator.width=1 generator.depth=0.5",
            "same size",
        ),
        ("objective.init_from_generator=false", "is a setting of objective.kind=two-stage"),
        ("objective.random_token_prob=0.1", "objective.kind=mlm"),
        (
            "objective.kind=mlm objective.random_token_prob=0.2",
            "the sum of the last two",
        ),  # 0.85 + 0.2
        ("objective.mask_rate_end=1.5", "mask_rate_end must be"),
        ("objective.mask_rate_end=1", "mask_rate_end must be"),
        ("objective.kind=electric generator.kind=unigram", "unigram generator has no weights"),
        ("objective.kind=adversarial generator.kind=uniform", "uniform generator has no weights"),
        ("objective.kind=electric generator.tie=all", "two towers"),
        (
            "objective.kind=adversarial generator.tie=all generator.width=1",
            "cannot share an encoder",
        ),
        ("objective.kind=electric objective.disallow_correct=true", "the original one included"),
        (
            "objective.kind=electric objective.mask_sampling=repeated",
            "one sample per position",
        ),
        (
            "objective.kind=adversarial objective.mask_sampling=repeated",
            "one sample per position",
        ),
        ("generator.kind=unigram generator.tie=gdes", "has no weights"),
        ("generator.kind=uniform generator.tie=all generator.width=1", "has no weights"),
        ("objective.kind=replace-mlm generator.tie=gdes", "splits in two"),
        ("objective.kind=all-tokens-mlm generator.tie=gdes", "splits in two"),
        ("generator.tie=all", "need the same size"),
        ("generator.width=0", "fractions above 0, at most 1"),
        ("objective.temperature=0", "objective.temperature must be at least 1e-6"),
        ("objective.temperature=1e-45", "objective.temperature must be at least 1e-6"),
        ("objective.discriminator_weight=-50", "discriminator_weight must be at least 0"),
        ("objective.gate_weight=-1", "gate_weight must be at least 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, sentence):
    with pytest.raises(UserError) as error:
        override(recipe("toy"), settings.split())
    assert sentence in str(error.value)
    assert str(error.value).count(". ") == 0  # one sentence


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_a_setting_of_the_recipes(kind):
    more = ["generator.tie=none", "generator.width=1"] if kind == "two-stage" else []
    assert override(recipe("toy"), [f"objective.kind={kind}", *more]).objective.kind == kind


def test_all_weights_tied_with_different_sizes_is_refused(make):
    with pytest.raises(UserError, match="need the same size"):
        make("replace-mlm", generator={"tie": "all"})


@given(
    first=st.sampled_from([0.05, 0.15, 0.3, 0.5]),
    last=st.sampled_from([0.05, 0.15, 0.3, 0.5]),
    progress=st.floats(0, 1),
)
def test_the_mask_rate_is_a_function_of_progress(first, last, progress):
    c = ObjectiveConfig(mask_rate=first, mask_rate_end=last)
    assert c.rate_at(0) == first
    assert c.rate_at(1) == c.rate_at(1.5) == pytest.approx(last)  # a clock may run over
    assert c.rate_at(progress) == pytest.approx((1 - progress) * first + progress * last)
    assert c.top_rate == max(first, last)
    assert ObjectiveConfig(mask_rate=first).rate_at(progress) == first


@pytest.mark.parametrize("kind", KINDS)
def test_a_changing_mask_rate_keeps_static_shapes(kind, make, batch):
    objective = make(kind, mask_rate=0.5, mask_rate_end=0.1).train()
    reals = batch.attention_mask.sum(1)
    for progress, rate in ((0.0, 0.5), (0.5, 0.3), (1.0, 0.1)):
        assert objective.update_progress(progress) == (kind == "two-stage" and progress == 0.5)
        masked = objective.mask(batch)
        assert masked.positions.shape[1] == max_masked(40, 0.5, "round")
        wanted = (reals * rate).round()
        assert (masked.is_masked.sum(1) - wanted).abs().max() <= 1  # a half may fall either way
    objective.eval()  # held-out figures are taken at one rate, wherever the run is
    assert (objective.mask(batch).is_masked.sum(1) - (reals * 0.5).round()).abs().max() <= 1


@pytest.mark.parametrize("rate", [0.05, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_at_every_rate(kind, rate, make, batch, ask):
    objective = make(kind, mask_rate=rate)
    masked, output, sums = ask(objective, batch)
    assert output.loss.isfinite()
    assert sums["masked"] == masked.is_masked.sum()
    metrics = objective.compute_metrics(sums)
    assert all(value == value for value in metrics.values())
    assert objective.networks()


@pytest.mark.parametrize("kind", KINDS)
def test_torch_compile_reads_every_kind(kind, make, batch):
    """The oldest torch that we know does not read all that Python has; no C++ compiler is asked."""
    objective = make(kind).train()
    for _ in objective.each_step_kind():
        torch._dynamo.reset()
        compiled = torch.compile(objective, backend="eager", dynamic=False)
        torch.manual_seed(3)
        masked = objective.mask(batch)
        totals, found = objective.totals(batch, masked), []
        for forward in (objective, compiled):
            objective.zero_grad()
            torch.manual_seed(4)
            output = forward(batch, masked, totals)
            output.loss.backward()
            grads = [p.grad.clone() for p in objective.parameters() if p.grad is not None]
            found.append([*(x for x in output if x is not None), *grads])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [1, 2])
def test_accumulated_gradients_are_those_of_the_batch(kind, stage, make, batch):
    """Rows of different lengths: averaging the micro-batches' means would be another loss."""
    objective = make(kind, temperature=1e-6)  # the best guess each time, so that samples agree
    objective.update_progress(0.0 if stage == 1 else 0.6)
    torch.manual_seed(3)
    masked = objective.mask(batch)
    totals = objective.totals(batch, masked)
    objective(batch, masked, totals).loss.backward()
    whole = {n: p.grad.clone() for n, p in objective.named_parameters() if p.grad is not None}
    objective.zero_grad()
    for part in zip(*(t.split(2) for t in (*batch, *masked)), strict=True):
        objective(Batch(*part[:5]), Masked(*part[5:]), totals).loss.backward()
    for name, p in objective.named_parameters():
        assert (p.grad is None) == (name not in whole), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, whole[name], atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_nothing(kind, make, batch, ask):
    objective = make(kind, temperature=1e-6)
    if kind == "two-stage":
        objective.update_progress(0.5)
    before = ask(objective, batch)[1]
    other = batch._replace(ids=torch.where(batch.attention_mask, batch.ids, 7))
    after = ask(objective, other)[1]
    assert after.loss.item() == pytest.approx(before.loss.item(), rel=1e-5)
    torch.testing.assert_close(after.metric_sums, before.metric_sums, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "generator"),
    [
        *((kind, "transformer") for kind in KINDS),
        *((kind, "unigram") for kind in ("rtd", "rtd-masked", "replace-mlm", "all-tokens-mlm")),
    ],
)
def test_model_init_applies_to_every_encoder(kind, generator, make, monkeypatch):
    started = []
    monkeypatch.setattr("electra.models.electra.init_local_attention_", started.append)
    objective = make(kind, model={"init": "local"}, generator={"kind": generator})
    assert set(started) == {m for m in objective.modules() if isinstance(m, Encoder)}
    started.clear()
    make(kind, generator={"kind": generator})
    assert not started


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "electric"])
def test_every_network_uses_document_ids(kind, stage, make, batch, ask):
    objective, doc_ids = make(kind), []
    objective.update_progress(0.0 if stage == 1 else 0.6)
    for module in objective.modules():
        if isinstance(module, Encoder):
            module.register_forward_pre_hook(lambda _, given: doc_ids.append(given[2]))
    documents = torch.where(batch.attention_mask, batch.segments, 1 << 20)
    ask(objective, batch._replace(doc_ids=documents))
    assert doc_ids
    assert all(given is documents for given in doc_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_ordinary_tokens_has_a_finite_loss(kind, make, batch, ask):
    objective = make(kind)
    _, output, sums = ask(objective, batch._replace(ids=torch.where(batch.attention_mask, 3, 0)))
    output.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in objective.parameters())
    assert all(math.isfinite(value) for value in objective.compute_metrics(sums).values())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mlm"])
def test_a_sample_is_the_true_token_or_a_replacement(kind, make, batch, ask):
    """Also in rows that do not use all their slots."""
    objective = make(kind)
    objective.update_progress(0.6)
    with torch.no_grad():
        objective.generator.bias[9] += 4  # often this token, which is mostly the true one
    _, _, sums = ask(objective, batch._replace(ids=torch.where(batch.ids > 4, 9, batch.ids)))
    assert min(sums["sampled_correct"], sums["replaced"]) > 0
    assert sums["sampled_correct"] + sums["replaced"] == sums["masked"]
