"""Muon against torch.optim.Muon and a singular value decomposition."""

import pytest
import torch
from torch import nn

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig, PaperAdam, parameter_groups
from electra.optim.muon import Muon, orthogonalize
from electra.optim.optimizer import build_optimizer

MODEL = EncoderConfig(layers=2, hidden=32, embedding=16, vocab_size=50, max_positions=16)
LR = 1e-2


def make_objective(tie: str = "embeddings", width: float = 0.5) -> ReplacedTokenDetection:
    torch.manual_seed(0)
    pair = build_pair(MODEL, GeneratorConfig(width=width, tie=tie))
    return ReplacedTokenDetection(ObjectiveConfig(), *pair, VocabInfo(4, (0, 4)))


def make_muon(objective: nn.Module, **settings) -> Muon:
    optimizer = build_optimizer(objective, OptimConfig(kind="muon", lr=LR, **settings))
    assert isinstance(optimizer, Muon)
    return optimizer


def set_gradients(objective: nn.Module, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    for p in objective.parameters():
        p.grad = 1e-3 * torch.randn(p.shape, generator=g)


def copies(objective: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in objective.named_parameters()}


class Reference:
    """torch.optim.Muon for each matrix, QKV projections as three, and `PaperAdam` for the rest."""

    def __init__(self, objective: nn.Module, lr_scale=lambda name: 1.0) -> None:
        self.objective, self.pieces, rest = objective, {}, []
        for name, p in objective.named_parameters():
            if ".layers." in name and p.ndim == 2:
                count = 3 if "qkv" in name else 1
                self.pieces[name] = [nn.Parameter(part.detach()) for part in p.chunk(count)]
                optimizers = [
                    torch.optim.Muon([part], weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
                    for part in self.pieces[name]
                ]
                self.pieces[name] = list(
                    zip(self.pieces[name], optimizers, [lr_scale(name)] * count, strict=True)
                )
            else:
                rest.append(name)
        self.adam = PaperAdam(
            [
                {**group, "params": [p for p in group["params"] if self.names[p] in rest]}
                for group in parameter_groups(objective, 0.01)
            ],
            clip=1.0,
        )

    @property
    def names(self) -> dict[nn.Parameter, str]:
        return {p: name for name, p in self.objective.named_parameters()}

    def step(self, lr: float) -> None:
        self.adam.step(lr)
        for name, pieces in self.pieces.items():
            grads = self.objective.get_parameter(name).grad.chunk(len(pieces))
            for (part, optimizer, scale), grad in zip(pieces, grads, strict=True):
                part.grad = grad.clone()
                for group in optimizer.param_groups:
                    group["lr"] = lr * scale
                optimizer.step()

    def weights(self) -> dict[str, torch.Tensor]:
        found = copies(self.objective)
        for name, pieces in self.pieces.items():
            found[name] = torch.cat([part.detach() for part, _, _ in pieces])
        return found


@pytest.mark.parametrize(("tie", "width"), [("embeddings", 0.5), ("all", 1.0), ("none", 1.0)])
def test_against_torch(tie, width):
    objective, copy = make_objective(tie, width), make_objective(tie, width)
    optimizer, reference = make_muon(objective), Reference(copy)
    for step in range(4):
        set_gradients(objective, step)
        set_gradients(copy, step)
        optimizer.step(LR * (step + 1))
        reference.step(LR * (step + 1))
    before, found, expected = (
        copies(make_objective(tie, width)),
        copies(objective),
        reference.weights(),
    )
    for name in found:
        error = (found[name] - expected[name]).norm() / (expected[name] - before[name]).norm()
        assert error < 0.03, name  # in bf16
    assert len(reference.pieces) == (8 if tie == "all" else 16)


def test_the_generator_has_a_learning_rate_of_its_own():
    objective, copy = make_objective(), make_objective()
    optimizer = make_muon(objective, generator_lr=LR / 4, muon_lr=2 * LR)
    reference = Reference(copy, lambda name: 0.5 if name.startswith("generator.") else 2.0)
    set_gradients(objective, 0)
    set_gradients(copy, 0)
    optimizer.step(LR)
    reference.step(LR)
    found, expected, before = copies(objective), reference.weights(), copies(make_objective())
    for name in reference.pieces:
        error = (found[name] - expected[name]).norm() / (expected[name] - before[name]).norm()
        assert error < 0.03, name


@pytest.mark.parametrize("shape", [(3, 24, 24), (2, 16, 48)])
def test_singular_values_follow_the_polynomial(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrices, full_matrices=False)
    values = values / values.norm(dim=1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = left @ torch.diag_embed(values) @ right
    torch.testing.assert_close(orthogonalize(matrices), expected)
    assert values.max() < 1.25
    assert values.median() > 0.6


def test_updates_are_as_large_as_those_of_adam():
    objective = make_objective()
    before = copies(objective)
    optimizer = make_muon(objective, weight_decay=0.0)
    set_gradients(objective, 0)
    optimizer.step(LR)
    for name, p in objective.named_parameters():
        if ".layers." in name and p.ndim == 2:
            rms = (p.detach() - before[name]).square().mean().sqrt()
            assert 0.5 < rms / (0.2 * LR) < 1.3, name


@pytest.mark.parametrize(
    "name", ["discriminator.encoder.layers.0.qkv.weight", "generator.norm.bias"]
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(name, value):
    objective = make_objective()
    optimizer = make_muon(objective)
    set_gradients(objective, 0)
    optimizer.step(LR)
    weights = copies(objective)
    moments = [m.clone() for p in objective.parameters() for m in optimizer.moments(p).values()]
    set_gradients(objective, 1)
    objective.get_parameter(name).grad.view(-1)[0] = value
    assert not optimizer.step(LR).isfinite()
    assert all(torch.equal(p, weights[n]) for n, p in objective.named_parameters())
    now = [m for p in objective.parameters() for m in optimizer.moments(p).values()]
    assert all(torch.equal(a, b) for a, b in zip(now, moments, strict=True))


def test_shadow_weights_are_written_with_the_weights():
    objective = make_objective()
    optimizer = make_muon(objective)
    matrices = [p for n, p in objective.named_parameters() if ".layers." in n and p.ndim == 2]
    for p in matrices:
        p.bf16_shadow = torch.zeros_like(p, dtype=torch.bfloat16)
    versions = [p._version for p in matrices]
    for step in range(2):
        set_gradients(objective, step)
        optimizer.step(LR)
        assert all(torch.equal(p.bf16_shadow, p.bfloat16()) for p in matrices)
    assert [p._version for p in matrices] == versions


def test_the_norm_is_that_of_all_gradients():
    objective = make_objective()
    set_gradients(objective, 0)
    expected = torch.cat([p.grad.flatten() for p in objective.parameters()]).norm()
    torch.testing.assert_close(make_muon(objective).step(LR), expected)


def test_a_network_without_gradients_is_left_alone():
    objective = make_objective("none", 1.0)  # its networks have matrices of the same shapes
    optimizer = make_muon(objective)
    set_gradients(objective, 0)
    names = [n for n, _ in objective.named_parameters() if n.startswith("discriminator.")]
    for name in names:
        objective.get_parameter(name).grad = None
    before = copies(objective)
    optimizer.step(LR)
    changed = {n for n, p in objective.named_parameters() if not torch.equal(p, before[n])}
    assert changed == set(before) - set(names)
    optimizer.zero_grad()
    assert all(p.grad is None for p in objective.parameters())


def test_momentum_is_that_of_the_parameter():
    objective = make_objective()
    optimizer = make_muon(objective)
    set_gradients(objective, 0)
    grads = {name: p.grad.clone() for name, p in objective.named_parameters()}
    optimizer.step(LR)
    for name, p in objective.named_parameters():
        moments = optimizer.moments(p)
        if ".layers." in name and p.ndim == 2:
            expected = torch.stack(grads[name].chunk(3 if "qkv" in name else 1))
            expected = expected.mT if expected.shape[1] > expected.shape[2] else expected
            torch.testing.assert_close(moments["momentum"], 0.05 * expected)
        else:
            assert moments.keys() == {"mean", "square"}
