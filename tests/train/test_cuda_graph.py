"""The capture of a step, with a pretended CUDA graph: what is fed in, and what stays as it was."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch

from electra.config import override
from electra.optim.adam import PaperAdam
from electra.train import loop, pretrain
from electra.train.cuda_graph import capture_cuda_graph

STAGES = ("objective.kind=two-stage", "generator.tie=none", "generator.width=1")
SETTINGS = {
    "rtd": (),
    "pieces": ("train.grad_accumulation=4",),
    "two stages": STAGES,
    "more and more masks": ("objective.mask_rate=0.05", "objective.mask_rate_end=0.5"),
}


class Pretended:
    """Replays as the real one does: the captured call with the same tensors, written in place."""

    step: partial

    def capture(self, rows, rate, sums) -> None:
        run = self.step.args[0]
        self.call, self.sums = (rows, rate), sums
        self.stage, self.mask_rate = run.objective.in_second_stage, run.objective.mask_rate

    def replay(self) -> None:
        objective = self.step.args[0].objective
        assert objective.in_second_stage == self.stage
        now, moves = objective.mask_rate, isinstance(self.mask_rate, torch.Tensor)
        objective.mask_rate = self.mask_rate if moves else now
        self.sums.copy_(self.step(*self.call))
        objective.mask_rate = now


@pytest.fixture
def pretend(monkeypatch):
    """Capture on the CPU: `pretend(run, rows)` is what `capture_cuda_graph` gives."""

    class Stream:
        def wait_stream(self, other) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Pretended)
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)

    def pretend(run, rows):
        calls = []

        def step(rows, rate):
            calls.append((rows, rate, loop.step(run, rows, rate)))
            return calls[-1][-1]

        @contextmanager
        def graph(graph, pool, stream):
            yield
            graph.step = partial(loop.step, run)
            graph.capture(*calls[-1])

        monkeypatch.setattr(torch.cuda, "graph", graph)
        run.objective.train()
        return capture_cuda_graph(step, run.objective, run.optimizer, rows, run.dtype)

    return pretend


def started(config, out, console):
    """A run before its first step, and the rows of five steps."""
    import shutil
    from dataclasses import replace

    from electra.text.tokenizer import load_vocabulary
    from electra.train.data import open_data, rows_at

    shards = open_data(config.data, config.model.max_positions)
    vocab = load_vocabulary(shards.tokenizer)
    config = replace(config, model=replace(config.model, vocab_size=vocab.size))
    out.mkdir()
    shutil.copytree(shards.tokenizer, out / "tokenizer")
    rows = torch.from_numpy(rows_at(shards, 0, 5 * config.data.batch_size, 0))
    return pretrain.build_run(config, out, shards, vocab, console), rows.split(
        config.data.batch_size
    )


@pytest.mark.parametrize("name", SETTINGS)
def test_a_replay_is_the_step(name, tiny, tmp_path, console, pretend):
    """With the rows, the learning rate, the mask rate and the stage of its turn."""
    found = {}
    for kind in ("plain", "replayed"):
        opening, rows = started(override(tiny, SETTINGS[name]), tmp_path / kind, console)
        with opening as run:
            run.objective.train()
            take = partial(loop.step, run)
            if kind == "replayed":
                random = torch.get_rng_state()
                take = pretend(run, rows[0])
                torch.set_rng_state(random)  # as the dry run does
            sums = []
            for number, part in enumerate(rows):
                run.objective.update_progress(number / 5)
                sums.append(take(part, number / 1024).clone())
            found[kind] = sums, [p.detach().clone() for p in run.objective.parameters()]
    for plain, replayed in zip(*found.values(), strict=True):
        for one, two in zip(plain, replayed, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_capture_changes_nothing(name, tiny, tmp_path, console, pretend):
    """Nor Adam's means, which a resumed run brings along."""
    opening, rows = started(override(tiny, SETTINGS[name]), tmp_path / "run", console)
    with opening as run:
        run.objective.train()
        loop.step(run, rows[1], 1e-3)
        held = [
            *run.objective.parameters(),
            *(m for p in run.objective.parameters() for m in run.optimizer.moments(p).values()),
        ]
        before = [t.detach().clone() for t in held]
        rate, second = run.objective.mask_rate, run.objective.in_second_stage
        pretend(run, rows[0])
        for tensor, value in zip(held, before, strict=True):
            assert torch.equal(tensor, value)
        assert (run.objective.mask_rate, run.objective.in_second_stage) == (rate, second)
        assert all(p.grad is None for p in run.objective.parameters())


@pytest.mark.parametrize(("name", "stages"), [("rtd", 1), ("two stages", 2)])
def test_what_the_optimizer_settles_lives_as_long_as_the_graph(
    name, stages, tiny, tmp_path, console, pretend, monkeypatch
):
    """Its kernels read it in each replay; it is written when the capture is over."""

    class Table:
        pass

    told, tables, capture = [], [], Pretended.capture

    def capture_cuda_graph(self, *given) -> None:
        told.append("captured")
        capture(self, *given)

    def settle(self) -> Table:
        told.append("settled")
        table = Table()
        tables.append(weakref.ref(table))
        return table

    monkeypatch.setattr(Pretended, "capture", capture_cuda_graph)
    monkeypatch.setattr(PaperAdam, "finish_capture", settle)
    opening, rows = started(override(tiny, SETTINGS[name]), tmp_path / "run", console)
    with opening as run:
        replay = pretend(run, rows[0])
        gc.collect()
        assert told == ["captured", "settled"] * stages
        assert all(table() is not None for table in tables)
        del replay
        gc.collect()
        assert all(table() is None for table in tables)
