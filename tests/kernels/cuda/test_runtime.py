"""The CUDA C++ sources compile, and launches are checked against their signatures."""

import ast
import ctypes
import functools
import re
import struct
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

import electra.kernels
from electra.kernels.cuda import runtime
from electra.kernels.cuda.runtime import (
    SOURCES,
    Parameter,
    TensorMap,
    bind_arguments,
    is_supported,
    signatures,
)

KERNELS = {
    "attention": ["attention_backward", "attention_forward"],
    "fused_encoder_backward": ["fused_encoder_backward"],
    "fused_encoder_forward": ["fused_encoder_forward"],
    "fused_linear_cross_entropy": ["cross_entropy_dlogits", "cross_entropy_stats"],
    "gemm_epilogue": ["gemm_bias", "gemm_bias_gelu", "gemm_grad_gelu", "gemm_grad_input"],
    "gemm_layernorm": ["gemm_layernorm", "gemm_layernorm_backward"],
}
NAMES = {f"{source}.{kernel}" for source, kernels in KERNELS.items() for kernel in kernels}
SPILLED = {"gemm_layernorm": 96}
"""Bytes: the backward kernel spills what is the same for all of its rows."""
VERBOSE = ("-Xptxas=-v", "--no-cache")
"""Options that make the assembler report; what comes from NVRTC's cache has no report."""
SIZES = {"MAP": 128, "int": 4, "float": 4}
"""Bytes of a parameter; pointers have 8."""


@pytest.fixture(scope="module")
def compiled():
    """`compiled(source)`: its machine code, and the assembler's log."""
    try:
        runtime.find_nvrtc()
    except OSError:
        pytest.skip("NVRTC is not installed")
    return functools.cache(lambda source: runtime.compile_source(source, *VERBOSE))


def test_sources_are_the_files_of_the_folder():
    folder = Path(runtime.__file__).parent
    assert sorted(SOURCES) == sorted(path.stem for path in folder.glob("*.cu"))
    assert sorted(runtime.HEADERS) == sorted(path.stem for path in folder.glob("*.cuh"))


@pytest.mark.parametrize("source", SOURCES)
def test_every_kernel_compiles_without_spilling(source, compiled):
    cubin, log = compiled(source)
    names = {name.decode() for name in re.findall(rb"\.text\.(\w+)", cubin)}
    assert sorted(names) == KERNELS[source]
    spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(spilled) == len(names)
    assert sum(spilled) <= SPILLED.get(source, 0), log
    assert "serialized" not in log


def parameter_sizes(cubin: bytes, kernel: str) -> list[int]:
    """The bytes of each parameter, from the attributes that the compiler stores (.nv.info)."""
    table, size, count, names_at = struct.unpack_from("<Q10xHHH", cubin, 0x28)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    info = next(
        cubin[offset : offset + length]
        for name, _, _, _, offset, length in headers
        if cubin[names + name :].startswith(f".nv.info.{kernel}\0".encode())
    )
    found, at = {}, 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == 4:  # `value` is the length of what follows
            if attribute == 0x17:  # EIATTR_KPARAM_INFO
                _, ordinal, _, flags = struct.unpack_from("<IHHI", info, at)
                found[ordinal] = flags >> 18
            at += value
    return [found[i] for i in range(len(found))]


@pytest.mark.parametrize("source", SOURCES)
def test_signatures_have_the_parameters_that_the_compiler_sees(source, compiled):
    cubin, _ = compiled(source)
    assert sorted(signatures(source)) == KERNELS[source]
    for kernel, parameters in signatures(source).items():
        sizes = [SIZES.get(parameter.type, 8) for parameter in parameters]
        assert sizes == parameter_sizes(cubin, kernel), kernel


def test_signature_of_a_kernel():
    assert signatures("gemm_epilogue")["gemm_bias_gelu"] == (
        Parameter("x", "MAP"),
        Parameter("weight", "MAP"),
        Parameter("out", "MAP"),
        Parameter("bias", "float*"),
        Parameter("gelu_grad", "unsigned char*"),
        Parameter("rows", "int"),
        Parameter("width", "int"),
    )


def test_unknown_parameter_types_are_rejected(monkeypatch):
    monkeypatch.setattr(runtime, "_read", lambda name: "KERNEL scale(MAP x,\n    double factor) {")
    with pytest.raises(ValueError, match="type `double` are not supported: `factor`"):
        signatures.__wrapped__("scale")


SCALE = "KERNEL scale(MAP x, const int* seed, float* out, int rows, float eps) {"


@pytest.fixture
def scale(monkeypatch):
    """`bind_arguments` for a kernel of one parameter of each kind, and its good arguments."""
    parsed = functools.cache(signatures.__wrapped__)
    monkeypatch.setattr(runtime, "_read", lambda name: SCALE)
    monkeypatch.setattr(runtime, "signatures", parsed)
    good = [TensorMap(), torch.zeros(4, dtype=torch.int32), torch.zeros(3), 7, 0.5]
    return lambda *args: bind_arguments("source.scale", args), good


