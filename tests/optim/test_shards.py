"""Sharded tensors: each rank copies and changes the rows that torch's DTensor gives it."""

import pytest
import torch
from torch import distributed
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from electra.optim.shards import copy_whole_, is_sharded, local, whole_rows


@pytest.fixture
def split():
    """`split(whole, rank, size)`: the tensor as that rank of FSDP2 holds it; nothing is sent."""

    def made(whole: torch.Tensor, rank: int, size: int) -> DTensor:
        if distributed.is_initialized():
            distributed.destroy_process_group()
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        mesh = init_device_mesh("cpu", (size,))
        return distribute_tensor(whole.clone(), mesh, [Shard(0)], src_data_rank=None)

    yield made
    if distributed.is_initialized():
        distributed.destroy_process_group()


def table(rows: int) -> torch.Tensor:
    return torch.arange(rows * 2.0).view(rows, 2)


def test_a_tensor_of_one_process_is_used_as_it_is():
    tensor = torch.zeros(3, 2)
    assert not is_sharded(tensor)
    assert local(tensor) is tensor
    copy_whole_(tensor, table(3))
    assert torch.equal(tensor, table(3))
    with whole_rows(tensor) as whole:
        assert whole is tensor


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        (4, [[0, 1], [2, 3]]),
        (5, [[0, 1], [2, 3], [4]]),
        (6, [[0, 1], [2, 3], [4, 5], []]),  # not every rank has a row
    ],
)
def test_each_rank_copies_its_rows(rows, held, split):
    for rank, own in enumerate(held):
        tensor = split(torch.zeros(rows, 2), rank, len(held))
        assert is_sharded(tensor)
        copy_whole_(tensor, table(rows))
        assert torch.equal(local(tensor), table(rows)[own])
        assert torch.equal(local(tensor), split(table(rows), rank, len(held)).to_local())


def test_local_rows_are_no_copy(split):
    tensor = split(table(4), 1, 2)
    local(tensor).zero_()
    assert not tensor.to_local().any()


def test_a_change_of_whole_rows_reaches_the_rows_of_the_rank(split, monkeypatch):
    tensor = split(table(5), 1, 2)
    monkeypatch.setattr(DTensor, "full_tensor", lambda _: table(5))  # there are no other ranks
    with whole_rows(tensor) as whole:
        whole[[0, 4]] = -1.0
    assert local(tensor).tolist() == [[6, 7], [-1, -1]]
