"""The hardware of a run: which device, which precision, and what it can do at best."""

import contextlib
import os
import time
from typing import Literal

import torch

from electra.errors import UserError

Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["auto", "fp32", "bf16"]


def check_one_process() -> None:
    """Refuse to train under a launcher of several processes, such as `torchrun`."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes.isdigit() and int(processes) > 1:
        raise UserError(
            f"WORLD_SIZE is {processes}, but a run uses one device for now: start electra without "
            "torchrun or another launcher, once per run."
        )


def choose_device(wish: Device, setting: str = "train.device") -> torch.device:
    """CUDA where it is, then Apple's GPU, then the CPU; a wish that cannot be met is an error."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wish == "auto":
        wish = "cuda" if there["cuda"] else "mps" if there["mps"] else "cpu"
    elif not there.get(wish, True):
        raise UserError(f"There is no '{wish}' device here: use {setting}=auto or cpu.")
    return torch.device(wish)


def choose_precision(wish: Precision, device: torch.device) -> torch.dtype:
    """bf16 products on CUDA, fp32 elsewhere; weights and optimizer are fp32 in each case."""
    if wish == "auto":
        wish = "bf16" if knows_bf16(device) else "fp32"
    return torch.bfloat16 if wish == "bf16" else torch.float32


def knows_bf16(device: torch.device) -> bool:
    """Whether it computes in bf16 itself; a GPU older than Ampere has torch imitate it, slowly."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def autocast(
    device: torch.device, dtype: torch.dtype, cache: bool = True
) -> contextlib.AbstractContextManager[object]:
    """Products in `dtype`, sums and norms in fp32; `cache` keeps the casts of the weights."""
    if dtype == torch.float32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype, cache_enabled=cache)


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """Everything that the next random number depends on."""
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    elif device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, torch.Tensor]) -> None:
    """Put back what `random_state` took; a device that is not here any more is passed over."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "mps" in state and torch.backends.mps.is_available():
        torch.mps.set_rng_state(state["mps"])


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def measure_peak(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product here and now: the yardstick of the live view."""
    size = 8192 if device.type == "cuda" else 1024
    own = torch.Generator(device).manual_seed(0)  # the run's random numbers stay untouched
    a = torch.randn(size, size, device=device, dtype=dtype, generator=own)
    best = float("inf")
    for _ in range(5):
        synchronize(device)
        start = time.perf_counter()
        a @ a
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
