"""A training step without a run, and runs in several processes."""

import multiprocessing
import shutil
import socket
from dataclasses import replace

import pytest
import torch
from tests.train import launching
from torch import distributed

from electra.text.tokenizer import load_vocabulary
from electra.train.data import open_data, rows_at
from electra.train.pretrain import build_objective, build_step
from electra.train.settings import PretrainConfig
from electra.train.step import Step


@pytest.fixture
def make_step():
    """Build the step of a configuration, and the rows of its first five batches."""

    def build(config: PretrainConfig) -> tuple[Step, tuple[torch.Tensor, ...]]:
        shards = open_data(config.data, config.model.max_positions)
        vocab = load_vocabulary(shards.tokenizer)
        config = replace(config, model=replace(config.model, vocab_size=vocab.size))
        torch.manual_seed(config.train.seed)
        step = build_step(config, build_objective(config, vocab).train())
        rows = torch.from_numpy(rows_at(shards, 0, 5 * config.data.batch_size, config.train.seed))
        return step, rows.split(config.data.batch_size)

    return build


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run that may be edited."""
    return shutil.copytree(finished, tmp_path / "my run")


@pytest.fixture
def group_of_one():
    """A group of torch.distributed in which this process is alone."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    own = ["tests.train.launching", "tests.train.fake_cuda_graph", "hypothesis"]
    context.set_forkserver_preload(
        ["electra.cli", "electra.text.prepare", "torch.distributed", *own]
    )
    return context


@pytest.fixture
def launch(processes, tmp_path):
    """Run `function(*arguments)` in several processes with torchrun's environment.

    Returns the exit code and the output of each.
    """

    def run(size: int, function, *arguments) -> list[tuple[int, str]]:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        logs = [tmp_path / f"rank{rank}.log" for rank in range(size)]
        started = [
            processes.Process(
                target=launching.as_rank,
                args=(rank, size, port, str(logs[rank]), function, arguments),
            )
            for rank in range(size)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(launching.SECONDS)
        hung = [rank for rank, process in enumerate(started) if process.is_alive()]
        for process in started:
            process.kill()
        texts = [log.read_text() for log in logs]
        assert not hung, f"ranks {hung} hang; {texts}"
        return [(process.exitcode, text) for process, text in zip(started, texts, strict=True)]

    return run
