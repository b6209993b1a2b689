"""The optimizer against a line-by-line NumPy version, and its groups."""

import numpy as np
import pytest
import torch

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.optim import adam
from electra.optim.adam import PaperAdam, parameter_groups


def test_against_numpy():
    rng = np.random.default_rng(0)
    start = {"matrix": rng.normal(size=(4, 3)), "vector": rng.normal(size=5)}
    params = {k: torch.nn.Parameter(torch.tensor(v)) for k, v in start.items()}
    optimizer = PaperAdam(
        [
            {"params": [params["matrix"]], "weight_decay": 0.01},
            {"params": [params["vector"]], "weight_decay": 0.0},
        ]
    )
    expected = {k: v.copy() for k, v in start.items()}
    mean = {k: np.zeros_like(v) for k, v in start.items()}
    square = {k: np.zeros_like(v) for k, v in start.items()}
    for step in range(50):
        rate = 1e-2 * (1 - step / 50)
        for key in start:
            gradient = rng.normal(size=start[key].shape) * 10 ** rng.uniform(-4, 1)
            params[key].grad = torch.tensor(gradient)
            mean[key] = 0.9 * mean[key] + 0.1 * gradient
            square[key] = 0.999 * square[key] + 0.001 * gradient * gradient
            update = mean[key] / (np.sqrt(square[key]) + 1e-6)
            if key == "matrix":
                update = update + 0.01 * expected[key]
            expected[key] = expected[key] - rate * update
        optimizer.step(rate)
        for key in start:
            np.testing.assert_allclose(params[key].detach().numpy(), expected[key], rtol=1e-12)


def test_first_step_is_not_bias_corrected():
    """0.1 g / sqrt(0.001 g^2) = 3.16, where torch's Adam has 1."""
    p = torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    PaperAdam([{"params": [p], "weight_decay": 0.0}]).step(1.0)
    assert p.item() == pytest.approx(-3.162, abs=0.001)


def pair(seed: int = 0) -> dict[str, torch.nn.Parameter]:
    g = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (40, 30), "vector": (50,)}
    return {
        k: torch.nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64))
        for k, s in shapes.items()
    }


def groups(params: dict[str, torch.nn.Parameter]) -> list[dict]:
    return [
        {"params": [params["matrix"]], "weight_decay": 0.01},
        {"params": [params["vector"]], "weight_decay": 0.0},
    ]


@pytest.mark.parametrize("clip", [1.0, 1e9])
def test_against_torch_with_its_clipping(clip):
    """AdamW whose rate undoes the correction at each step; epsilon is too small to matter."""
    ours, theirs = pair(), pair()
    optimizer = PaperAdam(groups(ours), clip=clip, eps=0.0)
    reference = torch.optim.AdamW(groups(theirs), eps=0.0)
    for step in range(1, 30):
        rate = 1e-2 * (1 - step / 30)
        for key, p in ours.items():
            p.grad = torch.randn_like(p) * (10 if step % 3 else 1e-4)
            theirs[key].grad = p.grad.clone()
        norm = optimizer.step(rate)
        expected = torch.nn.utils.clip_grad_norm_(theirs.values(), clip)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
        corrected = rate * (1 - 0.9**step) / (1 - 0.999**step) ** 0.5
        for group in reference.param_groups:
            decay = 0.01 if group["params"][0].ndim > 1 else 0.0
            group.update(lr=corrected, weight_decay=decay * rate / corrected)
        reference.step()
        for key, p in ours.items():
            torch.testing.assert_close(p, theirs[key], rtol=1e-5, atol=1e-7)


