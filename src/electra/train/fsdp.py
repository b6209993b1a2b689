"""FSDP2: each rank holds a shard of the weights, gradients, moments and moving averages.

A unit of sharding is gathered for its forward and backward pass and freed after each. Every encoder
layer is a unit. The root's unit has everything else, above all what the networks share: the
embeddings, which are also the generator's output weights. So each parameter is in one unit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from electra.errors import UserError
from electra.models.encoder import Layer
from electra.objectives.objective import Objective
from electra.train.distributed import Ranks

DataParallel = Literal["ddp", "fsdp"]


def is_sharded(setting: DataParallel, ranks: Ranks, device: torch.device) -> bool:
    """Whether a run is sharded; one process has nothing to share."""
    if setting == "ddp" or ranks.size == 1:
        return False
    if device.type == "cuda" and ranks.shared_gpus:
        raise UserError(
            "train.data_parallel=fsdp needs a GPU for each process: start fewer processes, or set "
            "train.data_parallel=ddp."
        )
    return True


def shard_(objective: Objective, ranks: Ranks, *, compiled: bool) -> None:
    """Shard the parameters of an objective over the ranks, in place.

    Weights are gathered and gradients summed in fp32; autocast lowers the precision of matmuls, as
    without sharding. FSDP2's own policy would lower that of LayerNorm's weights too.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(objective.maskable.device.type, (ranks.size,))
    for layer in [module for module in objective.modules() if isinstance(module, Layer)]:
        if compiled:  # without the hooks that gather and free its weights
            compiled_forward = torch.compile(layer.forward, dynamic=False)
            object.__setattr__(layer, "forward", compiled_forward)
        fully_shard(layer, mesh=mesh)
    fully_shard(objective, mesh=mesh)
    for unit in units(objective):
        # Sums, not means: the losses are divided by the counts of the whole batch already
        unit.set_gradient_divide_factor(1.0)  # type: ignore[operator]
        unit.set_force_sum_reduction_for_comms(True)  # type: ignore[operator]


def units(objective: Objective) -> list[nn.Module]:
    """The modules that are gathered as one; empty if the objective is not sharded."""
    return [m for m in objective.modules() if hasattr(m, "set_gradient_divide_factor")]


@contextmanager
def gathered(objective: Objective) -> Iterator[None]:
    """Keep whole weights within a `with`, so that ranks may run different numbers of forwards.

    Without gradients and stored activations, there is memory for them.
    """
    found = units(objective)
    try:
        for unit in found:
            unit.unshard()  # type: ignore[operator]
            unit.set_reshard_after_forward(False, recurse=False)  # type: ignore[operator]
        yield
    finally:
        for unit in found:
            # The root's weights are needed first in the backward pass: they stay after the forward
            again = unit is not objective
            unit.set_reshard_after_forward(again, recurse=False)  # type: ignore[operator]
            unit.reshard()  # type: ignore[operator]


def describe_sharding(objective: Objective, ranks: Ranks, *, compiled: bool) -> str:
    """Say what `train.data_parallel=fsdp` does, and what it does without."""
    if ranks.size == 1:
        return "train.data_parallel=fsdp shards over several processes: with one it does nothing."
    layers = len(units(objective)) - 1
    how = "layers compiled by torch.compile" if compiled else "plain modules"
    return (
        f"FSDP2: weights, gradients and optimizer state are sharded over {ranks.size} processes, "
        f"in a unit for each of {layers} layers and one for the rest. The networks run as {how}: "
        "the fused kernels and the CUDA graph need whole weights at fixed addresses."
    )
