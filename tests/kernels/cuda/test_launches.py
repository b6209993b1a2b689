"""Which shapes the CUDA C++ kernels take, and what their launches pass on; without a GPU."""

import ctypes
import re
import sys
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.gemm import empty_gelu_grad
from electra.kernels.any_gpu.random import draw_seeds
from electra.kernels.cuda import (
    attention,
    fused_encoder,
    fused_linear_cross_entropy,
    gemm,
    runtime,
)
from electra.kernels.hopper import gemm as triton_gemm

CPU = torch.device("cpu")
BF16 = torch.bfloat16
SHARED = {
    "attention": [attention.FORWARD_SHARED, attention.BACKWARD_SHARED],
    "fused_encoder_backward": [fused_encoder.BACKWARD_SHARED],
    "fused_encoder_forward": [fused_encoder.FORWARD_SHARED],
    "fused_linear_cross_entropy": [fused_linear_cross_entropy.SHARED],
    "gemm_epilogue": [gemm.SHARED],
    "gemm_layernorm": [gemm.FORWARD_SHARED, gemm.BACKWARD_SHARED],
}
"""Bytes of shared memory, of each kernel of a source or of all."""


@pytest.mark.parametrize("source", runtime.SOURCES)
def test_the_host_reserves_the_shared_memory_of_the_kernels(source):
    found = re.findall(r"static_assert\(.* == (\d+),", runtime.source_text(source))
    assert [int(number) for number in found] == SHARED[source]


def test_the_host_launches_the_warpgroups_of_the_kernels():
    """Those of hopper.cuh, except where a source sets its own number."""
    sources = [runtime.source_text(source) for source in runtime.SOURCES]
    found = [re.findall(r"\bWARPGROUPS = (\d)", text) for text in sources]
    assert found == [["2", "3"], ["2"], ["2"], ["2", "3"], ["2"], ["2"]]
    assert runtime.WARPGROUPS == 2
    assert attention.FORWARD_WARPGROUPS == fused_linear_cross_entropy.WARPGROUPS == 3


def test_host_and_kernels_have_the_same_sizes():
    def constants(source: str, *names: str) -> list[int]:
        text = runtime.source_text(source)
        return [int(re.search(rf"\b{name} = (\d+)", text)[1]) for name in names]

    sizes = [gemm.CLUSTER, gemm.WIDTH]
    assert constants("gemm_layernorm", "CLUSTER", "WIDTH") == sizes
    assert gemm.BLOCK_M == runtime.WARPGROUPS * 64
    table = fused_linear_cross_entropy
    sizes = [table.BLOCK_N.value, table.DEPTH]
    assert constants("fused_linear_cross_entropy", "TILE_N", "HIDDEN") == sizes
    assert table.BLOCK_M.value == table.WARPGROUPS * 64
    sizes = [gemm.DEPTH] * 2
    assert constants("gemm_epilogue", "TILE_K", "TILE_N") == sizes
    sizes = [fused_encoder.WIDTH, fused_encoder.INNER]
    for source in ("fused_encoder_forward", "fused_encoder_backward"):
        assert constants(source, "HIDDEN", "FFN") == sizes
    assert constants("attention", "SEQ_LENGTH", "HEAD_DIM") == [
        attention.LENGTH,
        attention.HEAD_DIM,
    ]


@pytest.fixture
def supported(monkeypatch):
    """Every device can run the kernels of this module: `supported(attention)`."""
    return lambda module: monkeypatch.setattr(module, "is_supported", lambda device: True)


