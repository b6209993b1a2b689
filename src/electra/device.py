"""The hardware of a run: device, precision, CPU threads and peak speed."""

import contextlib
import math
import os
import platform
import re
import time
from pathlib import Path
from typing import Literal

import torch

from electra.errors import UserError

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16"]
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""The CPU limit of a Linux container: its quota and period in microseconds."""
MEMORY, MEMORY_LIMIT = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
"""Linux: the memory of the machine, and the limit of a container in bytes."""


def launched_processes() -> int:
    """How many processes a launcher such as `torchrun` has started for this command."""
    processes = os.environ.get("WORLD_SIZE", "1")
    return max(1, int(processes)) if processes.isdigit() else 1


def check_one_process() -> None:
    """Refuse to train in each process of a launcher as if it were alone."""
    if launched_processes() > 1:
        raise UserError(
            f"WORLD_SIZE is {launched_processes()}, but only 'electra pretrain' runs in several "
            "processes: start this command without torchrun."
        )


def choose_device(requested: Device, setting: str = "train.device") -> torch.device:
    """'auto' takes CUDA, then MPS, then the CPU; an unavailable device is an error."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if requested == "auto":
        requested = "cuda" if there["cuda"] else "mps" if there["mps"] else "cpu"
    elif not there.get(requested, True):
        raise UserError(f"There is no '{requested}' device here: use {setting}=auto or cpu.")
    return torch.device(requested)


def choose_precision(requested: Precision, device: torch.device) -> torch.dtype:
    """'auto' takes bf16 where the GPU supports it, else fp32; weights are always fp32."""
    if requested == "auto":
        requested = "bf16" if supports_bf16(device) else "fp32"
    return torch.bfloat16 if requested == "bf16" else torch.float32


def supports_bf16(device: torch.device) -> bool:
    """Whether the device computes in bf16 natively; torch emulates it, slowly, on older GPUs."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def set_cpu_threads(threads: int) -> None:
    """Use this many CPU threads; 0 keeps torch's choice within the CPUs of this process."""
    if threads:
        torch.set_num_threads(threads)
    elif "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), available_cpus()))


def available_cpus() -> int:
    """CPUs that this process may use, by its affinity and its container's CPU quota."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text(encoding="ascii").split()
        return min(cpus, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no cgroup v2, or no limit ("max")
        return cpus


def available_memory() -> float:
    """Bytes that this process may use, by its system and container; infinite if unknown."""
    limits = [math.inf]
    for path, pattern, unit in (
        (MEMORY, r"MemAvailable: *(\d+) kB", 1024),
        (MEMORY_LIMIT, r"(\d+)", 1),
    ):
        with contextlib.suppress(OSError):
            found = re.search(pattern, path.read_text(encoding="ascii"))
            limits += [unit * int(found[1])] if found else []
    return min(limits)


def autocast(
    device: torch.device, dtype: torch.dtype, cache: bool = True
) -> contextlib.AbstractContextManager[object]:
    """Matmuls in `dtype`, sums and norms in fp32; `cache` keeps the casts of the weights."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype, cache_enabled=cache)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's random number generators."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Restore what `random_state` returned; devices that are not available are skipped."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def device_name(device: torch.device) -> str:
    """The name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {torch.get_num_threads()} threads"


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large matmul on this device, measured now."""
    size = 8192 if device.type == "cuda" else 1024
    own = torch.Generator(device).manual_seed(0)  # leaves the run's random numbers alone
    a = torch.randn(size, size, device=device, dtype=dtype, generator=own)
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        a @ a
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
