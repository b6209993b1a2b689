"""How many programs a kernel that loops is given."""

import torch


def programs(tiles: int, device: torch.device, per_processor: float) -> int:
    """Few enough that each loops over several tiles where there are many: what it adds up over
    rows it writes but once."""
    if device.type != "cuda":
        return min(tiles, 2)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return max(1, min(tiles, int(per_processor * processors)))
