"""Kernels in CUDA C++, for what Triton cannot say: compiled when first needed, and launched.

The compiler is NVRTC, which comes with torch; the driver loads what it makes. No other tool is
needed, and where one of them is missing, `usable` says so, and Triton's kernels are used.
"""

import ctypes
import functools
import hashlib
import importlib.util
import warnings
from pathlib import Path

import torch
from torch import Tensor
from triton.runtime.cache import get_cache_manager

SOURCES = ("products", "attend", "join", "norm", "rows", "rowsback", "words")
HEADERS = ("hopper", "gelu", "dropout", "attention")
"""Files *.cu here, and *.cuh, which come before each."""
OPTIONS = ("--gpu-architecture=sm_90a", "-std=c++17", "--device-as-default-execution-space")
HOPPER = (9, 0)
"""The only devices with the instructions that sm_90a means."""
GROUPS = 2
"""Of four warps, that compute, but where a kernel has others; sums over rows come from each of
them. One more brings tiles."""
BOX = 64
"""Columns of a tile, and rows, but where a kernel wants fewer."""
SLAB = 16
"""Rows of a tile that a warp has, and stores by itself."""
BFLOAT16, SWIZZLE_128, PROMOTE_128, SHARED_BYTES, EARLY = 9, 3, 2, 8, 6
"""Numbers that the driver's header gives names."""


class Map(ctypes.Structure):
    """A matrix as a kernel reads or writes it."""

    _fields_ = (("words", ctypes.c_uint64 * 16),)


class Attribute(ctypes.Structure):
    """Of a launch; the driver has room for larger values."""

    _fields_ = (("number", ctypes.c_int64), ("value", ctypes.c_int64 * 8))

    def __init__(self, number: int, value: int) -> None:
        super().__init__(number, (value,))


