"""The stream of rows: each once in an epoch, in a new order each time, from any position."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from electra.errors import UserError
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.train.data import (
    DataConfig,
    check_positions,
    held_out_rows,
    open_data,
    rows_at,
    stream,
)


@pytest.fixture(scope="module")
def shards(data_folder):
    return Shards.open(data_folder)


def sorted_rows(rows) -> np.ndarray:
    rows = np.asarray(rows)
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("seed", [0, 7])
def test_every_row_once_an_epoch(shards, seed):
    total = shards.rows("train")
    everything = sorted_rows(shards.gather("train", np.arange(total)))
    for epoch in range(3):
        rows = rows_at(shards, epoch * total, total, seed)
        assert np.array_equal(sorted_rows(rows), everything)


def test_each_epoch_and_each_seed_has_its_own_order(shards):
    total = shards.rows("train")
    orders = [rows_at(shards, e * total, total, s) for e, s in ((0, 0), (1, 0), (2, 0), (0, 1))]
    orders.append(shards.gather("train", np.arange(total)))
    for i, one in enumerate(orders):
        for other in orders[:i]:
            same = (one == other).all(1).mean()
            assert same < 0.1


def test_a_batch_may_lie_across_two_epochs(shards):
    total = shards.rows("train")
    across = rows_at(shards, total - 3, 8, 0)
    assert np.array_equal(across[:3], rows_at(shards, 0, total, 0)[-3:])
    assert np.array_equal(across[3:], rows_at(shards, total, 5, 0))


def test_more_rows_than_there_are(shards):
    total = shards.rows("train")
    assert len(rows_at(shards, 5, 3 * total, 0)) == 3 * total


def test_to_resume_is_to_begin_at_another_number(shards):
    batch, device = 8, torch.device("cpu")
    whole = stream(shards, batch, 0, 0, device)
    first = [next(whole) for _ in range(270)]  # more than an epoch
    assert 260 * batch > shards.rows("train")
    for position in (0, 3, 260):
        again = stream(shards, batch, 0, position * batch, device)
        for i in range(position, position + 4):
            assert torch.equal(next(again), first[i])
    assert first[0].dtype == torch.int32
    assert first[0].shape == (8, 32 + 2)


def test_the_stream_is_the_rows_in_their_order(shards):
    batches = stream(shards, 8, 3, 16, torch.device("cpu"))
    for number in range(6):
        expected = rows_at(shards, 16 + 8 * number, 8, 3)
        assert np.array_equal(next(batches).numpy(), expected)


def test_an_error_while_reading_ahead_reaches_the_loop(shards, monkeypatch):
    from electra.train import data

    def broken(*_):
        raise OSError("the disk is gone")

    monkeypatch.setattr(data, "rows_at", broken)
    with pytest.raises(OSError, match="gone"):
        next(stream(shards, 8, 0, 0, torch.device("cpu")))


def test_held_out_rows_are_spread_and_the_same_each_time(shards):
    total = shards.rows("held_out")
    everything = shards.gather("held_out", np.arange(total))
    few = held_out_rows(shards, 10)
    assert torch.equal(few, held_out_rows(shards, 10))
    places = [int((everything == row.numpy()).all(1).nonzero()[0][0]) for row in few]
    assert len(few) == 10
    assert places[0] == 0
    assert max(np.diff(places)) < 3 * total / 10
    assert places[-1] > total * 0.8
    assert np.array_equal(held_out_rows(shards, 10**6), everything)
    assert len(held_out_rows(shards, 1)) == 1


def test_without_held_out_rows_it_is_refused(shards, monkeypatch):
    bare = replace(shards, ends=shards.ends | {"held_out": np.array([0])})
    with pytest.raises(UserError, match=r"no held-out rows.*--held-out above 0"):
        held_out_rows(bare, 5)


def test_lengths_are_checked(data_folder, corpus, tokenizer_folder, tmp_path):
    config = DataConfig(folder=str(data_folder), seq_length=32, batch_size=8)
    assert open_data(config, positions=32).length == 32
    with pytest.raises(UserError, match=r"Rows of 32.*table of 31"):
        open_data(config, positions=31)
    with pytest.raises(
        UserError, match=r"rows of 32 tokens and the recipe expects 64.*--length 64"
    ):
        open_data(replace(config, seq_length=64), positions=512)
    check_positions(512, 512)
    longer = tmp_path / "longer"
    prepare([corpus], tokenizer=tokenizer_folder, out=longer, length=48, workers=1)
    with pytest.raises(UserError, match=r"data\.seq_length=48"):
        open_data(replace(config, folder=str(longer)), positions=512)


@pytest.mark.parametrize("batch", [0, -8])
def test_a_batch_without_rows_is_refused(batch):
    with pytest.raises(UserError, match=r"data\.batch_size must be at least 1"):
        DataConfig(batch_size=batch)
