"""On a CUDA device: the kernels in bf16 are as near to fp32 as plain bf16 is."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.train.accelerate import use_fused_kernels_

pytestmark = pytest.mark.gpu

WORDS = 30522
SMALL = {"layers": 3, "hidden": 256, "heads": 4, "embedding": 128, "vocab_size": WORDS}
BASE = {"layers": 2, "hidden": 768, "heads": 12, "embedding": 768, "vocab_size": WORDS}
QUIET = {"dropout": 0.0, "attention_dropout": 0.0}
UNFIT = {"gdes": ({}, {"tie": "gdes"}), "heads of 80": ({"hidden": 320}, {"width": 0.25})}
SIZES = {"small": (SMALL, 0.25, 16, 128), "base": (BASE, 1 / 3, 4, 512)}


@pytest.fixture(params=SIZES)
def build_run(request, make, text, agreed):
    """An objective, its text and what is masked in it, the samples being agreed."""
    model, width, rows, length = SIZES[request.param]

    def built(p: float, *, perturbed: bool = True):
        drop = {"dropout": p, "attention_dropout": p}
        objective = make(
            "rtd", model=model | drop, generator={"width": width}, perturbed=perturbed
        ).train()
        batch = text(rows, length, WORDS)
        masked = objective.mask(batch)
        agreed(masked, WORDS)
        return objective, batch, masked

    return built


@pytest.fixture
def errors(split_qkv):
    """Relative errors of the loss and of each gradient, of queries, keys and values apart."""

    def measured(found, wanted) -> dict[str, float]:
        (outcome, grads), (exact, expected) = found, wanted
        pairs = {"loss": (outcome.loss.detach(), exact.loss.detach())}
        for name, grad in expected.items():
            parts = split_qkv(name, grads[name]), split_qkv(name, grad)
            pairs |= {part: (parts[0][part], parts[1][part]) for part in parts[1]}
            pairs.pop(f"{name}[k]" if name.endswith("bias") else "", None)  # zero but for rounding
        return {name: ((a - b).norm() / b.norm()).item() for name, (a, b) in pairs.items()}

    return measured


@pytest.fixture
def compare(ask, errors):
    """The errors of bf16 with and without the kernels, which are put in."""

    def compared(objective, batch, masked, setting="auto") -> None:
        exact = ask(objective, batch, masked)
        plain = errors(ask(objective, batch, masked, torch.bfloat16), exact)
        use_fused_kernels_(objective, setting=setting)
        fused = errors(ask(objective, batch, masked, torch.bfloat16), exact)
        assert fused.keys() == plain.keys()
        assert max(plain.values()) > 1e-3  # it was bf16
        worse = {n: (fused[n], plain[n]) for n in plain if not fused[n] <= 2 * plain[n] + 3e-3}
        assert not worse

    return compared


@pytest.mark.parametrize("perturbed", [True, False])
@pytest.mark.parametrize("setting", ["auto", "triton"])
def test_bf16_is_as_near_to_fp32_as_without_kernels(setting, perturbed, build_run, compare):
    """With CUDA C++ where it is supported, and with Triton alone; at the initial weights too."""
    compare(*build_run(0.0, perturbed=perturbed), setting)


@pytest.mark.parametrize("name", UNFIT)
def test_bf16_where_encoders_do_not_fit(name, make, text, agreed, compare):
    model, generator = UNFIT[name]
    objective = make("rtd", model=SMALL | QUIET | model, generator=generator).train()
    batch = text(16, 128, WORDS)
    masked = objective.mask(batch)
    agreed(masked, WORDS)
    compare(objective, batch, masked)


def test_fp32_is_fp32(build_run, ask, errors):
    objective, batch, masked = build_run(0.0)
    exact = ask(objective, batch, masked)
    use_fused_kernels_(objective)
    off = errors(ask(objective, batch, masked), exact)
    assert max(off.values()) < 1e-4, off


def test_bf16_drops_what_fp32_drops(build_run, ask, errors):
    """The same random numbers, whatever the tiles and the precision are."""
    objective, batch, masked = build_run(0.1)
    use_fused_kernels_(objective)
    torch.manual_seed(6)
    exact = ask(objective, batch, masked)
    torch.manual_seed(6)
    half = ask(objective, batch, masked, torch.bfloat16)
    off = errors(half, exact)
    assert off["loss"] < 1e-2
    assert max(off.values()) < 0.15, off
    torch.manual_seed(7)
    other = errors(ask(objective, batch, masked), exact)
    assert max(other.values()) > 0.3  # other random numbers are farther away
