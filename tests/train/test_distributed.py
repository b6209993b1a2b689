"""Several processes train one run: the same data, losses, weights and metrics as one process."""

import os
import shutil
import signal
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train.launching import PLAIN, SHORT, alone, check_equal, pretrain_on_rank, tensors

from electra.config import override, to_yaml
from electra.errors import UserError
from electra.objectives.rtd import ReplacedTokenDetection
from electra.text.prepare import prepare
from electra.train import checkpoint, pretrain
from electra.train.data import rows_at, stream
from electra.train.distributed import (
    ONE_RANK,
    Ranks,
    check_batches,
    describe_cuda,
    open_ranks,
    steps_per_agreement,
)
from electra.train.metrics_log import read_metrics


@pytest.fixture(autouse=True)
def _no_yardstick(monkeypatch):
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)


def command(*arguments: str) -> int:
    """Run the command line."""
    from electra import cli

    sys.argv = ["electra", *arguments]
    return cli.run_app()


# ------------------------------------------------------------------ without processes


def test_one_process_sends_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name in ("init_process_group", "all_reduce", "broadcast", "all_gather_object"):
        monkeypatch.delattr(f"torch.distributed.{name}")
    with open_ranks() as ranks:
        assert ranks is ONE_RANK
    tensor = torch.arange(3)
    assert ranks.sum_(tensor) is tensor
    assert ranks.agree(15, 2.5) == (15, 2.5)
    assert ranks.gather("a") == ["a"]
    assert ranks.broadcast("a") == "a"
    assert ranks.place(torch.device("mps")).type == "mps"
    with pytest.raises(UserError, match="as it is"), ranks.together():
        raise UserError("as it is")


class Numbered:
    """Shards whose rows are their numbers."""

    readers, background = 1, None

    def __init__(self, total: int) -> None:
        self.total = total

    def rows(self, split: str) -> int:
        return self.total

    def gather(self, split: str, places: np.ndarray) -> np.ndarray:
        return places[:, None]


PARTS = st.tuples(
    st.sampled_from([1, 2, 3, 4, 6, 8]),  # ranks
    st.integers(1, 3),  # micro-batches of each
    st.integers(1, 3),  # rows of a micro-batch
    st.integers(1, 9),  # steps
)


@given(total=st.integers(1, 60), seed=st.integers(0, 9), parts=st.lists(PARTS, min_size=1))
@settings(max_examples=60, deadline=None)
def test_each_row_comes_once_in_each_epoch(total, seed, parts):
    """Whatever ranks, batch size and accumulation are, also if they change in mid-epoch."""
    shards, cpu = Numbered(total), torch.device("cpu")
    position, seen = 0, []
    for size, accumulation, micro, steps in parts:
        batch = size * accumulation * micro
        ranks = [Ranks(rank=rank, size=size) for rank in range(size)]
        check_batches(ranks[0], [batch], accumulation)
        streams = [stream(shards, batch, seed, position, cpu, rank) for rank in ranks]
        for _ in range(steps):
            for own in streams:
                pieces = next(own).split(batch // accumulation // size)  # as the loop computes it
                assert [len(piece) for piece in pieces] == [micro] * accumulation
                seen += torch.cat(pieces).flatten().tolist()
            position += batch
        for own in streams:
            own.close()
    assert len(seen) == position
    assert seen == rows_at(shards, 0, position, seed).flatten().tolist()
    for begin in range(0, position, total):
        epoch = seen[begin : begin + total]
        assert len(set(epoch)) == len(epoch)  # a whole epoch has `total` different rows: all


@pytest.mark.parametrize("count", [0, 1, 5, 16, 1024])
def test_shares_cover_everything_once_and_in_order(count):
    for size in range(1, 20):
        shares = [Ranks(rank=rank, size=size).share(count) for rank in range(size)]
        assert [row for share in shares for row in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("batches", "accumulation", "size"), [((8,), 1, 3), ((8, 12), 1, 8), ((8,), 4, 4)]
)
def test_a_batch_that_does_not_divide_is_refused(batches, accumulation, size):
    check_batches(Ranks(size=2), (8, 12), 2)
    with pytest.raises(UserError, match=rf"does not divide over {size} processes.*data.batch_size"):
        check_batches(Ranks(size=size), batches, accumulation)


def test_another_launcher_is_told_what_is_missing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match=r"RANK is not set.*torchrun"), open_ranks():
        pass


