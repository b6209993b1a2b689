"""Tensors of which each process holds some rows, as FSDP2 shards them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds a part of the tensor."""
    # By its method: the class would import torch.distributed, which one process does not need
    return hasattr(tensor, "to_local")


def local(tensor: Tensor) -> Tensor:
    """Return this process's rows of a sharded tensor, in its memory; others as they are."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


@torch.no_grad()
def copy_whole_(tensor: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    own = local(tensor)
    if is_sharded(tensor):
        mesh = tensor.device_mesh  # type: ignore[attr-defined]
        parts = whole.chunk(mesh.size())  # as FSDP2 does; the last ones may have no rows
        rank = mesh.get_local_rank()
        whole = parts[rank] if rank < len(parts) else whole[:0]
    own.copy_(whole)


@contextmanager
def whole_rows(tensor: Tensor) -> Iterator[Tensor]:
    """Yield all rows of a tensor, to be changed in place; of a sharded one, all processes must."""
    if not is_sharded(tensor):
        yield tensor
        return
    whole = tensor.full_tensor()  # type: ignore[attr-defined]
    yield whole
    copy_whole_(tensor, whole)
