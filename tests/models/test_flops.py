"""The count of the hardware's FLOPs against torch's own count of real steps."""

import contextlib
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from electra.models.electra import (
    Discriminator,
    Generator,
    GeneratorConfig,
    generator_sizes,
)
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.flops import Workload, encoder_flops, forward_flops, row_flops, workloads_of
from electra.models.paper_flops import (
    MODELS,
)
from electra.objectives.batch import unpack
from electra.objectives.corrupt import max_masked
from electra.objectives.kinds import build
from electra.objectives.objective import Objective, VocabInfo
from electra.objectives.settings import Kind, ObjectiveConfig

KINDS = get_args(Kind)
NAMED = {model.name: model for model in MODELS}
TINY = EncoderConfig(layers=2, hidden=64, embedding=48, vocab_size=100)


def objective_of(model: EncoderConfig, generator: GeneratorConfig, kind: Kind = "rtd") -> Objective:
    ids = VocabInfo(mask_id=4, special_ids=(0, 1, 2, 3, 4))
    return build(ObjectiveConfig(kind=kind), model, generator, ids)


def step_flops(
    model: EncoderConfig, generator: GeneratorConfig, length: int, slots: int, kind: str = "rtd"
) -> int:
    """What a row costs in a step."""
    return row_flops(workloads_of(kind, model, generator, length, slots), length)


def rows_of(model: EncoderConfig, length: int, rows: int = 2) -> torch.Tensor:
    found = torch.randint(5, model.vocab_size, (rows, length + 2))
    found[:, -2] = length // 2  # segment B begins here
    found[:, -1] = length
    return found


@contextlib.contextmanager
def counted():
    """Torch's count; it does not know the CPU's fused attention, so that one is left out."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        yield counter


def torch_flops(objective: Objective, rows: torch.Tensor) -> int:
    """Torch's count of a step, forward and backward."""
    batch = unpack(rows)
    masked = objective.mask(batch)
    with counted() as counter:
        objective(batch, masked, objective.totals(batch, masked)).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("model", "generator", "length"),
    [
        (TINY, GeneratorConfig(), 16),
        (TINY, GeneratorConfig(width=0.5), 128),
        (TINY, GeneratorConfig(width=0.5, tie="none"), 64),
        (TINY, GeneratorConfig(width=1, tie="all"), 64),
        (replace(TINY, embedding=64), GeneratorConfig(width=0.5, depth=0.5), 200),
        (replace(TINY, embedding=64), GeneratorConfig(width=1, tie="all"), 32),
        (replace(TINY, feed_forward=100, heads=4), GeneratorConfig(width=0.5), 40),
        (replace(TINY, vocab_size=3000, dropout=0, attention_dropout=0), GeneratorConfig(), 64),
        (EncoderConfig(layers=3, hidden=192, vocab_size=700), GeneratorConfig(width=1 / 3), 96),
    ],
)
def test_replaced_token_detection_agrees_with_torch(model, generator, length):
    objective = objective_of(model, generator)
    found = torch_flops(objective, rows_of(model, length))
    slots = max_masked(length, 0.15, "round")
    ours = 2 * step_flops(model, generator, length, slots)
    assert found == pytest.approx(ours, rel=0.002)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "two-stage"])
@pytest.mark.parametrize("generator", [GeneratorConfig(), GeneratorConfig(tie="none")])
def test_every_objective_agrees_with_torch(kind, generator):
    """To the last product, but for those of a gate and a baseline, too small to count."""
    slots = max_masked(64, 0.15, "round")
    found = torch_flops(objective_of(TINY, generator, kind), rows_of(TINY, 64))
    gate = 3 * 64 * 2 * TINY.hidden
    baseline = 2 * slots * 2 * generator_sizes(TINY, generator).hidden  # its input has no gradient
    left_out = {"all-tokens-mlm": gate, "adversarial": baseline}.get(kind, 0)
    assert found == 2 * (step_flops(TINY, generator, 64, slots, kind) + left_out)


@pytest.mark.parametrize("kind", ["rtd", "replace-mlm"])
def test_generators_that_do_not_compute_agree_with_torch(kind):
    generator = GeneratorConfig(kind="unigram")
    found = torch_flops(objective_of(TINY, generator, kind), rows_of(TINY, 64))
    ours = 2 * step_flops(TINY, generator, 64, max_masked(64, 0.15, "round"), kind)
    assert found == pytest.approx(ours, rel=0.002)


