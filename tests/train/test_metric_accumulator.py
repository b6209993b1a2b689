"""Metrics between two reports: what is added up, averaged, skipped and kept for a resume."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from electra.train import metric_accumulator
from electra.train.checkpoint import TrainState
from electra.train.distributed import Ranks
from electra.train.health import DivergedError
from electra.train.metric_accumulator import MetricAccumulator


@pytest.fixture
def make_run(tmp_path):
    """A run that measures a loss over tokens."""

    def made(state: TrainState | None = None, rank: int = 0) -> SimpleNamespace:
        return SimpleNamespace(
            folder=tmp_path,
            objective=SimpleNamespace(
                metric_names=("loss_sum", "tokens"),
                compute_metrics=lambda sums: {"loss": sums["loss_sum"] / sums["tokens"]},
            ),
            step=SimpleNamespace(device=torch.device("cpu")),
            ranks=Ranks(rank=rank),
            state=state or TrainState(),
            flops=0,
            peak_flops=1000.0,
            progress=0.5,
            phase=SimpleNamespace(seq_length=32, batch_size=8),
            metrics_log=Mock(),
            view=Mock(),
        )

    return made


def take_step(run, metrics: MetricAccumulator, *sums: float) -> None:
    """A step of 8 rows and 500 FLOPs with the sums loss, tokens, gradient norm, skipped."""
    run.state.advance(8, 32)
    run.flops += 500
    metrics.add(torch.tensor(sums))


def test_a_report_is_about_the_steps_since_the_one_before(make_run, monkeypatch):
    clock = SimpleNamespace(now=10.0)
    monkeypatch.setattr(metric_accumulator, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    run = make_run()
    metrics = MetricAccumulator(run)
    for sums, now in (((6.0, 2.0, 0.5, 0.0), 11.0), ((2.0, 2.0, 1.5, 0.0), 14.0)):
        take_step(run, metrics, *sums)
        clock.now = now
    metrics.report(0.25)
    take_step(run, metrics, 9.0, 3.0, 4.0, 0.0)
    clock.now = 16.0
    metrics.report(0.125)
    written = run.metrics_log.write.call_args_list
    assert [call.args for call in written] == [("train", 2), ("train", 3)]
    names = ("loss", "gradient_norm", "learning_rate", "tokens_per_second", "peak_share")
    first, second = ([call.kwargs[name] for name in names] for call in written)
    assert first == pytest.approx([8 / 4, 2 / 2, 0.25, 512 / 4, 1000 / 4 / 1000])
    assert second == pytest.approx([9 / 3, 4 / 1, 0.125, 256 / 2, 500 / 2 / 1000])
    metrics.report(0.125)  # nothing since then
    assert run.metrics_log.write.call_count == 2


def test_skipped_steps_are_named_and_have_no_part_in_the_mean(make_run):
    run = make_run()
    metrics = MetricAccumulator(run)
    for norm, skipped in ((3.0, 0.0), (0.0, 1.0), (5.0, 0.0)):
        take_step(run, metrics, 1.0, 1.0, norm, skipped)
    metrics.report(0.1)
    event, line = (call.kwargs for call in run.metrics_log.write.call_args_list)
    assert event["skipped_steps"] == 1
    assert event["message"].startswith("1 of the last 3 steps had a gradient that is not")
    assert line["gradient_norm"] == 4
    run.view.print.assert_called_once_with(f"warning: step 3: {event['message']}", style="yellow")


def test_only_skipped_steps_in_a_row_end_a_run(make_run):
    """10 of 20 may be skipped if others are between them; the first two steps may not."""
    run = make_run()
    metrics = MetricAccumulator(run)
    for number in range(20):
        take_step(run, metrics, 1.0, 1.0, 1.0, float(number % 2))
    assert metrics.check()["skipped_steps"] == 10
    run = make_run()
    metrics = MetricAccumulator(run)
    for _ in range(2):
        take_step(run, metrics, 0.0, 0.0, 0.0, 1.0)
    with pytest.raises(DivergedError, match=r"last 2 steps .* No checkpoint was written"):
        metrics.check()


@pytest.mark.parametrize(("rank", "total"), [(0, [7, 3, 2, 1]), (1, [1, 1, 2, 1])])
def test_a_resumed_run_goes_on_with_the_sums(rank, total, make_run):
    """The first rank has those of all; gradient norm and skipped steps are the same on each."""
    run = make_run()
    metrics = MetricAccumulator(run)
    take_step(run, metrics, 6.0, 2.0, 1.5, 1.0)
    take_step(run, metrics, 0.0, 0.0, 0.0, 0.0)
    metrics.check()
    assert run.state.unreported == {
        **dict(zip(metrics.names, (6.0, 2.0, 1.5, 1.0), strict=True)),
        "steps": 2,
    }
    resumed = make_run(run.state, rank)
    metrics = MetricAccumulator(resumed)
    take_step(resumed, metrics, 1.0, 1.0, 0.5, 0.0)
    assert metrics.steps == 3
    assert metrics.total.tolist() == total


def test_sums_of_another_objective_are_dropped(make_run):
    run = make_run(TrainState(unreported={"other": 5.0, "steps": 4}))
    metrics = MetricAccumulator(run)
    assert metrics.steps == 0
    assert not metrics.total.any()