@pytest.mark.parametrize(
    ("supports", "shape", "fits"),
    [
        (attention.supports, (128, 64, 0.1, BF16), True),
        (attention.supports, (127, 64, 0.1, BF16), False),
        (attention.supports, (128, 32, 0.1, BF16), False),
        (attention.supports, (128, 64, 0.1, torch.float32), False),
        (attention.supports, (128, 64, 0.5, BF16), False),  # beyond what one instruction compares
        (gemm.supports, (256, 1024, BF16), True),
        (gemm.supports, (256, 1024, torch.float16), False),
        (gemm.supports, (128, 1024, BF16), False),
        (gemm.supports, (256, 1152, BF16), False),
        (gemm.supports_layernorm, (256, 1024, 0.1, BF16), True),
        (gemm.supports_layernorm, (128, 1024, 0.1, BF16), False),
        (gemm.supports_layernorm, (256, 1152, 0.1, BF16), False),
        (gemm.supports_layernorm, (256, 1024, 0.1, torch.float16), False),
        (gemm.supports_layernorm, (256, 1024, 0.5, BF16), False),
        (fused_encoder.supports, (128, 1, 64, 256, (0.1, 0.1), BF16), True),
        (fused_encoder.supports, (128, 1, 64, 256, (0.0, 0.0), BF16), True),
        (fused_encoder.supports, (512, 1, 64, 256, (0.1, 0.1), BF16), False),
        (fused_encoder.supports, (128, 4, 64, 256, (0.1, 0.1), BF16), False),
        (fused_encoder.supports, (128, 1, 64, 128, (0.1, 0.1), BF16), False),
        (fused_encoder.supports, (128, 1, 64, 256, (0.1, 0.1), torch.float16), False),
        (fused_encoder.supports, (128, 1, 64, 256, (0.1, 0.5), BF16), False),
        (fused_encoder.supports, (128, 1, 64, 256, (0.5, 0.1), BF16), False),
        (fused_linear_cross_entropy.supports, (128, 1.0, False, BF16), True),
        (fused_linear_cross_entropy.supports, (256, 1.0, False, BF16), False),
        (fused_linear_cross_entropy.supports, (128, 1.0, False, torch.float16), False),
        (fused_linear_cross_entropy.supports, (128, 0.5, False, BF16), False),
        (fused_linear_cross_entropy.supports, (128, 1.0, True, BF16), False),
    ],
)
def test_supported_shapes(supports, shape, fits, supported):
    assert not supports(*shape, CPU)  # not on this device
    supported(sys.modules[supports.__module__])
    assert supports(*shape, CPU) == fits


class Launch(NamedTuple):
    name: str
    grid: int
    shared: int
    warpgroups: int


