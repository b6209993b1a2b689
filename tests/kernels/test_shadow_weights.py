"""Copies of matrices: as the parameters are, and made no oftener than these change."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import shadow_weights
from electra.kernels.modules import attach_shadow_weights
from electra.kernels.shadow_weights import ShadowWeights, attach, attached, cast_weights
from electra.optim.adam import OptimConfig
from electra.optim.ema import WeightEma
from electra.optim.optimizer import build_optimizer
from electra.train.accelerate import use_fused_kernels_


@pytest.fixture
def layers(device) -> list[list[nn.Parameter]]:
    """Of two matrices, twice."""
    torch.manual_seed(0)
    return [[nn.Parameter(torch.randn(n, 8).to(device)) for n in (4, 6)] for _ in range(2)]


@pytest.fixture
def copies(monkeypatch) -> list[int]:
    """How many tensors were copied, each time."""
    done, copy = [], torch._foreach_copy_

    def counted(to, given):
        done.append(len(given))
        copy(to, given)

    monkeypatch.setattr(shadow_weights.torch, "_foreach_copy_", counted)
    return done


def test_copies_are_made_when_parameters_change(layers, copies):
    pair = ShadowWeights(layers, torch.bfloat16)
    for _ in range(2):
        for place, stack in enumerate(pair.refresh()):
            for number, layer in enumerate(layers):
                assert torch.equal(stack[number], layer[place].bfloat16())
    assert copies == [4]
    with torch.no_grad():
        layers[1][0].mul_(2)
    assert torch.equal(pair.refresh()[0][1], layers[1][0].bfloat16())
    assert copies == [4, 4]


def test_those_that_last_are_found_by_module_and_parameter(layers, copies):
    owner = nn.Module()
    cast_weights(owner, layers, torch.bfloat16)
    assert attached(owner) is None
    attach(owner, layers, torch.bfloat16)
    first = cast_weights(owner, layers, torch.bfloat16)
    assert cast_weights(owner, layers, torch.bfloat16) is first
    assert layers[1][0].bf16_shadow.data_ptr() == first[0][1].data_ptr()
    assert copies == [4, 4]
    assert cast_weights(owner, layers, torch.float16)[0].dtype == torch.float16  # another precision


def test_what_an_optimizer_could_not_write_is_not_kept(device):
    """A thread writes 16 bytes at once."""
    owner, odd = nn.Module(), [[nn.Parameter(torch.ones(3, device=device))] for _ in range(2)]
    attach(owner, odd, torch.bfloat16)
    assert attached(owner) is None
    assert not hasattr(odd[0][0], "bf16_shadow")


def test_a_parameter_has_one_shadow(layers):
    one, other = nn.Module(), nn.Module()
    for owner in (one, other, one):
        attach(owner, layers, torch.bfloat16)
    assert attached(other) is None
    assert layers[0][0].bf16_shadow is attached(one).copies[0]
    other, sums = nn.Module(), [[layer[0] + 1] for layer in layers]  # what is computed
    attach(other, sums, torch.bfloat16)
    assert attached(other) is None


def test_copies_that_last_change_nothing(make, text, ask):
    """Neither before the parameters change, nor after."""
    batch, found = text(3, 24, 60), []
    for lasting in (False, True):
        objective = make("rtd")
        use_fused_kernels_(objective)
        torch.manual_seed(3)
        masked = objective.mask(batch)
        if lasting:
            assert len(attach_shadow_weights(objective, torch.float32)) == 3
        for _ in range(2):
            torch.manual_seed(4)
            outcome, grads = ask(objective, batch, masked)
            found.append((outcome.loss.detach(), *grads.values()))
            with torch.no_grad():
                for p in objective.parameters():
                    p.mul_(1.5)
    plain, lasting = found[:2], found[2:]
    for one, two in zip(plain, lasting, strict=True):
        for a, b in zip(one, two, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(plain[0][0], plain[1][0])


def test_averages_and_updates_pass_through_the_copies(make, text, ask):
    """The forward pass reads the average while it is swapped in, and the weights again after it."""
    batch, found = text(3, 24, 60), []
    for lasting in (False, True):
        objective = make("rtd")
        use_fused_kernels_(objective)
        torch.manual_seed(3)
        masked = objective.mask(batch)
        if lasting:
            attach_shadow_weights(objective, torch.float32)
        ema = WeightEma(dict(objective.named_parameters()), 0.9)
        optimizer = build_optimizer(objective, OptimConfig(kind="muon"))

        def loss(objective=objective, masked=masked) -> torch.Tensor:
            torch.manual_seed(4)
            return ask(objective, batch, masked)[0].loss.detach()

        losses = [loss()]
        optimizer.step(0.05)  # as a number: through its kernels Adam writes copies in bf16 only
        ema.update()
        losses.append(loss())
        with ema.applied():
            losses.append(loss())
        losses.append(loss())
        found.append(torch.stack(losses))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    before, after, average, again = found[1].tolist()
    assert len({before, after, average}) == 3
    assert again == after
