"""Compile the CUDA C++ kernels when they are first needed, and launch them.

NVRTC, which comes with torch, compiles; the CUDA driver loads and launches. Where one of them is
missing, `is_supported` says so, and the Triton kernels run instead.
"""

import ctypes
import functools
import hashlib
import importlib.util
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from triton.runtime.cache import get_cache_manager

SOURCES = (
    "attention", "fused_encoder_backward", "fused_encoder_forward", "fused_linear_cross_entropy",
    "gemm_epilogue", "gemm_layernorm",
)  # fmt: skip
HEADERS = ("hopper", "layer")
"""The `*.cu` files of this folder, and the `*.cuh` files that precede each of them."""
OPTIONS = ("--gpu-architecture=sm_90a", "-std=c++17", "--device-as-default-execution-space")
HOPPER = (9, 0)
"""The compute capability that runs sm_90a code; no other does."""
WARPGROUPS = 2
"""Consumer warpgroups of most kernels; one producer warpgroup comes on top. Sums over rows have one
partial per consumer warpgroup."""
BOX = 64
"""Columns of a TMA box, and rows by default."""
WARP_ROWS = 16
"""Rows of a box that a single warp stores."""
BFLOAT16, SWIZZLE_128B, L2_PROMOTION_128B = 9, 3, 2
MAX_DYNAMIC_SHARED_SIZE, PDL = 8, 6
"""Enumerators of the driver's header cuda.h. PDL: programmatic dependent launch."""
POINTERS = {
    "float*": torch.float32,
    "int*": torch.int32,
    "long long*": torch.int64,
    "unsigned char*": torch.uint8,
    "unsigned short*": torch.bfloat16,
}
"""Tensors that a kernel takes, by the type of the parameter."""
WANTED = {"MAP": "a TensorMap", "int": "an int", "float": "a float"} | {
    pointer: f"a tensor of {dtype}".replace("torch.", "") for pointer, dtype in POINTERS.items()
}