def test_one_clip_over_all_groups():
    """3-4-5: the gradient of norm 5 is shortened to 0.5, a short one is left alone."""
    params = [torch.nn.Parameter(torch.zeros(1)), torch.nn.Parameter(torch.zeros(1))]
    optimizer = PaperAdam([{"params": [p]} for p in params], clip=0.5)
    for p, value in zip(params, (3.0, 4.0), strict=True):
        p.grad = torch.tensor([value])
    assert optimizer.step(0.0).item() == 5.0
    means = [optimizer.moments(p)["mean"].item() for p in params]
    assert means == pytest.approx([0.1 * 0.3, 0.1 * 0.4])
    squares = [optimizer.moments(p)["square"].item() for p in params]
    assert squares == pytest.approx([0.001 * 0.09, 0.001 * 0.16])
    optimizer = PaperAdam([{"params": [p]} for p in params], clip=0.5)
    params[0].grad, params[1].grad = torch.tensor([0.25]), torch.tensor([0.0])
    assert optimizer.step(0.0).item() == 0.25
    assert optimizer.moments(params[0])["mean"].item() == pytest.approx(0.025)


def test_other_devices_compute_the_same(monkeypatch):
    fused, plain = pair(), pair()
    optimizers = [PaperAdam(groups(p), clip=1.0) for p in (fused, plain)]
    for _ in range(10):
        for key, p in fused.items():
            p.grad = torch.randn_like(p)
            plain[key].grad = p.grad.clone()
        one = optimizers[0].step(1e-2)
        with monkeypatch.context() as patch:
            patch.setattr(adam, "fused_update", adam.foreach_update)
            two = optimizers[1].step(torch.tensor(1e-2, dtype=torch.float64))
        assert torch.equal(one, two)
    for key, p in fused.items():
        torch.testing.assert_close(p, plain[key], rtol=1e-6, atol=1e-9)


def test_lr_0_keeps_the_weights_and_no_gradient_keeps_the_moments():
    params = pair()
    before = {k: p.detach().clone() for k, p in params.items()}
    optimizer = PaperAdam(groups(params))
    params["matrix"].grad = torch.randn_like(params["matrix"])
    optimizer.step(0.0)
    assert all(torch.equal(p, before[k]) for k, p in params.items())
    assert optimizer.moments(params["matrix"])["mean"].any()
    optimizer.step(1.0)
    assert torch.equal(params["vector"], before["vector"])
    assert not optimizer.moments(params["vector"])["mean"].any()
    assert set(optimizer.moments(params["vector"])) == {"mean", "square"}


@pytest.mark.parametrize("update", [adam.fused_update, adam.foreach_update])
@pytest.mark.parametrize("clip_by", ["joint", "network"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_whose_norm_is_not_finite_changes_nothing(update, clip_by, value, monkeypatch):
    """Neither weights nor moments, of any network; the next step is taken."""
    monkeypatch.setattr(adam, "fused_update", update)
    params = pair()
    named = groups(params)
    named[1]["network"] = "generator"
    optimizer = PaperAdam(named, clip=1.0, clip_by=clip_by)
    for p in params.values():
        p.grad = torch.ones_like(p)
    optimizer.step(1e-2)

    def held() -> list[torch.Tensor]:
        moments = [m for p in params.values() for m in optimizer.moments(p).values()]
        return [t.detach().clone() for t in (*params.values(), *moments)]

    before = held()
    for p in params.values():
        p.grad = torch.ones_like(p)
    params["matrix"].grad[0, 0] = value
    assert not optimizer.step(1e-2).isfinite()
    assert all(torch.equal(a, b) for a, b in zip(before, held(), strict=True))
    for p in params.values():
        p.grad = torch.ones_like(p)
    assert optimizer.step(1e-2).isfinite()
    assert not any(torch.equal(a, b) for a, b in zip(before, held(), strict=True))


@pytest.mark.parametrize("share", ["none", "embeddings", "all"])
def test_each_parameter_is_in_exactly_one_group(share):
    model = EncoderConfig(layers=2, hidden=32, embedding=16, vocab_size=50)
    width = 1.0 if share == "all" else 0.5
    networks = build_pair(model, GeneratorConfig(width=width, tie=share))
    objective = ReplacedTokenDetection(ObjectiveConfig(), *networks, VocabInfo(4, (0, 4)))
    groups = parameter_groups(objective, 0.01)
    grouped = [id(p) for g in groups for p in g["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in objective.parameters()}
    decayed = {id(p) for p in groups[0]["params"]}
    for name, p in objective.named_parameters():
        exempt = "norm" in name or name.endswith("bias")
        assert (id(p) in decayed) == (not exempt), name
