"""Tensors in one safetensors file per rank, by torch.distributed.checkpoint.

Each file says which rows of a tensor it holds, so any number of ranks can read them, also one.
torch's own format has an index in pickle form, which can run code when it is read; this one, which
torch calls Hugging Face's, has none.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def write_shards(folder: Path, tensors: Mapping[str, Tensor], group: "ProcessGroup") -> Future[Any]:
    """Copy this rank's part of the tensors to the host, and write it in the background.

    All ranks must call it. They exchange messages meanwhile, so `group` must be used for nothing
    else. `wait_for` returns when all ranks are done.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import async_save

    future = async_save(
        {name: tensor.detach() for name, tensor in tensors.items()},
        storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True),
        process_group=group,
    )
    assert isinstance(future, Future)
    return future


def wait_for(written: Future[Any]) -> None:
    """Wait for `write_shards`; raise an `OSError` if a rank could not write its part."""
    with _errors():
        written.result()


def stored_shapes(folder: Path) -> dict[str, torch.Size]:
    """The shape of each tensor; a `ValueError` if some of its rows are in no file."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    metadata = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    shapes = {}
    for name, found in metadata.items():
        assert isinstance(found, TensorStorageMetadata)
        if sum(math.prod(chunk.sizes) for chunk in found.chunks) != math.prod(found.size):
            raise ValueError(f"a part of {name} is missing")
        shapes[name] = found.size
    return shapes


def read_shards(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors, of sharded ones this rank's rows; without messages between ranks."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    # For good: another thread may be in a `catch_warnings` of its own
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with _errors():
        load(
            {name: tensor.detach() for name, tensor in tensors.items()},
            storage_reader=HuggingFaceStorageReader(str(folder)),
            no_dist=True,
        )


@contextmanager
def _errors() -> Iterator[None]:
    """Turn torch's error, which is not even an `Exception`, into an `OSError`."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        reasons = [f"rank {rank}: {found[0]}" for rank, found in error.failures.items()]
        raise OSError("; ".join(reasons)) from None