# ------------------------------------------------------------------ equal to one process


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, ("generator.tie=embeddings",)),
        (4, ("generator.tie=gdes", "optim.ema=0.9", "data.batch_size=8,16@0.5")),
        (2, ("generator.tie=none", "train.grad_accumulation=2", "train.validate_rows=15")),
        (2, ("objective.kind=two-stage", "generator.width=1", "generator.tie=none")),
    ],
)
def test_ranks_train_what_one_process_trains(size, changes, tiny, tmp_path, launch):
    config = override(tiny, [*PLAIN, *changes])
    reference = alone(config, tmp_path / "alone")
    found = launch(size, pretrain_on_rank, config, tmp_path / "run")
    assert [code for code, _ in found] == [0] * size
    check_equal(tmp_path / "run", reference)
    assert f"{size} processes on cpu" in found[0][1]
    assert "Done: 8 steps" in found[0][1]
    assert not any(text for _, text in found[1:])  # one console


@pytest.mark.parametrize("sizes", [(2, 1, 2), (4, 2, 4)])
def test_a_signal_to_one_rank_stops_all_and_the_run_resumes_on_another_number(
    sizes, tiny, tmp_path, launch
):
    """It ends like a run of one process that was never stopped."""
    config, out = override(tiny, PLAIN), tmp_path / "run"
    reference = alone(config, tmp_path / "alone")
    first, second, third = sizes
    found = launch(first, pretrain_on_rank, config, out, (3, first - 1))
    assert [code for code, _ in found] == [128 + signal.SIGTERM] * first
    assert "Stopped by SIGTERM at step 3; saved" in found[0][1]
    assert [path.name for path in checkpoint.checkpoints(out)] == ["step-00000003"]
    found = launch(second, pretrain_on_rank, config, out, (2, second - 1))
    assert [code for code, _ in found] == [128 + signal.SIGTERM] * second
    assert f"Resuming at step 3 on {'cpu' if second == 1 else '2 processes'}" in found[0][1]
    found = launch(third, pretrain_on_rank, config, out)
    assert [code for code, _ in found] == [0] * third
    assert f"Resuming at step 5 on {third} processes" in found[0][1]
    check_equal(out, reference)


