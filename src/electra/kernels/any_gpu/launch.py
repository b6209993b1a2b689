"""How many programs a kernel that loops is given, and when the kernel after it may begin."""

import functools

import torch
import triton
import triton.language as tl


def programs(tiles: int, device: torch.device, per_processor: float) -> int:
    """Few enough that each loops over several tiles where there are many: what it adds up over
    rows it writes but once."""
    if device.type != "cuda":
        return min(tiles, 2)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(tiles, int(per_processor * processors)))


@functools.cache
def early(device: torch.device) -> bool:
    """Whether the launch after one can begin before its end: NVIDIA's GPUs from Hopper on."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit
def call_next(EARLY: tl.constexpr):
    """The next launch may begin, if it is one of `electra.kernels.cuda.runtime`: others wait."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
