"""The moving average of the weights, against NumPy in float64."""

import numpy as np
import pytest
import torch

from electra.errors import UserError
from electra.optim.adam import OptimConfig
from electra.optim.ema import WeightEma


def make(decay: float) -> tuple[dict[str, torch.Tensor], WeightEma]:
    g = torch.Generator().manual_seed(0)
    shapes = {"table": (5, 3), "bias": (4,)}
    params = {n: torch.nn.Parameter(torch.randn(s, generator=g)) for n, s in shapes.items()}
    return params, WeightEma(params, decay)


def move(params: dict[str, torch.Tensor], number: int) -> None:
    g = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for p in params.values():
            p.add_(torch.randn(p.shape, generator=g))


@pytest.mark.parametrize("decay", [0.5, 0.9, 0.999])
def test_against_numpy(decay):
    """0.5 is the decay from the ninth update on, 0.9 from the 82nd, 0.999 is not reached."""
    params, ema = make(decay)
    expected = {name: p.detach().double().numpy().copy() for name, p in params.items()}
    for n in range(120):
        move(params, n + 1)
        ema.update()
        d = min(decay, (1 + n) / (10 + n))
        for name, p in params.items():
            expected[name] = d * expected[name] + (1 - d) * p.detach().double().numpy()
            np.testing.assert_allclose(ema.averages[name].numpy(), expected[name], rtol=1e-4)
    assert ema.updates.item() == 120
    assert not any(t.requires_grad for t in ema.tensors().values())


def test_updates_stay_in_place():
    """A CUDA graph knows addresses, not objects."""
    params, ema = make(0.9)
    addresses = [t.data_ptr() for t in (*params.values(), *ema.tensors().values())]
    move(params, 1)
    ema.update()
    with ema.applied():
        pass
    ema.restart()
    assert addresses == [t.data_ptr() for t in (*params.values(), *ema.tensors().values())]


def test_weights_and_averages_are_swapped_and_keep_their_bits():
    params, ema = make(0.9)
    move(params, 1)
    ema.update()
    weights = {n: p.detach().clone() for n, p in params.items()}
    averages = {n: a.clone() for n, a in ema.averages.items()}
    versions = [p._version for p in params.values()]

    def inside() -> None:
        with ema.applied():
            assert all(torch.equal(p, averages[n]) for n, p in params.items())
            # so that shadow weights are refreshed
            now = [p._version for p in params.values()]
            assert all(a > b for a, b in zip(now, versions, strict=True))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inside()
    assert all(torch.equal(p, weights[n]) for n, p in params.items())
    assert all(torch.equal(a, averages[n]) for n, a in ema.averages.items())
    assert all(p.requires_grad for p in params.values())


def test_a_restart_forgets():
    params, ema = make(0.9)
    for number in range(3):
        move(params, number)
        ema.update()
    ema.restart()
    assert ema.updates.item() == 0
    assert all(torch.equal(ema.averages[n], p) for n, p in params.items())
    move(params, 9)
    assert not torch.equal(ema.averages["bias"], params["bias"])


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(UserError, match=r"optim\.ema is a decay"):
        OptimConfig(ema=decay)