class TensorMap(ctypes.Structure):
    """A matrix as the TMA reads or writes it (CUtensorMap)."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int64), ("value", ctypes.c_int64 * 8))

    def __init__(self, number: int, value: int) -> None:
        super().__init__(number, (value,))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig; `size` is that of the grid and of a thread block."""

    _fields_ = (
        ("size", ctypes.c_uint * 6),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Parameter(NamedTuple):
    """A parameter of a kernel; `type` is a key of `WANTED`."""

    name: str
    type: str


Argument = TensorMap | Tensor | int | float
CArgument = TensorMap | ctypes.c_void_p | ctypes.c_int | ctypes.c_float


@functools.cache
def is_supported(device: torch.device) -> bool:
    """Whether the kernels can be compiled and launched on this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return False
    try:
        with torch.cuda.device(device):
            for source in SOURCES:
                _module(source, torch.cuda.current_device())
    except (OSError, RuntimeError) as error:
        warnings.warn(
            f"The CUDA C++ kernels do not load, so slower Triton kernels run: {error}",
            stacklevel=2,
        )
        return False
    return True


def launch(
    name: str, grid: int, shared: int, *args: Argument, warpgroups: int = WARPGROUPS
) -> None:
    """Launch `source.kernel` on the current stream, with this many bytes of shared memory.

    With programmatic dependent launch the kernel may begin, and load its weights, before the
    previous launch ends: weights must be older than the last launch of another kind.
    """
    device = _use_torch_context()
    held = bind_arguments(name, args)
    pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    function = _function(name, shared, device)
    pdl = LaunchAttribute(PDL, 1)
    size = (grid, 1, 1, (warpgroups + 1) * 128, 1, 1)
    config = LaunchConfig(size, shared, stream, ctypes.pointer(pdl), 1)
    _check(_driver().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None))


def tensor_map(x: Tensor, box_rows: int = BOX) -> TensorMap:
    """Describe a contiguous bf16 matrix to the TMA, in boxes of `box_rows` x 64.

    Outside the matrix loads read zeros and stores write nothing.
    """
    assert x.dtype == torch.bfloat16
    assert x.is_contiguous()
    rows, width = x.shape
    _use_torch_context()
    buffer = ctypes.create_string_buffer(2 * ctypes.sizeof(TensorMap))
    start = -ctypes.addressof(buffer) % 64  # the driver requires alignment to 64 bytes
    _check(
        _driver().cuTensorMapEncodeTiled(
            ctypes.byref(buffer, start), BFLOAT16, 2, ctypes.c_void_p(x.data_ptr()),
            (ctypes.c_uint64 * 2)(width, rows), (ctypes.c_uint64 * 1)(width * 2),
            (ctypes.c_uint32 * 2)(BOX, box_rows), (ctypes.c_uint32 * 2)(1, 1),
            0, SWIZZLE_128B, L2_PROMOTION_128B, 0,
        )
    )  # fmt: skip
    return TensorMap.from_buffer_copy(buffer, start)


def bind_arguments(name: str, args: Sequence[Argument]) -> list[CArgument]:
    """Convert the arguments of `source.kernel`, or raise a TypeError that says which is wrong.

    The driver takes plain bytes: without this check an int would be read as the bits of a float.
    """
    source, _, kernel = name.partition(".")
    parameters = signatures(source)[kernel]
    if len(args) != len(parameters):
        raise TypeError(f"{name} takes {len(parameters)} arguments, but {len(args)} were given")
    return [_bind(name, p, value) for p, value in zip(parameters, args, strict=True)]


@functools.cache
def signatures(source: str) -> dict[str, tuple[Parameter, ...]]:
    """The parameters of each kernel of a source."""
    found = re.findall(
        r"^KERNEL (?:__cluster_dims__\(.*?\) )?(\w+)\((.*?)\)", _read(f"{source}.cu"), re.M | re.S
    )
    return {kernel: tuple(map(_parameter, listed.split(","))) for kernel, listed in found}


def _parameter(declaration: str) -> Parameter:
    kind, _, name = declaration.replace("const ", "").strip().rpartition(" ")
    if kind not in WANTED:
        raise ValueError(f"Kernel parameters of type `{kind}` are not supported: `{name}`")
    return Parameter(name, kind)


def _bind(kernel: str, parameter: Parameter, value: Argument) -> CArgument:
    match parameter.type, value:
        case "MAP", TensorMap():
            return value
        case "int", int() if not isinstance(value, bool):
            return ctypes.c_int(value)
        case "float", float():
            return ctypes.c_float(value)
        case kind, Tensor() if value.dtype == POINTERS.get(kind):
            return ctypes.c_void_p(value.data_ptr())
    given = f"a tensor of {value.dtype}" if isinstance(value, Tensor) else f"{value!r}"
    raise TypeError(
        f"{kernel}: parameter `{parameter.name}` takes {WANTED[parameter.type]}, "
        f"not {given.replace('torch.', '')}"
    )


@functools.cache
def load_cubin(source: str) -> bytes:
    """The machine code of a source, from Triton's cache if it is there."""
    settings = "\n".join((*OPTIONS, str(torch.version.cuda)))
    key = hashlib.sha256((source_text(source) + settings).encode()).hexdigest()
    cache = get_cache_manager(key)
    name = f"{source}.cubin"
    if (cached := cache.get_file(name)) is not None:
        return Path(cached).read_bytes()
    cubin, _ = compile_source(source)
    cache.put(cubin, name)
    return cubin


def source_text(source: str) -> str:
    """What is compiled: the headers and the source."""
    return "".join(map(_read, (*(f"{header}.cuh" for header in HEADERS), f"{source}.cu")))


def compile_source(source: str, *extra_options: str) -> tuple[bytes, str]:
    """The machine code of a source, and the compiler's log."""
    nvrtc = find_nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [option.encode() for option in (*OPTIONS, *extra_options)]
    code, name = source_text(source).encode(), f"{source}.cu".encode()
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), code, name, 0, None, None):
        raise RuntimeError("NVRTC does not start")
    try:
        argv = (ctypes.c_char_p * len(options))(*options)
        failed = nvrtc.nvrtcCompileProgram(program, len(options), argv)
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, buffer)
        log = buffer.value.decode()
        if failed:
            raise RuntimeError(f"NVRTC does not compile {source}.cu: {log}")
        nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin.raw, log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def find_nvrtc() -> ctypes.CDLL:
    """Load the NVRTC of torch's CUDA version, from the library path or NVIDIA's pip packages."""
    name = f"libnvrtc.so.{(torch.version.cuda or '13').partition('.')[0]}"
    packages = importlib.util.find_spec("nvidia")
    folders = (packages.submodule_search_locations or ()) if packages else ()
    found = [path for folder in folders for path in Path(folder).glob(f"*/lib/{name}")]
    for path in (name, *map(str, found)):
        try:
            if path != name:  # some versions do not look for this part in their own folder
                for part in Path(path).parent.glob("libnvrtc-builtins.so.*"):
                    ctypes.CDLL(str(part))
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError(f"{name} is not found; install the package nvidia-cuda-nvrtc")


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _use_torch_context() -> int:
    """Enter the CUDA context of torch, which autograd's own thread lacks; returns the device."""
    device = torch.cuda.current_device()
    _check(_driver().cuCtxSetCurrent(_context(device)))
    return device


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    number, context = ctypes.c_int(), ctypes.c_void_p()
    _check(_driver().cuDeviceGet(ctypes.byref(number), device))
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
    return context


@functools.cache
def _module(source: str, device: int) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    torch.cuda.init()
    _check(_driver().cuCtxSetCurrent(_context(device)))
    _check(_driver().cuModuleLoadData(ctypes.byref(module), load_cubin(source)))
    return module


@functools.cache
def _function(name: str, shared: int, device: int) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    source, _, kernel = name.partition(".")
    module = _module(source, device)
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
    _check(_driver().cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE, shared))
    return function


def _check(result: int) -> None:
    """Raise the driver's message for a result other than 0."""
    if result:
        message = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(message))
        raise RuntimeError(f"CUDA: {(message.value or str(result).encode()).decode()}")