def test_dropout_of_each_rank_resumes_where_it_was(tiny, tmp_path, launch):
    """To the last bit, because a checkpoint has the random states of all ranks."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = override(tiny, [*SHORT, "train.checkpoint_every=4"])
    launch(2, pretrain_on_rank, config, whole)
    shutil.copytree(whole, parts)
    shutil.rmtree(checkpoint.checkpoints(parts)[-1])
    assert "Resuming at step 4" in launch(2, pretrain_on_rank, config, parts)[0][1]
    for name in ("model", "optimizer", "random"):
        ours, theirs = tensors(parts, name), tensors(whole, name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items()), name
    random = tensors(whole, "random")
    assert not torch.equal(random["cpu"], random["rank1.cpu"])


# ------------------------------------------------------------------ what goes wrong


def slow_clock(config, out: Path, every: int) -> int:
    """A time budget, with a clock of the second rank that runs ten times too slowly."""
    from electra.train import loop

    loop.steps_per_agreement = lambda _, step: every if step > 2 else 1
    if os.environ["RANK"] == "1":
        original, begun = loop.time.perf_counter, loop.time.perf_counter()
        loop.time.perf_counter = lambda: begun + (original() - begun) / 10
    return pretrain_on_rank(config, out)


def test_many_ranks_agree_less_often():
    assert {steps_per_agreement(size, 10**6) for size in range(1, 16)} == {1}
    assert [steps_per_agreement(size, 10**6) for size in (16, 64, 512)] == [2, 8, 64]
    assert [steps_per_agreement(512, step) for step in (0, 99, 299, 1000)] == [1, 1, 2, 10]


@pytest.mark.parametrize("every", [1, 4])
def test_the_first_rank_has_the_clock(every, tiny, tmp_path, launch):
    """In every step, and where the ranks agree in every fourth step only."""
    config = override(tiny, ["train.budget=0.5s", "data.batch_size=8,16@0.5"])
    found = launch(2, slow_clock, config, tmp_path / "run", every)
    assert [code for code, _ in found] == [0, 0]
    state = checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1])
    assert state.seconds >= 0.5
    assert state.step % every == 0


def with_data(recipe: Path, out: Path, *folders: Path) -> int:
    """Each rank has a data folder of its own."""
    name = str(folders[int(os.environ["RANK"])])
    return command("pretrain", str(recipe), "--data", name, "--out", str(out))


@pytest.mark.parametrize("kind", ["setting", "batch", "no data", "other data", "in use"])
def test_an_error_is_reported_once(
    kind, tiny, data_folder, corpus, tokenizer_folder, tmp_path, launch
):
    recipe, out = tmp_path / "tiny.yaml", tmp_path / "run"
    recipe.write_text(to_yaml(tiny))
    usual = ("pretrain", str(recipe), "--data", str(data_folder), "--out", str(out))
    if kind == "setting":
        found, sentence = launch(2, command, *usual, "optim.lrr=1"), "no setting 'optim.lrr'"
    elif kind == "batch":
        found, sentence = launch(3, command, *usual), "8 rows does not divide over 3 processes"
    elif kind == "no data":
        folders = data_folder, tmp_path / "nothing"
        found, sentence = launch(2, with_data, recipe, out, *folders), "nothing"
    elif kind == "other data":
        other = tmp_path / "other"
        prepare([corpus], tokenizer=tokenizer_folder, out=other, length=32, held_out=0.2)
        found, sentence = launch(2, with_data, recipe, out, data_folder, other), "the same shards"
    else:
        out.mkdir()
        with pretrain.locked_by_first(ONE_RANK, out):
            found, sentence = launch(2, command, *usual), "is in use by process"
        shutil.rmtree(out)
    assert [code for code, _ in found] == [2] * len(found)
    (line,) = found[0][1].splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not any(text for _, text in found[1:])
    assert not out.exists()


def stumble() -> int:
    """The second rank has a bug."""
    try:
        with open_ranks() as ranks, ranks.together():
            if ranks.rank == 1:
                raise ValueError("odd")
    except Exception as error:
        print(type(error).__name__, error)
    return 0


def test_a_bug_on_one_rank_shows_there_and_ends_all(launch):
    texts = [text.strip() for _, text in launch(3, stumble)]
    assert texts == ["QuietError", "ValueError odd", "QuietError"]


def die(config, out: Path) -> int:
    """The second rank is killed in its third step."""
    signal.raise_signal = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    try:
        return pretrain_on_rank(config, out, (3, 1))
    except UserError as error:
        print(error)
        return 2


def test_a_rank_does_not_wait_for_a_dead_one(tiny, tmp_path, launch):
    (code, text), (killed, _) = launch(2, die, tiny, tmp_path / "run")
    assert killed == -signal.SIGKILL
    assert code == 2
    assert "Rank 0 has lost the others" in text


# ------------------------------------------------------------------ messages


def test_what_a_step_sends_is_counted(tiny, tmp_path, launch):
    """Two token counts, the gradients, and the signal and clock; a report adds its own."""
    config = override(tiny, [*PLAIN, "train.validate_every=100"])
    launch(2, pretrain_on_rank, config, tmp_path / "run")
    alone(config, tmp_path / "alone")
    gradients = sum(t.nbytes for t in tensors(tmp_path / "run", "optimizer").values()) // 2
    train = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "train"]
    report = 4 * len(ReplacedTokenDetection.metric_names) + 16
    assert [line["all_reduce_bytes_per_step"] for line in train] == [
        16 + gradients + 16 + report
    ] * 8
    assert "all_reduce_bytes_per_step" not in read_metrics(tmp_path / "alone")[1]


@pytest.mark.parametrize(("nccl", "ways"), [(True, "one CUDA graph"), (False, "three CUDA graphs")])
def test_the_run_says_how_it_sends(nccl, ways):
    ranks = Ranks(size=2, nccl=nccl, shared_gpus=not nccl)
    assert ways in describe_cuda(ranks, True)
    assert "launches each kernel" in describe_cuda(ranks, False)
    assert ("share a GPU" in describe_cuda(ranks, True)) is not nccl


def with_fake_graphs(config, out: Path, nccl: bool) -> int:
    """A run whose steps are replayed, by a stand-in for CUDA graphs."""
    from tests.train import launching
    from tests.train.fake_cuda_graph import capture_on_cpu

    from electra.train import loop, run

    loop.capture_cuda_graph = capture_on_cpu
    run.Run.uses_cuda_graph = True
    launching.open_ranks = lambda: replaced(open_ranks(), nccl=nccl)
    return pretrain_on_rank(config, out)


@contextmanager
def replaced(opened, **changes):
    with opened as ranks:
        yield replace(ranks, **changes)


@pytest.mark.parametrize("nccl", [True, False])
def test_replayed_steps_of_ranks_are_those_without_a_graph(nccl, tiny, tmp_path, launch):
    """With dropout, another batch size in mid-run and its other graph: the same bits."""
    config = override(tiny, [*SHORT, "data.batch_size=8,16@0.5", "train.report_every=1"])
    launch(2, pretrain_on_rank, config, tmp_path / "plain")
    found = launch(2, with_fake_graphs, config, tmp_path / "graph", nccl)
    assert [code for code, _ in found] == [0, 0], found
    for name in ("model", "optimizer", "random"):
        ours, theirs = tensors(tmp_path / "graph", name), tensors(tmp_path / "plain", name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items()), name
    sent = [
        [
            x["all_reduce_bytes_per_step"]
            for x in read_metrics(tmp_path / run)
            if x["kind"] == "train"
        ]
        for run in ("plain", "graph")
    ]
    assert sent[0][:4] == sent[1][:4]
