"""Which implementation is planned for which sizes."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import plan as planning
from electra.kernels.cuda import (
    attention,
    fused_encoder,
    fused_linear_cross_entropy,
    gemm,
)
from electra.kernels.cuda.runtime import is_supported
from electra.kernels.hopper import gemm as hopper
from electra.kernels.plan import EncoderShape, Plan

plan_encoder = planning.plan_encoder.__wrapped__  # without the cache
plan_mlm_loss = planning.plan_mlm_loss.__wrapped__

GPU = torch.device("cuda", 0)
SMALL = EncoderShape(128, 128, 256, 1024, 4, 0.1, 0.1, torch.bfloat16, GPU)
GENERATOR = SMALL._replace(hidden=64, inner=256, heads=1)
BASE = SMALL._replace(hidden=768, inner=3072, heads=12, length=512)
CUDA_MODULES = (attention, fused_encoder, fused_linear_cross_entropy, gemm)


@pytest.fixture
def on_hopper(monkeypatch):
    """A Hopper GPU on which CUDA C++ kernels can be launched."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for module in CUDA_MODULES:
        monkeypatch.setattr(module, "is_supported", lambda device: True)


@pytest.mark.parametrize(
    ("shape", "setting", "wanted"),
    [
        (SMALL, "auto", Plan("layers", "cuda", "cuda", "cuda", True)),
        (SMALL, "triton", Plan("layers", "any_gpu", "hopper", "hopper", True)),
        (GENERATOR, "auto", Plan("fused", "cuda", "hopper", "hopper", True)),
        (GENERATOR, "triton", Plan("layers", "any_gpu", "hopper", "hopper", True)),
        (BASE, "auto", Plan("layers", "any_gpu", "any_gpu", "any_gpu", False)),
    ],
)
def test_recipes_on_hopper(shape, setting, wanted, on_hopper):
    assert plan_encoder(shape, setting) == wanted


@pytest.mark.parametrize(
    ("change", "field", "wanted"),
    [
        ({"length": 127}, "attention", "any_gpu"),
        ({"heads": 8}, "attention", "any_gpu"),
        ({"dtype": torch.float16}, "attention", "any_gpu"),
        ({"attention_dropout": 0.5}, "attention", "any_gpu"),  # not a pairwise comparison
        ({"dropout": 0.5}, "attention", "cuda"),
        ({"dropout": 0.5}, "gemm_layernorm", "hopper"),
        ({"dropout": 0.5}, "gemm", "cuda"),
        ({"inner": 1152}, "gemm", "hopper"),
        ({"inner": 1152}, "gemm_layernorm", "hopper"),
        ({"inner": 1000}, "gemm", "any_gpu"),
        ({"hidden": 128}, "gemm", "hopper"),
        ({"hidden": 384, "heads": 6}, "gemm", "any_gpu"),
        ({"dtype": torch.float16}, "gemm", "hopper"),
        ({"dtype": torch.float32}, "gemm", "any_gpu"),
        ({"recompute": True}, "batch_weight_grads", False),
        ({"rows": 1024}, "batch_weight_grads", False),
    ],
)
def test_what_each_piece_requires(change, field, wanted, on_hopper):
    assert getattr(plan_encoder(SMALL._replace(**change), "auto"), field) == wanted


@pytest.mark.parametrize(
    "change",
    [
        {"length": 512},
        {"heads": 4},
        {"inner": 128},
        {"dtype": torch.float16},
        {"dropout": 0.5},
        {"attention_dropout": 0.5},
        {"recompute": True},
        {"rows": 10_000},
    ],
)
def test_what_the_fused_encoder_requires(change, on_hopper):
    assert plan_encoder(GENERATOR._replace(**change), "auto").encoder == "layers"


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_other_gpus_have_triton_for_every_gpu(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    for module in CUDA_MODULES:  # which may have asked the GPU that is there
        monkeypatch.setattr(module, "is_supported", is_supported.__wrapped__)
    for shape in (SMALL, GENERATOR, BASE):
        assert plan_encoder(shape, "auto")[:4] == ("layers", "any_gpu", "any_gpu", "any_gpu")


@pytest.mark.parametrize(
    ("width", "temperature", "disallow_correct", "dtype", "setting", "wanted"),
    [
        (128, 1.0, False, torch.bfloat16, "auto", "cuda"),
        (128, 1.0, False, torch.bfloat16, "triton", "any_gpu"),
        (256, 1.0, False, torch.bfloat16, "auto", "any_gpu"),
        (128, 1.0, False, torch.float16, "auto", "any_gpu"),
        (128, 0.5, False, torch.bfloat16, "auto", "any_gpu"),
        (128, 1.0, True, torch.bfloat16, "auto", "any_gpu"),
    ],
)
def test_the_mlm_loss(width, temperature, disallow_correct, dtype, setting, wanted, on_hopper):
    assert plan_mlm_loss(width, temperature, disallow_correct, dtype, GPU, setting) == wanted


def test_the_cpu_has_no_cuda():
    """Triton's interpreter takes the tier for Hopper."""
    cpu = SMALL._replace(device=torch.device("cpu"))
    assert plan_encoder(cpu, "auto")[:4] == ("layers", "any_gpu", "hopper", "hopper")
    assert hopper.supports(256, 1024, torch.float32, cpu.device)


@pytest.mark.parametrize(
    ("plan", "wanted"),
    [
        (Plan("fused", "cuda", "hopper", "hopper", True), "fused encoder (CUDA)"),
        (Plan("layers", "cuda", "cuda", "cuda", True), "GEMM + attention (CUDA)"),
        (
            Plan("layers", "any_gpu", "hopper", "hopper", True),
            "GEMM (Triton, Hopper) + attention (Triton)",
        ),
        (
            Plan("layers", "cuda", "cuda", "hopper", True),
            "GEMM (CUDA, LayerNorm Triton, Hopper) + attention (CUDA)",
        ),
    ],
)
def test_descriptions(plan, wanted):
    assert plan.describe() == wanted


def test_a_plan_is_made_once(monkeypatch):
    assert planning.plan_encoder(SMALL._replace(device=torch.device("cpu"))) is (
        planning.plan_encoder(SMALL._replace(device=torch.device("cpu")))
    )
