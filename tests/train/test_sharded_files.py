"""Files of several ranks: their layout written by hand, what is missing or broken in them."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from electra.train.sharded_files import read_shards, stored_shapes, wait_for, write_shards

TABLE, COUNT = torch.arange(10.0).view(5, 2), torch.tensor(7)


def write_rows(path: Path, begin: int, end: int, **others: torch.Tensor) -> None:
    """A rank's file: some rows of the table, and where they begin."""
    offsets = {"table": [begin, 0]} | {name: [0] * t.dim() for name, t in others.items()}
    sharding = {name: {"saved_offsets": at} for name, at in offsets.items()}
    metadata = {"format": "pt", "DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(sharding)}
    save_file({"table": TABLE[begin:end].clone(), **others}, path, metadata)


@pytest.fixture
def folder(tmp_path) -> Path:
    """What two ranks wrote, the first of them three rows."""
    write_rows(tmp_path / "shard-00001-model-00001-of-00001.safetensors", 0, 3, count=COUNT)
    write_rows(tmp_path / "shard-00002-model-00001-of-00001.safetensors", 3, 5)
    return tmp_path


def test_one_process_reads_the_files_of_two(folder):
    assert stored_shapes(folder) == {"table": (5, 2), "count": ()}
    found = {"table": torch.zeros(5, 2), "count": torch.tensor(0)}
    read_shards(folder, found)
    assert torch.equal(found["table"], TABLE)
    assert found["count"] == 7


def test_rows_that_no_file_has_are_missed(folder):
    (folder / "shard-00001-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(ValueError, match="a part of table is missing"):
        stored_shapes(folder)


def test_a_tensor_that_is_not_there_is_an_error(folder):
    with pytest.raises(OSError, match=r"rank 0: .*other"):
        read_shards(folder, {"other": torch.zeros(2)})


def test_what_is_written_can_be_read(group_of_one, tmp_path):
    wait_for(write_shards(tmp_path, {"table": TABLE.clone().requires_grad_()}, group_of_one))
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}  # no pickle
    found = torch.zeros(5, 2)
    read_shards(tmp_path, {"table": found})
    assert torch.equal(found, TABLE)


def test_a_full_disk_is_an_error_of_the_operating_system(group_of_one, tmp_path, monkeypatch):
    def write_data(self, plan, planner):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", write_data)
    with pytest.raises(OSError, match=r"rank 0: .*No space left on device"):
        wait_for(write_shards(tmp_path, {"table": TABLE}, group_of_one))