def test_arguments_are_converted(scale):
    bind, good = scale
    x, seed, out, rows, eps = bind(*good)
    assert x is good[0]
    assert (seed.value, out.value) == (good[1].data_ptr(), good[2].data_ptr())
    assert (type(rows), rows.value) == (ctypes.c_int, 7)
    assert (type(eps), eps.value) == (ctypes.c_float, 0.5)


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (4, 1, "parameter `eps` takes a float, not 1"),
        (4, torch.ones(1), "parameter `eps` takes a float, not a tensor of float32"),
        (3, 7.0, "parameter `rows` takes an int, not 7.0"),
        (3, True, "parameter `rows` takes an int, not True"),
        (3, torch.tensor(7), "parameter `rows` takes an int, not a tensor of int64"),
        (2, torch.zeros(3).bfloat16(), "`out` takes a tensor of float32, not a tensor of bfloat16"),
        (2, 0, "parameter `out` takes a tensor of float32, not 0"),
        (1, torch.zeros(4).long(), "`seed` takes a tensor of int32, not a tensor of int64"),
        (0, torch.zeros(64, 64).bfloat16(), "`x` takes a TensorMap, not a tensor of bfloat16"),
        (2, TensorMap(), r"`out` takes a tensor of float32, not <.*TensorMap"),
    ],
)
def test_wrong_arguments_are_named(position, value, message, scale):
    bind, given = scale
    given[position] = value
    with pytest.raises(TypeError, match=rf"source\.scale: .*{message}"):
        bind(*given)


@pytest.mark.parametrize("count", [4, 6])
def test_wrong_number_of_arguments(count, scale):
    bind, good = scale
    with pytest.raises(TypeError, match=rf"source\.scale takes 5 arguments, but {count} were"):
        bind(*[*good, 1.0][:count])


class Driver:
    """In place of libcuda: keeps what was launched."""

    def cuLaunchKernelEx(self, config, function, pointers, extra):
        config = config._obj
        self.size, self.shared = list(config.size), config.shared
        self.attribute = config.attributes[0].id, config.attributes[0].value[0]
        self.rows = ctypes.cast(pointers[3], ctypes.POINTER(ctypes.c_int))[0]
        self.eps = ctypes.cast(pointers[4], ctypes.POINTER(ctypes.c_float))[0]
        return 0


def test_launch_hands_the_arguments_to_the_driver(scale, monkeypatch):
    driver = Driver()
    stream = SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(runtime, "_driver", lambda: driver)
    monkeypatch.setattr(runtime, "_use_torch_context", lambda: 0)
    monkeypatch.setattr(runtime, "_function", lambda *_: ctypes.c_void_p())
    _, good = scale
    runtime.launch("source.scale", 5, 1000, *good, warpgroups=3)
    assert driver.size == [5, 1, 1, 4 * 128, 1, 1]
    assert driver.shared == 1000
    assert driver.attribute == (runtime.PDL, 1)
    assert (driver.rows, driver.eps) == (7, 0.5)
    driver.size = None
    with pytest.raises(TypeError, match="`eps` takes a float"):
        runtime.launch("source.scale", 5, 1000, *good[:-1], 1)
    assert driver.size is None


def test_every_kernel_has_a_launch_site_and_every_launch_site_a_kernel():
    """Their arguments are checked in test_cuda_launches.py."""
    folder = Path(electra.kernels.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    strings = [
        node.value
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert {s for s in strings if re.fullmatch(rf"({'|'.join(SOURCES)})\.[a-z_]+", s)} == NAMES


def test_sources_are_compiled_once_and_again_after_a_change(tmp_path, monkeypatch):
    made = []

    def compile_source(source):
        made.append(source)
        return f"code {len(made)}".encode(), ""

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(runtime, "compile_source", compile_source)
    load = runtime.load_cubin.__wrapped__
    found = [load("attention"), load("attention"), load("gemm_epilogue")]
    assert found == [b"code 1", b"code 1", b"code 2"]
    monkeypatch.setattr(runtime, "source_text", lambda source: "changed")
    assert load("attention") == b"code 3"


def test_one_warning_where_kernels_do_not_load(monkeypatch):
    def fail(source, device):
        raise OSError("libcuda is not found")

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: runtime.HOPPER)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(runtime, "_module", fail)
    supported = functools.cache(is_supported.__wrapped__)
    with pytest.warns(UserWarning, match="Triton kernels run: libcuda is not found") as warned:
        assert [supported(torch.device("cuda", 0)) for _ in range(2)] == [False, False]
    assert len(warned) == 1


def test_missing_nvrtc_is_named(monkeypatch):
    def fail(path):
        raise OSError

    monkeypatch.setattr(runtime.ctypes, "CDLL", fail)
    with pytest.raises(
        OSError, match=r"libnvrtc\.so\.\d+ is not found; install the package nvidia-cuda-nvrtc"
    ):
        runtime.find_nvrtc()


@pytest.mark.parametrize("capability", [(8, 0), (10, 0)])
def test_other_devices_are_not_supported(capability, monkeypatch):
    """Without a warning; sm_90a code does not run on newer GPUs either."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not is_supported.__wrapped__(torch.device("cuda", 0))
        assert not is_supported.__wrapped__(torch.device("cpu"))
