"""The state of a run: progress, schedule and phases."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from electra.text.shards import Shards
from electra.train.budget import parse_budget
from electra.train.checkpoint import TrainState
from electra.train.run import Run


@pytest.fixture
def make_run(make_step, tiny, data_folder, tmp_path):
    """A run of the tiny recipe that has trained for some steps; it shows and logs nothing."""

    def build(steps: int, budget: str, **data) -> Run:
        config = replace(tiny, data=replace(tiny.data, **data))
        step, _ = make_step(tiny)
        state = TrainState()
        for _ in range(steps):
            state.advance(8, 32)
        return Run(
            folder=tmp_path,
            loop=config.train,
            optim=config.optim,
            budget=parse_budget(budget),
            step=step,
            state=state,
            phases=config.data.phases,
            shards={32: Shards.open(data_folder)},
            flops_per_row={32: 1000},
            peak_flops=1e9,
            pad_id=0,
            metrics_log=SimpleNamespace(),
            view=SimpleNamespace(),
            health=SimpleNamespace(),
        )

    return build


@pytest.mark.parametrize("budget", ["20steps", f"{20 * 8 * 32}tokens", "160000flops"])
def test_progress_in_every_unit(make_run, budget):
    run = make_run(5, budget)
    assert run.progress == pytest.approx(0.25)
    assert (run.position, run.flops) == (40, 40_000)
    assert make_run(0, budget).progress == 0
    assert make_run(25, budget).progress == 1


def test_the_schedule_covers_the_whole_run_of_one_stage(make_run):
    run = make_run(5, "20steps")
    assert run.schedule_progress == pytest.approx(0.25)
    assert run.schedule_steps == pytest.approx(20)
    assert make_run(0, "20steps").schedule_steps == 1


def test_a_phase_sets_the_micro_batch(make_run):
    run = make_run(0, "20steps", batch_size="8,16@0.5")
    assert (run.phase.batch_size, run.step.micro_batch) == (8, 8)
    late = make_run(15, "20steps", batch_size="8,16@0.5")
    assert (late.phase.batch_size, late.step.micro_batch) == (16, 16)
    late.set_phase(late.phases[0])
    assert late.step.micro_batch == 8


def test_batches_continue_at_the_position(make_run):
    first, later = make_run(0, "20steps"), make_run(3, "20steps")
    batches = first.batches()
    for _ in range(3):
        next(batches)
    assert (next(batches) == next(later.batches())).all()


def test_no_cuda_graph_on_the_cpu(make_run):
    run = make_run(0, "20steps")
    assert run.loop.cuda_graph
    assert not run.uses_cuda_graph
    assert run.kernels() == "plain modules"
