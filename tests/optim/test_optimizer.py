"""`build_optimizer`: settings per network, each against a slow reference in plain torch."""

import pytest
import torch

from electra.errors import UserError
from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.optim import adam
from electra.optim.adam import OptimConfig, PaperAdam, parameter_groups
from electra.optim.optimizer import build_optimizer

MODEL = EncoderConfig(layers=1, hidden=32, embedding=16, vocab_size=50, max_positions=16)
VOCAB = VocabInfo(4, (0, 4))


def make_objective(tie="embeddings") -> ReplacedTokenDetection:
    torch.manual_seed(0)
    width = 1.0 if tie == "all" else 0.5
    pair = build_pair(MODEL, GeneratorConfig(width=width, tie=tie))
    return ReplacedTokenDetection(ObjectiveConfig(), *pair, VOCAB)


def generator_names(objective) -> set[str]:
    """Parameters that the generator does not share, found by identity."""
    shared = {id(p) for p in objective.discriminator.parameters()}
    own = {id(p) for p in objective.generator.parameters()} - shared
    return {name for name, p in objective.named_parameters() if id(p) in own}


def set_gradients(objective, seed: int, skip=()) -> dict[str, torch.Tensor]:
    """Gradients whose norm differs between the networks; returned in fp64."""
    g = torch.Generator().manual_seed(seed)
    grads = {}
    for name, p in objective.named_parameters():
        scale = 0.5 if name.startswith("generator.") else 0.01
        p.grad = None if name in skip else scale * torch.randn(p.shape, generator=g)
        if p.grad is not None:
            grads[name] = p.grad.double()
    return grads


class SlowAdam:
    """The update rule in fp64, parameter by parameter."""

    def __init__(self, objective, config: OptimConfig) -> None:
        self.config, self.own = config, generator_names(objective)
        named = {n: p.detach().double() for n, p in objective.named_parameters()}
        self.params = {n: p.clone() for n, p in named.items()}
        self.means = {n: torch.zeros_like(p) for n, p in named.items()}
        self.squares = {n: torch.zeros_like(p) for n, p in named.items()}

    def step(self, lr: float, grads: dict[str, torch.Tensor]) -> float:
        c = self.config
        for name, grad in grads.items():
            own = name in self.own
            joint = c.clip_by == "joint"
            members = [g for n, g in grads.items() if joint or (n in self.own) == own]
            norm = sum(g.square().sum() for g in members).sqrt()
            grad = grad * min(1.0, c.clip / norm.item())
            mean = 0.9 * self.means[name] + 0.1 * grad
            square = 0.999 * self.squares[name] + 0.001 * grad**2
            self.means[name], self.squares[name] = mean, square
            p = self.params[name]
            update = mean / (square.sqrt() + ((own and c.generator_eps) or c.eps))
            update = update + (c.weight_decay * p if p.ndim > 1 else 0.0)
            own_lr = lr * c.generator_lr / c.lr if own and c.generator_lr else lr
            self.params[name] = p - own_lr * update
        return sum(g.square().sum() for g in grads.values()).sqrt().item()


SETTINGS = [
    {},
    {"clip_by": "network"},
    {"generator_lr": 2e-3},
    {"generator_eps": 1e-2},
    {"clip_by": "network", "generator_lr": 1e-4, "generator_eps": 1e-3, "clip": 0.1},
]


