"""The capture of a step, with a fake CUDA graph on the CPU: what a replay reads and changes."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from dataclasses import fields

import pytest
import torch

from electra.config import override
from electra.optim.adam import PaperAdam
from electra.train.cuda_graph import capture_cuda_graph
from electra.train.step import Step

TWO_STAGES = ("objective.kind=two-stage", "generator.tie=none", "generator.width=1")
SETTINGS = {
    "rtd": (),
    "micro-batches": ("train.grad_accumulation=4",),
    "two stages": TWO_STAGES,
    "average": ("optim.ema=0.9",),
    "mask rate schedule": ("objective.mask_rate=0.05", "objective.mask_rate_end=0.5"),
}


class FakeGraph:
    """Replays as a real graph does: the captured call, on the same tensors, written in place."""

    step: Step

    def capture(self, rows, rate, sums) -> None:
        objective = self.step.objective
        self.call, self.sums = (rows, rate), sums
        self.stage, self.mask_rate = objective.step_kind, objective.mask_rate

    def replay(self) -> None:
        objective = self.step.objective
        assert objective.step_kind == self.stage
        now, moves = objective.mask_rate, isinstance(self.mask_rate, torch.Tensor)
        objective.mask_rate = self.mask_rate if moves else now
        self.sums.copy_(self.step(*self.call))
        objective.mask_rate = now


@pytest.fixture
def capture(monkeypatch):
    """`capture_cuda_graph` on the CPU."""

    class Stream:
        def wait_stream(self, other) -> None:
            pass

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)

    def capture(step, rows):
        calls = []

        class Recorded(Step):
            def __call__(self, rows, rate):
                calls.append((rows, rate, step(rows, rate)))
                return calls[-1][-1]

        @contextmanager
        def graph(graph, pool, stream):
            yield
            graph.step = step
            graph.capture(*calls[-1])

        monkeypatch.setattr(torch.cuda, "graph", graph)
        return capture_cuda_graph(
            Recorded(**{f.name: getattr(step, f.name) for f in fields(step)}), rows
        )

    return capture


@pytest.mark.parametrize("name", SETTINGS)
def test_a_replay_equals_the_step(name, tiny, make_step, capture):
    """With the rows, the learning rate, the mask rate and the stage of each call."""
    found = {}
    for kind in ("plain", "replayed"):
        step, rows = make_step(override(tiny, SETTINGS[name]))
        take_step = step
        if kind == "replayed":
            random = torch.get_rng_state()
            take_step = capture(step, rows[0])
            torch.set_rng_state(random)  # as the dry run does
        sums = []
        for number, batch in enumerate(rows):
            step.objective.update_progress(number / 5)
            sums.append(take_step(batch, number / 1024).clone())
        averages = step.ema.tensors().values() if step.ema else ()
        held = (*step.objective.parameters(), *averages)
        found[kind] = sums, [t.detach().clone() for t in held]
    for plain, replayed in zip(*found.values(), strict=True):
        for one, two in zip(plain, replayed, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_capture_changes_nothing(name, tiny, make_step, capture):
    """Not even Adam's moments, which a resumed run has loaded."""
    step, rows = make_step(override(tiny, SETTINGS[name]))
    objective = step.objective
    step(rows[1], 1e-3)
    held = [
        *objective.parameters(),
        *(m for p in objective.parameters() for m in step.optimizer.moments(p).values()),
        *(step.ema.tensors().values() if step.ema else ()),
    ]
    before = [t.detach().clone() for t in held]
    rate, second = objective.mask_rate, objective.step_kind
    capture(step, rows[0])
    for tensor, value in zip(held, before, strict=True):
        assert torch.equal(tensor, value)
    assert (objective.mask_rate, objective.step_kind) == (rate, second)
    assert all(p.grad is None for p in objective.parameters())


@pytest.mark.parametrize(("name", "stages"), [("rtd", 1), ("two stages", 2)])
def test_optimizer_tables_live_as_long_as_the_graph(
    name, stages, tiny, make_step, capture, monkeypatch
):
    """The optimizer's kernels read its table in each replay; it is filled after the capture."""

    class Table:
        pass

    events, tables, original = [], [], FakeGraph.capture

    def record_capture(self, *given) -> None:
        events.append("captured")
        original(self, *given)

    def settle(self) -> Table:
        events.append("settled")
        table = Table()
        tables.append(weakref.ref(table))
        return table

    monkeypatch.setattr(FakeGraph, "capture", record_capture)
    monkeypatch.setattr(PaperAdam, "finish_capture", settle)
    step, rows = make_step(override(tiny, SETTINGS[name]))
    replay = capture(step, rows[0])
    gc.collect()
    assert events == ["captured", "settled"] * stages
    assert all(table() is not None for table in tables)
    del replay
    gc.collect()
    assert all(table() is None for table in tables)
