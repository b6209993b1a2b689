"""Faster forms without a GPU: the CPU's dropout, and no kernels where Triton is not installed.

What computes with the kernels is in tests/kernels/test_accelerate.py.
"""

import pytest
import torch
from torch import nn

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import Attention, EncoderConfig
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.train import accelerate
from electra.train.accelerate import describe_kernels, use_cheap_cpu_dropout_, use_fused_kernels_


def make_objective(**dropouts: float) -> ReplacedTokenDetection:
    torch.manual_seed(0)
    sizes = EncoderConfig(layers=1, hidden=32, embedding=16, vocab_size=60, **dropouts)
    pair = build_pair(sizes, GeneratorConfig())
    return ReplacedTokenDetection(ObjectiveConfig(), *pair, VocabInfo(4, (0, 2, 3, 4)))


def replaced(objective) -> set[type[nn.Module]]:
    """The kinds of modules that have another forward pass."""
    return {type(module) for module in objective.modules() if "forward" in vars(module)}


@pytest.mark.parametrize(("p", "attention_p"), [(0.1, 0.0), (0.0, 0.1)])
def test_cheap_dropout_is_random_in_training_alone(p, attention_p):
    objective = make_objective(dropout=p, attention_dropout=attention_p)
    ids = torch.randint(5, 60, (4, 16))
    segments = torch.zeros_like(ids)
    plain = objective.eval().discriminator(ids, segments)
    keys = list(objective.state_dict())
    use_cheap_cpu_dropout_(objective)
    torch.testing.assert_close(objective.discriminator(ids, segments), plain)
    assert list(objective.state_dict()) == keys
    objective.train()
    one, two = (objective.discriminator(ids, segments) for _ in range(2))
    assert not torch.equal(one, two)
    torch.manual_seed(7)
    one = objective.discriminator(ids, segments)
    torch.manual_seed(7)
    assert torch.equal(objective.discriminator(ids, segments), one)


@pytest.mark.parametrize(
    ("p", "attention_p", "kinds"),
    [
        (0.1, 0.1, {nn.Dropout, Attention}),
        (0.1, 0.0, {nn.Dropout}),
        (0.0, 0.1, {Attention}),
        (0.0, 0.0, set()),
    ],
)
def test_only_what_drops_is_replaced(p, attention_p, kinds):
    objective = make_objective(dropout=p, attention_dropout=attention_p)
    use_cheap_cpu_dropout_(objective)
    assert replaced(objective) == kinds


def test_without_triton_nothing_changes(monkeypatch):
    monkeypatch.setattr(accelerate.importlib.util, "find_spec", lambda _: None)
    objective = make_objective()
    use_fused_kernels_(objective)
    assert not replaced(objective)
    assert vars(objective).keys().isdisjoint({"run_mlm", "corrupt", "detection_loss", "mask_batch"})
    assert describe_kernels(objective, 8, 32) == "plain modules"
