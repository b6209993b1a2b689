"""Checkpoints written in the background, by a group of one process: training does not disturb them.

What several ranks write is in test_fsdp.py.
"""

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from electra.config import to_yaml
from electra.device import random_state
from electra.errors import UserError
from electra.train import checkpoint
from electra.train.checkpoint import TrainState
from electra.train.distributed import ONE_RANK
from electra.train.sharded_checkpoint import ShardedSaver

RANDOM = random_state(torch.device("cpu"))


@pytest.fixture
def step(make_step, tiny):
    return make_step(tiny)[0]


@pytest.fixture
def saver(make_step, tiny, group_of_one):
    whole = make_step(tiny)[0].objective
    with torch.no_grad():
        for p in whole.parameters():
            p.zero_()  # it is a place for the weights, not their source
    return ShardedSaver(ONE_RANK, whole, pad_id=0)


@pytest.fixture
def make_folder(tiny, tokenizer_folder, tmp_path):
    """The folder of a run without checkpoints."""

    def made(name: str) -> Path:
        folder = tmp_path / name
        shutil.copytree(tokenizer_folder, folder / "tokenizer")
        (folder / "config.yaml").write_text(to_yaml(tiny))
        return folder

    return made


@pytest.fixture
def disk(monkeypatch):
    """A disk that writes when this is set."""
    ready, write = threading.Event(), HuggingFaceStorageWriter.write_data

    def write_data(self, plan, planner):
        assert ready.wait(60)
        return write(self, plan, planner)

    monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", write_data)
    yield ready
    ready.set()


def test_a_checkpoint_holds_what_was_there_when_it_began(step, saver, make_folder, disk):
    """It has no name before it is complete, and exports what one process does."""
    run, other, state = make_folder("run"), make_folder("other"), TrainState(step=3, tokens=99)
    expected = checkpoint.save(
        other, state, step.objective, step.optimizer, random=RANDOM, pad_id=0
    )
    weights = {name: p.detach().clone() for name, p in step.objective.named_parameters()}
    saver.start(run, state, step, RANDOM)
    with torch.no_grad():  # training goes on
        for p in step.objective.parameters():
            p.fill_(7.0)
    state.step, state.tokens = 4, 132
    saver.check()
    assert [path.name for path in (run / "checkpoints").iterdir()] == [".step-00000003.partial"]
    disk.set()
    saver.wait()
    (found,) = (run / "checkpoints").iterdir()
    assert found.name == expected.name
    assert (found / "state.json").read_text() == (expected / "state.json").read_text()
    for name in ("generator", "discriminator"):
        ours, theirs = (load_file(c / name / "model.safetensors") for c in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    checkpoint.restore(found, step.objective, step.optimizer)
    for name, p in step.objective.named_parameters():
        assert torch.equal(p, weights[name]), name
    saver.start(run, TrainState(step=3), step, RANDOM)  # it is there already
    assert saver.writing is None


@pytest.mark.parametrize("ask", ["check", "wait"])
def test_a_full_disk_is_reported_and_leaves_nothing(ask, step, saver, make_folder, monkeypatch):
    def write_data(self, plan, planner):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(HuggingFaceStorageWriter, "write_data", write_data)
    run = make_folder("run")
    saver.start(run, TrainState(step=3), step, RANDOM)
    saver.completing.shutdown()  # `check` does not wait
    with pytest.raises(UserError, match="The disk is full: the checkpoint of step 3"):
        getattr(saver, ask)()
    assert not list((run / "checkpoints").iterdir())