class Driver:
    """In place of libcuda: accepts everything, and keeps the launches."""

    def __init__(self) -> None:
        self.launches: list[Launch] = []
        self.function = ("", 0)

    def get_function(self, name: str, shared: int, device: int) -> ctypes.c_void_p:
        self.function = name, shared
        return ctypes.c_void_p()

    def cuTensorMapEncodeTiled(self, *args: object) -> int:
        return 0

    def cuLaunchKernelEx(self, config, function, pointers, extra) -> int:
        grid, threads, shared = config._obj.size[0], config._obj.size[3], config._obj.shared
        assert self.function[1] == shared
        self.launches.append(Launch(self.function[0], grid, shared, threads // 128 - 1))
        return 0


@pytest.fixture
def launches(monkeypatch):
    """What was launched: `launch` and `tensor_map` check their arguments as on a GPU."""
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(runtime, "_driver", lambda: driver)
    monkeypatch.setattr(runtime, "_use_torch_context", lambda: 0)
    monkeypatch.setattr(runtime, "_function", driver.get_function)
    return driver.launches


def empty(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def run_attention() -> None:
    doc_ids = empty(5, 128, dtype=torch.int32)
    (seed,) = draw_seeds(1, CPU)
    qkv, grad_qkv, out, grad = empty(640, 384), empty(640, 384), empty(640, 128), empty(640, 128)
    lse = attention.attention_forward(qkv, doc_ids, 2, seed, 0.1, out)
    assert lse.shape == (5, 2, 128)
    partials = torch.empty(attention.num_partials(5, 128), 3, 128)
    assert len(partials) == 10
    attention.attention_backward(grad, qkv, doc_ids, out, lse, 2, seed, 0.1, grad_qkv, partials)


def run_gemm_epilogue() -> None:
    x, out, weight, bias = empty(130, 256), empty(130, 1024), empty(1024, 256), torch.empty(1024)
    gelu_grad = empty_gelu_grad(out)
    gemm.gemm_bias_gelu(x, weight, bias, out, gelu_grad)
    gemm.gemm_bias(x, weight, bias, out)
    partials = torch.empty(gemm.gelu_partials(130, 1024, CPU), 1024)
    weight = weight.t().contiguous()
    gemm.gemm_gelu_backward(x, weight, gelu_grad, partials, out)
    assert gemm.gemm_grad_input(x, weight).shape == (130, 1024)


def run_gemm_layernorm() -> None:
    x, residual, out = (empty(300, n) for n in (1024, 256, 256))
    weight, vectors = empty(256, 1024), torch.empty(3, 256)
    (seed,) = draw_seeds(1, CPU)
    norm = (vectors[1], vectors[2], 1e-12)
    saved = gemm.gemm_layernorm(x, weight, vectors[0], residual, norm, seed, 0.1, out)
    rest = (vectors[1], torch.empty(2, 3, 256), seed, 0.1, out)
    weight = weight.t().contiguous()
    gemm.gemm_layernorm_backward(x, weight, residual, *saved, *rest)


def run_fused_encoder() -> None:
    shapes = [(192, 64), (64, 64), (256, 64), (64, 256), (192,)]
    weights = [empty(3, *shape) for shape in shapes]
    doc_ids, vectors = empty(5, 128, dtype=torch.int32), torch.empty(3, 640)
    x, seeds = empty(640, 64), draw_seeds(9, CPU).view(3, 3, 4)
    given = (x, doc_ids, seeds, weights, vectors)
    _, *saved = fused_encoder.fused_encoder_forward(*given, 1e-12, 0.1, 0.1)
    partials = [torch.empty(1) for _ in range(3)]
    fused_encoder.fused_encoder_backward(*given, *saved, 0.1, 0.1, partials)


def run_fused_linear_cross_entropy() -> None:
    table = fused_linear_cross_entropy
    hidden, weight, labels = empty(200, 128), empty(1001, 128), torch.zeros(200).long()
    absent, is_masked = torch.zeros(1001).bool(), torch.ones(200).bool()
    given = (hidden, weight, torch.zeros(1001), absent, labels, is_masked, labels, labels[:5])
    _, saved = table.cross_entropy_forward(*given)
    dlogits, partials, schedule = table.cross_entropy_dlogits(hidden, weight, *saved)
    assert dlogits.shape == (200, 1008)
    assert partials.shape == (schedule.parts, 200, 128)


SITES = {
    run_attention: [
        Launch("attention.attention_forward", 2, attention.FORWARD_SHARED, 3),
        Launch("attention.attention_backward", 2, attention.BACKWARD_SHARED, 2),
    ],
    run_gemm_epilogue: [
        Launch(f"gemm_epilogue.{kernel}", 8, gemm.SHARED, 2)
        for kernel in ("gemm_bias_gelu", "gemm_bias", "gemm_grad_gelu", "gemm_grad_input")
    ],
    run_gemm_layernorm: [
        Launch("gemm_layernorm.gemm_layernorm", 4, gemm.FORWARD_SHARED, 2),
        Launch("gemm_layernorm.gemm_layernorm_backward", 4, gemm.BACKWARD_SHARED, 2),
    ],
    run_fused_encoder: [
        Launch(f"{kernel}.{kernel}", 2, shared, 2)
        for kernel, shared in (
            ("fused_encoder_forward", fused_encoder.FORWARD_SHARED),
            ("fused_encoder_backward", fused_encoder.BACKWARD_SHARED),
        )
    ],
    run_fused_linear_cross_entropy: [
        Launch(f"fused_linear_cross_entropy.{kernel}", 2, fused_linear_cross_entropy.SHARED, 3)
        for kernel in ("cross_entropy_stats", "cross_entropy_dlogits")
    ],
}


@pytest.mark.parametrize("run", SITES)
def test_launches_pass_what_the_kernels_take(run, launches, monkeypatch):
    """`launch` raises a TypeError where number or kind of the arguments is wrong."""
    if run is run_fused_linear_cross_entropy:  # its Triton kernels need a GPU where there is one
        results = (*torch.empty(4, 200), torch.empty(200))
        monkeypatch.setattr(fused_linear_cross_entropy, "finalize", lambda *_: results)
        monkeypatch.setattr(fused_linear_cross_entropy, "pad_bias", lambda *_: torch.empty(1024))
    run()
    assert launches == SITES[run]


def test_every_kernel_is_launched_here():
    launched = {launch.name for expected in SITES.values() for launch in expected}
    declared = {
        f"{source}.{kernel}" for source in runtime.SOURCES for kernel in runtime.signatures(source)
    }
    assert launched == declared


@pytest.mark.parametrize(("rows", "padded"), [(1, 64), (64, 64), (130, 192)])
def test_gelu_grad_has_whole_tiles(rows, padded):
    gelu_grad = empty_gelu_grad(empty(rows, 16))
    assert gelu_grad.shape == (padded, 16)
    assert gelu_grad.dtype == torch.uint8


def test_each_consumer_warpgroup_has_its_own_partial_sum():
    assert gemm.gelu_partials(1000, 1024, CPU) == 4
    assert triton_gemm.gelu_partials(1000, 1024, CPU) == 2