class Config(ctypes.Structure):
    """Of a launch: the grid and a program's threads, bytes of shared memory, stream, attributes."""

    _fields_ = (
        ("size", ctypes.c_uint * 6),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


@functools.cache
def usable(device: torch.device) -> bool:
    """Whether these kernels can be launched on it."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != HOPPER:
        return False
    try:
        with torch.cuda.device(device):
            for source in SOURCES:
                _module(source, torch.cuda.current_device())
    except (OSError, RuntimeError) as error:
        warnings.warn(f"kernels in CUDA C++ fail, and slower ones run: {error}", stacklevel=2)
        return False
    return True


def launch(
    name: str, grid: int, shared: int, *args: Map | Tensor | int | float, groups: int = GROUPS
) -> None:
    """`source.kernel` on the current stream, with so many bytes of shared memory; nothing is waited
    for.

    It may begin before the end of the launch before it, and bring its matrices onto the chip: what
    wrote these has to be older than the last launch that is not of this kind.
    """
    device = _enter()
    held = [_argument(arg) for arg in args]
    pointers = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    function = _function(name, shared, device)
    early = Attribute(EARLY, 1)
    size = (grid, 1, 1, (groups + 1) * 128, 1, 1)
    config = Config(size, shared, stream, ctypes.pointer(early), 1)
    _check(_driver().cuLaunchKernelEx(ctypes.byref(config), function, pointers, None))


def tiles(x: Tensor, tall: int = BOX) -> Map:
    """A contiguous bf16 matrix in boxes of so many rows: beyond its end zeros are read, and nothing
    is written."""
    assert x.dtype == torch.bfloat16
    assert x.is_contiguous()
    rows, width = x.shape
    _enter()
    room = ctypes.create_string_buffer(2 * ctypes.sizeof(Map))
    start = -ctypes.addressof(room) % 64  # where the driver writes has to be a multiple
    _check(
        _driver().cuTensorMapEncodeTiled(
            ctypes.byref(room, start), BFLOAT16, 2, ctypes.c_void_p(x.data_ptr()),
            (ctypes.c_uint64 * 2)(width, rows), (ctypes.c_uint64 * 1)(width * 2),
            (ctypes.c_uint32 * 2)(BOX, tall), (ctypes.c_uint32 * 2)(1, 1),
            0, SWIZZLE_128, PROMOTE_128, 0,
        )
    )  # fmt: skip
    return Map.from_buffer_copy(room, start)


@functools.cache
def code(source: str) -> bytes:
    """The machine code of a source, which is kept where Triton keeps its own."""
    settings = "\n".join((*OPTIONS, str(torch.version.cuda)))
    cache = get_cache_manager(hashlib.sha256(text(source) + settings.encode()).hexdigest())
    name = f"{source}.cubin"
    if (kept := cache.get_file(name)) is not None:
        return Path(kept).read_bytes()
    made, _ = compiled(source)
    cache.put(made, name)
    return made


def text(source: str) -> bytes:
    """What is compiled."""
    here, names = Path(__file__).parent, [f"{header}.cuh" for header in HEADERS]
    return b"".join((here / name).read_bytes() for name in (*names, f"{source}.cu"))


def compiled(source: str, *more: str) -> tuple[bytes, str]:
    """The machine code of a source, and what the compiler said; `more` are options."""
    compiler = find_compiler()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [option.encode() for option in (*OPTIONS, *more)]
    name = f"{source}.cu".encode()
    if compiler.nvrtcCreateProgram(ctypes.byref(program), text(source), name, 0, None, None):
        raise RuntimeError("NVRTC does not start")
    try:
        given = (ctypes.c_char_p * len(options))(*options)
        failed = compiler.nvrtcCompileProgram(program, len(options), given)
        compiler.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetProgramLog(program, log)
        said = log.value.decode()
        if failed:
            raise RuntimeError(f"NVRTC does not compile {source}.cu: {said}")
        compiler.nvrtcGetCUBINSize(program, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        compiler.nvrtcGetCUBIN(program, cubin)
        return cubin.raw, said
    finally:
        compiler.nvrtcDestroyProgram(ctypes.byref(program))


def find_compiler() -> ctypes.CDLL:
    """NVRTC of torch's version: one that is loaded or on the path, or from NVIDIA's packages."""
    name = f"libnvrtc.so.{(torch.version.cuda or '13').partition('.')[0]}"
    packages = importlib.util.find_spec("nvidia")
    folders = (packages.submodule_search_locations or ()) if packages else ()
    found = [path for folder in folders for path in Path(folder).glob(f"*/lib/{name}")]
    for path in (name, *map(str, found)):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError(f"{name} is not found; the package nvidia-cuda-nvrtc has it")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _enter() -> int:
    """Be where torch is, and say which device that is: the way back has a thread of its own."""
    device = torch.cuda.current_device()
    _check(_driver().cuCtxSetCurrent(_context(device)))
    return device


@functools.cache
def _context(device: int) -> ctypes.c_void_p:
    """The one that torch has."""
    number, context = ctypes.c_int(), ctypes.c_void_p()
    _check(_driver().cuDeviceGet(ctypes.byref(number), device))
    _check(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), number))
    return context


@functools.cache
def _module(source: str, device: int) -> ctypes.c_void_p:
    module = ctypes.c_void_p()
    torch.cuda.init()
    _check(_driver().cuCtxSetCurrent(_context(device)))
    _check(_driver().cuModuleLoadData(ctypes.byref(module), code(source)))
    return module


@functools.cache
def _function(name: str, shared: int, device: int) -> ctypes.c_void_p:
    function = ctypes.c_void_p()
    source, _, kernel = name.partition(".")
    module = _module(source, device)
    _check(_driver().cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
    _check(_driver().cuFuncSetAttribute(function, SHARED_BYTES, shared))
    return function


def _argument(
    value: Map | Tensor | int | float,
) -> Map | ctypes.c_void_p | ctypes.c_int | ctypes.c_float:
    match value:
        case Tensor():
            return ctypes.c_void_p(value.data_ptr())
        case int():
            return ctypes.c_int(value)
        case float():
            return ctypes.c_float(value)
    return value


def _check(result: int) -> None:
    """Raises what the driver says of a result that is not 0."""
    if result:
        said = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(said))
        raise RuntimeError(f"CUDA: {(said.value or str(result).encode()).decode()}")