def test_two_stages_agree_with_torch():
    """The mean of a step in the first half and one in the second."""
    generator = GeneratorConfig(width=1, tie="none")
    objective = objective_of(TINY, generator, "two-stage")
    first = torch_flops(objective, rows_of(TINY, 64))
    assert objective.update_progress(0.5)
    second = torch_flops(objective, rows_of(TINY, 64))
    ours = 2 * step_flops(TINY, generator, 64, max_masked(64, 0.15, "round"), "two-stage")
    assert second != first
    assert (first + second) / 2 == pytest.approx(ours, rel=0.002)


def test_a_generator_trained_first_agrees_with_torch():
    """A quarter of the steps without the discriminator; no gradient of tied embeddings."""
    generator = GeneratorConfig(width=0.5, tie="none")
    config = ObjectiveConfig(generator_first=0.25)
    ids = VocabInfo(mask_id=4, special_ids=(0, 1, 2, 3, 4))
    objective = build(config, TINY, generator, ids)
    assert not objective.update_progress(0.0)
    first = torch_flops(objective, rows_of(TINY, 64))
    assert objective.update_progress(0.25)
    second = torch_flops(objective, rows_of(TINY, 64))
    works = workloads_of("rtd", TINY, generator, 64, max_masked(64, 0.15, "round"), 0.25)
    ours = 2 * row_flops(works, 64)
    assert 0.25 * first + 0.75 * second == pytest.approx(ours, rel=0.002)


@pytest.mark.parametrize("words", [19, 128])
def test_the_mlm_head_agrees_with_torch(words):
    """A network of the model's size that predicts some words, or all of them."""
    network = Generator(Encoder(TINY))
    ids, positions = torch.randint(5, 100, (2, 128)), torch.arange(words).repeat(2, 1)
    with counted() as counter:
        logits = network(ids, torch.zeros_like(ids), None, positions)
        F.cross_entropy(logits[..., :100].flatten(0, 1), ids[:, :words].flatten()).backward()
    ours = row_flops([Workload(sizes=TINY, mlm_positions=words)], 128)
    assert counter.get_total_flops() == pytest.approx(2 * ours, rel=0.002)


def test_inference_agrees_with_torch():
    encoder = Encoder(TINY).eval()
    ids = torch.randint(5, 100, (1, 96))
    with counted() as counter, torch.no_grad():
        encoder(ids, torch.zeros_like(ids))
    assert counter.get_total_flops() == encoder_flops(TINY, 96)
    with counted() as counter, torch.no_grad():
        Discriminator(encoder)(ids, torch.zeros_like(ids))
    assert counter.get_total_flops() == forward_flops(Workload(sizes=TINY, rtd_positions=96), 96)


def test_objectives_cost_what_their_networks_do():
    generator = GeneratorConfig(width=0.5)
    small = generator_sizes(TINY, generator)
    fill, judge = Workload(sizes=small, mlm_positions=19), Workload(sizes=TINY, rtd_positions=128)

    def cost(kind: str) -> int:
        return step_flops(TINY, generator, 128, 19, kind)

    def of(*works: Workload) -> int:
        return row_flops(works, 128)

    assert cost("rtd") == of(fill, judge)
    assert cost("adversarial") == cost("rtd-masked") == cost("rtd")
    assert cost("mlm") == of(Workload(sizes=TINY, mlm_positions=19))  # no generator at all
    assert cost("replace-mlm") == of(fill) + cost("mlm")
    assert cost("all-tokens-mlm") == of(fill, Workload(sizes=TINY, mlm_positions=128))
    assert cost("electric") == of(Workload(sizes=small, mlm_positions=128, towers=2), judge)
    frozen = replace(fill, trained=False)
    # half of the steps train the generator, the other half only ask it
    assert 2 * cost("two-stage") == of(fill) + of(frozen, judge)
    for kind in ("unigram", "uniform"):  # such a generator does not compute
        assert workloads_of("rtd", TINY, GeneratorConfig(kind=kind), 128, 19) == (judge,)
    assert all(workloads_of(kind, TINY, generator, 128, 19)[-1].sizes == TINY for kind in KINDS)
