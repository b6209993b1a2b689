"""The capture of a step, with a fake CUDA graph on the CPU: what a replay reads and changes."""

import gc
import weakref

import pytest
import torch
from tests.train.fake_cuda_graph import FakeGraph, capture_on_cpu

from electra.config import override
from electra.optim.adam import PaperAdam
from electra.train.distributed import ONE_RANK, Ranks

TWO_STAGES = ("objective.kind=two-stage", "generator.tie=none", "generator.width=1")
SETTINGS = {
    "rtd": (),
    "micro-batches": ("train.grad_accumulation=4",),
    "two stages": TWO_STAGES,
    "average": ("optim.ema=0.9",),
    "muon": ("optim.kind=muon",),
    "muon, two stages": ("optim.kind=muon", *TWO_STAGES),
    "mask rate schedule": ("objective.mask_rate=0.05", "objective.mask_rate_end=0.5"),
}


class Doubled(Ranks):
    """Two ranks with the same rows, in one process."""

    def sum_(self, tensor):
        self.traffic.bytes += tensor.nbytes
        return tensor.mul_(2)


@pytest.mark.parametrize("ranks", [{}, {"size": 2}, {"size": 2, "nccl": True}])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_replay_equals_the_step(name, ranks, tiny, make_step):
    """With the rows, the learning rate, the mask rate and the stage of each call."""
    found, sent = {}, {}
    for kind in ("plain", "replayed"):
        step, rows = make_step(override(tiny, SETTINGS[name]))
        step.ranks = Doubled(**ranks) if ranks else ONE_RANK
        take_step = step
        if kind == "replayed":
            random = torch.get_rng_state()
            take_step = capture_on_cpu(step, rows[0])
            torch.set_rng_state(random)  # as the dry run does
        sums, before = [], step.ranks.traffic.bytes
        for number, batch in enumerate(rows):
            step.objective.update_progress(number / 5)
            sums.append(take_step(batch, number / 1024).clone())
        sent[kind] = step.ranks.traffic.bytes - before
        averages = step.ema.tensors().values() if step.ema else ()
        held = (*step.objective.parameters(), *averages)
        found[kind] = sums, [t.detach().clone() for t in held]
    for plain, replayed in zip(*found.values(), strict=True):
        for one, two in zip(plain, replayed, strict=True):
            assert torch.equal(one, two)
    assert sent["replayed"] == sent["plain"]
    assert bool(sent["plain"]) == bool(ranks)


@pytest.mark.parametrize("nccl", [True, False])
def test_only_the_messages_of_nccl_are_captured(nccl, tiny, make_step, monkeypatch):
    captured, original = [], FakeGraph.capture

    def count(self, step, calls) -> None:
        captured.append([function.__name__ for function, *_ in calls])
        original(self, step, calls)

    monkeypatch.setattr(FakeGraph, "capture", count)
    step, rows = make_step(tiny)
    step.ranks = Doubled(size=2, nccl=nccl)
    capture_on_cpu(step, rows[0])
    parts = [["mask_batch"], ["backward", "flatten_gradients"], ["update"]]
    assert captured == ([["__call__"]] if nccl else parts)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_capture_changes_nothing(name, tiny, make_step):
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
    capture_on_cpu(step, rows[0])
    for tensor, value in zip(held, before, strict=True):
        assert torch.equal(tensor, value)
    assert (objective.mask_rate, objective.step_kind) == (rate, second)
    assert all(p.grad is None for p in objective.parameters())


@pytest.mark.parametrize(("name", "stages"), [("rtd", 1), ("two stages", 2)])
def test_optimizer_tables_live_as_long_as_the_graph(name, stages, tiny, make_step, monkeypatch):
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
    replay = capture_on_cpu(step, rows[0])
    gc.collect()
    assert events == ["captured", "settled"] * stages
    assert all(table() is not None for table in tables)
    del replay
    gc.collect()
    assert all(table() is None for table in tables)
