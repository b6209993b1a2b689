"""Shards that change while a run reads them, memory that runs out, and clocks that jump."""

import datetime
import os
import random
import shutil
import time
from pathlib import Path

import pytest
import torch
from tests.torture.jobs import check_sentence, read_checkpoint, said

from electra.text.shards import Shards
from electra.train import checkpoint
from electra.train.step import Step

ALTERATIONS = ("altered", "cut", "replaced", "deleted", "touched")


def alter(kind: str, shard: Path) -> None:
    """Change a file as other processes may."""
    content = bytearray(shard.read_bytes())
    if kind == "altered":
        with shard.open("r+b") as file:
            file.seek(len(content) // 2)
            file.write(bytes(2 * [content[len(content) // 2] ^ 1]))
    elif kind == "cut":
        os.truncate(shard, 100)
    elif kind == "replaced":
        new = shard.with_name("new")
        new.write_bytes(bytes(len(content)))
        new.replace(shard)
    elif kind == "deleted":
        shard.unlink()
    else:
        os.utime(shard, (1, 1))


def at_step(number: int, act) -> None:
    """Do something before a step is taken."""
    call, taken = Step.__call__, []

    def step(self, *given):
        taken.append(1)
        if len(taken) == number:
            act()
        return call(self, *given)

    Step.__call__ = step


def alter_at_step(number: int, kind: str, shard: Path) -> None:
    at_step(number, lambda: alter(kind, shard))


@pytest.mark.parametrize("kind", ALTERATIONS)
def test_a_shard_that_changes_while_it_is_read(
    kind, jobs, undisturbed, data_folder, tmp_path, dice, many, survived
):
    """The run says so instead of saving what it learned from it, and refuses to resume."""
    job, (_, wanted) = jobs["pretrain"], undisturbed("pretrain")
    data = tmp_path / "data"
    for number in range(many(1, 5)):
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(data_folder, data)
        shard = data / Shards.open(data).shards[0].file
        out, step = tmp_path / str(number) / "out", dice.randint(5, 8)
        code = job.run(out, alter_at_step, step, kind, shard, more=("--data", str(data)))
        if kind in ("touched", "deleted"):  # the rows that are mapped are the same
            assert code == 0, said(out)
        else:
            assert code == 2, said(out)
            check_sentence(out, str(shard))
            assert [p.name for p in checkpoint.checkpoints(out)] == ["step-00000004"]
            read_checkpoint(checkpoint.checkpoints(out)[-1])
        if kind != "touched":
            assert job.run(out, more=("--data", str(data))) == 2
            check_sentence(out, str(shard))
        job.finish(out)  # with the good data
        assert job.read(out)[0] == wanted[0]
        assert_same_weights(job.read(out)[1], wanted[1])
        survived()


def assert_same_weights(found: dict[str, bytes], wanted: dict[str, bytes]) -> None:
    """All but the path of the data in the configuration."""
    for files in (found, wanted):
        assert "model.safetensors" in files
    assert found | {"config.yaml": b""} == wanted | {"config.yaml": b""}


def out_of_memory(number: int, message: str) -> None:
    def fail() -> None:
        raise torch.OutOfMemoryError(message)

    at_step(number, fail)


def test_memory_that_runs_out_in_mid_epoch(jobs, undisturbed, tmp_path, dice, many, survived):
    job, (_, wanted) = jobs["pretrain"], undisturbed("pretrain")
    for number in range(many(1, 10)):
        out, step = tmp_path / str(number) / "out", dice.randint(5, 8)
        assert job.run(out, out_of_memory, step, "CUDA out of memory. Tried to allocate") == 2
        check_sentence(out, f"in step {step};", "step-00000004 is kept", "grad_accumulation=2")
        if number % 2:  # as the sentence says; the weights agree up to rounding
            assert job.run(out, more=("train.grad_accumulation=2",)) == 0
            assert job.read(out)[0] == wanted[0]
        else:
            job.finish(out)
            assert job.read(out) == wanted
        survived()


def jump_clocks() -> None:
    """The clock on the wall jumps by hours, forward and back, each time it is read."""
    dice, real = random.Random(0), time.time
    time.time = lambda: real() + dice.uniform(-1e5, 1e5)
    time.time_ns = lambda: int(1e9 * time.time())

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().fromtimestamp(time.time(), tz)

    datetime.datetime = Jumping


@pytest.mark.parametrize("name", ["prepare", "pretrain", "finetune", "export"])
def test_clocks_that_jump(name, jobs, undisturbed, tmp_path, survived):
    job, (_, wanted) = jobs[name], undisturbed(name)
    out = tmp_path / "jumped" / "out"
    assert job.run(out, jump_clocks) == 0, said(out)
    assert job.read(out) == wanted
    survived()


def test_files_whose_times_are_in_the_wrong_order(jobs, undisturbed, tmp_path, dice, survived):
    """A clock that was set back: the newest checkpoint is that of the highest step."""
    job, (_, wanted) = jobs["pretrain"], undisturbed("pretrain")
    out = tmp_path / "stopped" / "out"
    assert job.run(out, out_of_memory, 11, "out of memory") == 2
    for path in (*out.rglob("*"), out):
        when = dice.uniform(0, 4e9)
        os.utime(path, (when, when))
    job.finish(out)
    assert "Resuming at step 8" in said(out)
    assert job.read(out) == wanted
    survived()


def test_a_time_budget_counts_on_the_clock_that_does_not_jump(jobs, tmp_path, survived):
    out = tmp_path / "timed" / "out"
    began = time.monotonic()
    assert jobs["pretrain"].run(out, jump_clocks, more=("--budget", "1s")) == 0
    assert time.monotonic() - began > 1
    assert 0.9 < checkpoint.read_state(checkpoint.checkpoints(out)[-1]).seconds < 5
    survived()
