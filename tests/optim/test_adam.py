"""The optimizer against a line-by-line NumPy version, and its groups."""

import numpy as np
import pytest
import torch

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import EncoderConfig
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
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
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        for key in start:
            np.testing.assert_allclose(params[key].detach().numpy(), expected[key], rtol=1e-12)


def test_first_step_is_not_bias_corrected():
    """0.1 g / sqrt(0.001 g^2) = 3.16, where torch's Adam has 1."""
    p = torch.nn.Parameter(torch.zeros(1))
    p.grad = torch.ones(1)
    PaperAdam([{"params": [p], "weight_decay": 0.0}], lr=1.0).step()
    assert p.item() == pytest.approx(-3.162, abs=0.001)


@pytest.mark.parametrize("share", ["none", "embeddings", "all"])
def test_each_parameter_is_in_exactly_one_group(share):
    model = EncoderConfig(layers=2, hidden=32, embedding=16, vocab_size=50)
    width = 1.0 if share == "all" else 0.5
    networks = build_pair(model, GeneratorConfig(width=width, share=share))
    objective = ReplacedTokenDetection(ObjectiveConfig(), *networks, mask_id=4, special=(0, 4))
    groups = parameter_groups(objective, 0.01)
    grouped = [id(p) for g in groups for p in g["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in objective.parameters()}
    decayed = {id(p) for p in groups[0]["params"]}
    for name, p in objective.named_parameters():
        exempt = "norm" in name or name.endswith("bias")
        assert (id(p) in decayed) == (not exempt), name