@pytest.mark.parametrize("tie", ["none", "embeddings", "all", "gdes"])
@pytest.mark.parametrize("settings", SETTINGS, ids=[",".join(s) or "default" for s in SETTINGS])
@pytest.mark.parametrize("update", ["fused", "foreach"])
def test_against_a_slow_reference(tie, settings, update, monkeypatch):
    if update == "foreach":
        monkeypatch.setattr(adam, "fused_update", adam.foreach_update)
    config = OptimConfig(lr=1e-3, weight_decay=0.1, **settings)
    objective = make_objective(tie)
    optimizer, reference = build_optimizer(objective, config), SlowAdam(objective, config)
    for step in range(4):
        grads = set_gradients(objective, step)
        norm = optimizer.step(1e-3 * (step + 1))
        assert norm.item() == pytest.approx(reference.step(1e-3 * (step + 1), grads), rel=1e-5)
    for name, p in objective.named_parameters():
        expected = reference.params[name].float()
        torch.testing.assert_close(p.detach(), expected, rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("settings", SETTINGS[1:])
def test_settings_matter(settings):
    """Else the reference would agree with an optimizer that ignores them."""
    found = []
    for chosen in ({}, settings):
        objective = make_objective()
        optimizer = build_optimizer(objective, OptimConfig(lr=1e-3, **chosen))
        set_gradients(objective, 0)
        optimizer.step(1e-3)
        found.append({n: p.detach().clone() for n, p in objective.named_parameters()})
    one, two = found
    changed = {n for n in one if not torch.equal(one[n], two[n])}
    own = generator_names(objective)
    assert own & changed
    if "clip_by" not in settings:
        assert changed <= own  # the discriminator and what is shared stay as they were


def test_defaults_are_bit_identical_to_plain_groups():
    found = []
    for plain in (True, False):
        objective = make_objective()
        config = OptimConfig()
        optimizer = build_optimizer(objective, config)
        if plain:
            optimizer = PaperAdam(parameter_groups(objective, 0.01), clip=1.0)
        for step in range(3):
            set_gradients(objective, step)
            optimizer.step(1e-3)
        found.append([p.detach().clone() for p in objective.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_network_without_gradients_is_left_alone():
    """As in the first stage of `two-stage`."""
    objective = make_objective("none")
    optimizer = build_optimizer(objective, OptimConfig(clip_by="network"))
    names = {n for n, _ in objective.named_parameters() if n.startswith("discriminator.")}
    before = {n: objective.get_parameter(n).detach().clone() for n in names}
    grads = set_gradients(objective, 0, skip=names)
    norm = optimizer.step(1e-3)
    expected = sum(g.square().sum() for g in grads.values()).sqrt().item()
    assert norm.item() == pytest.approx(expected, rel=1e-5)
    assert all(torch.equal(objective.get_parameter(n), before[n]) for n in names)


def test_the_baseline_of_adversarial_training_belongs_to_the_generator():
    kind = ObjectiveConfig(kind="adversarial")
    objective = build(kind, MODEL, GeneratorConfig(width=0.5), VOCAB)
    modules = objective.generator_modules
    groups = parameter_groups(objective, 0.01, modules)
    names = {id(p): name for name, p in objective.named_parameters()}
    own = {names[id(p)] for g in groups if g["network"] == "generator" for p in g["params"]}
    assert "baseline.weight" in own
    assert own == {n for n in names.values() if n.startswith(("generator.", "baseline."))}


@pytest.mark.parametrize("settings", SETTINGS)
def test_each_parameter_is_in_one_group(settings):
    objective = make_objective()
    optimizer = build_optimizer(objective, OptimConfig(**settings))
    assert isinstance(optimizer, PaperAdam)
    grouped = [id(p) for g in optimizer.param_groups for p in g["params"]]
    assert sorted(grouped) == sorted(id(p) for p in objective.parameters())


def test_an_objective_without_a_generator():
    objective = build(ObjectiveConfig(kind="mlm"), MODEL, GeneratorConfig(), VOCAB)
    optimizer = build_optimizer(objective, OptimConfig(clip_by="network", generator_lr=1e-3))
    for p in objective.parameters():
        p.grad = torch.ones_like(p)
    assert optimizer.step(1e-3).isfinite()


@pytest.mark.parametrize("settings", SETTINGS[1:])
def test_the_kernels_are_not_used_for_settings_that_they_do_not_support(settings, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    for chosen, supported in (({}, True), (settings, False)):
        optimizer = build_optimizer(make_objective(), OptimConfig(**chosen))
        assert optimizer.supports_kernels() == supported


def test_refused_settings():
    for settings in ({"generator_lr": -1.0}, {"generator_eps": -1e-6}):
        with pytest.raises(UserError, match="at least 0"):
            OptimConfig(**settings)
    with pytest.raises(UserError, match=r"needs an optim\.lr"):
        OptimConfig(lr=0.0, generator_lr=1e-3)
