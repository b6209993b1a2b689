"""The stream of rows: each once in an epoch, in a new order each time, from any position."""

import threading
from dataclasses import replace
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.errors import UserError
from electra.text.background import BackgroundWork
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.train.data import (
    DataConfig,
    check_positions,
    find_shards,
    held_out_rows,
    open_data,
    row_order,
    rows_at,
    stream,
)
from electra.train.distributed import Ranks


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


@settings(max_examples=25, deadline=None)
@given(
    readers=st.integers(1, 9),
    size=st.sampled_from([1, 2, 3, 4, 6, 8, 24]),
    position=st.integers(0, 10**12),
    seed=st.integers(0, 2**63 - 1),
)
def test_any_number_of_threads_and_ranks_reads_the_same_rows(shards, readers, size, position, seed):
    cpu = torch.device("cpu")
    with patch.object(Shards, "readers", PropertyMock(return_value=readers)):
        streams = [
            stream(shards, 24, seed, position, cpu, Ranks(rank=rank, size=size))
            for rank in range(size)
        ]
        found = torch.cat([next(s) for _ in range(3) for s in streams])
        for s in streams:
            s.close()
    assert np.array_equal(found.numpy(), rows_at(shards, position, 3 * 24, seed))


def test_damage_found_in_the_background_ends_the_stream(shards):
    found = threading.Event()

    def verify(_):
        found.wait(10)
        raise UserError("a shard was changed")

    watched = replace(shards, background=BackgroundWork(verify, [0]))
    others = stream(watched, 8, 0, 0, torch.device("cpu"), Ranks(rank=1, size=2, local_rank=1))
    next(others)
    assert watched.background.main is None  # another process of this machine does it
    batches = stream(watched, 8, 0, 0, torch.device("cpu"))
    next(batches)
    found.set()
    watched.background.main.join(10)
    with pytest.raises(UserError, match="was changed"):
        next(batches)


# ------------------------------------------------------------------ the order of a large corpus

ROWS, SHARDS, SAMPLE = 7_812_500_000, 10_000, 200_000
"""1 T tokens in rows of 128."""


def deviations(order: np.ndarray) -> dict[str, float]:
    """How far an order is from a uniform one, each in standard deviations.

    `order` holds consecutive rows of the stream.
    """

    def chi_square(counts: np.ndarray) -> float:
        expected, free = counts.sum() / counts.size, counts.size - 1
        value = ((counts - expected) ** 2).sum() / expected
        return float((value - free) / np.sqrt(2 * free))

    shard = order * SHARDS // ROWS
    found = {"shards": chi_square(np.bincount(shard, minlength=SHARDS))}
    for begin in range(0, len(order), len(order) // 4):  # of some hundred consecutive batches
        part = np.bincount(shard[begin : begin + len(order) // 4] // 100, minlength=SHARDS // 100)
        found[f"shards from {begin}"] = chi_square(part)
    for lag in (1, 2, 128):  # a row says nothing about those after it
        pair = (order[:-lag] * 16 // ROWS) * 16 + order[lag:] * 16 // ROWS
        found[f"pairs {lag} apart"] = chi_square(np.bincount(pair, minlength=256))
    ranks = np.argsort(np.argsort(order))
    for name, a, b in (
        ("rank correlation of neighbours", ranks[:-1], ranks[1:]),
        ("rank correlation with the position", np.arange(len(ranks)), ranks),
    ):
        found[name] = float(np.corrcoef(a, b)[0, 1] * np.sqrt(len(a)))
    return found


@pytest.mark.parametrize("position", [0, 5_000_000_123, 3 * ROWS + 17])
def test_the_order_is_uniform_over_the_whole_corpus(position):
    """Also of 1 T tokens, at the beginning, in the middle, and in a later epoch."""
    order = row_order(ROWS, position, SAMPLE, seed=3)
    assert len(np.unique(order)) == SAMPLE
    assert {name: z for name, z in deviations(order).items() if abs(z) > 4.5} == {}
    some = [17, 4_000, SAMPLE - 1]  # each position is computed on its own
    assert [int(row_order(ROWS, position + i, 1, seed=3)[0]) for i in some] == list(order[some])


def test_a_shuffle_buffer_is_not_uniform():
    """The statistics notice what they are meant to notice, also a buffer of a whole shard."""
    rng = np.random.default_rng(0)
    for buffer in (1_000, ROWS // SHARDS, ROWS // 20):
        order = np.minimum(np.arange(SAMPLE) + rng.integers(0, buffer, SAMPLE), ROWS - 1)
        assert deviations(order)["shards"] > 100
    blocks = rng.integers(0, ROWS - 128, SAMPLE // 128)  # whole blocks in a random order
    order = (blocks[:, None] + np.arange(128)).reshape(-1)
    assert deviations(order)["rank correlation of neighbours"] > 100


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


def test_a_bounded_cache_cannot_be_negative():
    with pytest.raises(UserError, match=r"data\.cache_gb must be at least 0"):
        DataConfig(cache_gb=-1)


def test_shards_at_an_address_are_found_by_their_length(data_folder, tmp_path):
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "32").symlink_to(data_folder)
    nested, plain = (tmp_path / "both").as_uri(), data_folder.as_uri()
    assert find_shards(nested, 32) == f"{nested}/32"
    assert find_shards(plain + "/", 32) == plain + "/"
    with pytest.raises(UserError, match=r"rows of 32 tokens and the recipe expects 64"):
        find_shards(plain, 64)
    with pytest.raises(UserError, match=r"holds no token shards.*uploaded"):
        find_shards(nested, 64)
    config = DataConfig(folder=nested, seq_length=32, cache_dir=str(tmp_path / "cache"))
    opened = open_data(config, positions=32)
    assert opened.digest == Shards.open(data_folder).digest
    assert np.array_equal(rows_at(opened, 5, 99, 1), rows_at(Shards.open(data_folder), 5, 99, 1))
