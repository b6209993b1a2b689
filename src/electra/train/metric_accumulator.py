"""Training metrics between two reports: added up on the device, then logged and shown."""

import time

import torch
from torch import Tensor

from electra.train import checkpoint
from electra.train.health import check_finite, check_skipped
from electra.train.run import Run


class MetricAccumulator:
    """Adds up metrics on the device; only `report` and `check` synchronise with the host."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = (*run.objective.metric_names, "gradient_norm", "skipped_steps")
        self.total = torch.zeros(len(self.names), device=run.step.device)
        self.in_a_row = torch.zeros((), device=run.step.device)
        """Steps that were skipped since the last one that was not."""
        earlier = dict(run.state.unreported)
        self.reset()
        if earlier.keys() == {*self.names, "steps"}:  # the run was stopped between two reports
            self.steps = int(earlier["steps"])
            self.total += torch.tensor([earlier[name] for name in self.names]).to(self.total)
            if not run.ranks.first:
                self.total[:-2] = 0.0  # the sums are those of all ranks

    def reset(self) -> None:
        self.total.zero_()
        self.run.state.unreported = {}
        self.steps, self.tokens_before = 0, self.run.state.tokens
        self.flops_before = self.run.flops
        self.bytes_before = self.run.ranks.traffic.bytes
        self.time_before = time.perf_counter()

    def add(self, sums: Tensor) -> None:
        self.total += sums
        self.in_a_row = (self.in_a_row + 1) * sums[-1]
        self.steps += 1

    def check(self) -> dict[str, float]:
        """The sums since the last report; stops the run if they, or its steps, are not finite."""
        ranks, total = self.run.ranks, self.total.clone()
        ranks.sum_(total[:-2])  # the last two are those of the whole batch already
        *numbers, in_a_row = torch.cat([total, self.in_a_row.reshape(1)]).tolist()
        values = dict(zip(self.names, numbers, strict=True))
        if self.steps:
            self.run.state.unreported = {**values, "steps": self.steps}
        with ranks.together():
            check_finite(values, self.run.state.step, last_good(self.run))
            check_skipped(int(in_a_row), self.run.state.step, last_good(self.run))
        return values

    def report(self, rate: float) -> None:
        """Log and show the metrics since the last report."""
        run, state, sums = self.run, self.run.state, self.check()
        seconds = time.perf_counter() - self.time_before
        if state.tokens == self.tokens_before:  # no step since
            return
        skipped = int(sums.pop("skipped_steps"))
        if skipped:
            self.warn_skipped(skipped)
        if skipped == self.steps:  # there is nothing to report
            self.reset()
            return
        metrics = run.objective.compute_metrics(sums) | {
            "gradient_norm": sums["gradient_norm"] / (self.steps - skipped),
            "learning_rate": rate,
            "tokens_per_second": (state.tokens - self.tokens_before) / seconds,
            "peak_share": (run.flops - self.flops_before) / seconds / run.peak_flops,
        }
        if run.ranks.size > 1:
            sent = run.ranks.traffic.bytes - self.bytes_before
            metrics["all_reduce_bytes_per_step"] = sent / self.steps
        run.metrics_log.write(
            "train",
            state.step,
            tokens=state.tokens,
            seconds=state.seconds,
            seq_length=run.phase.seq_length,
            batch_size=run.phase.batch_size,
            **metrics,
        )
        update_view(run, train=metrics)
        self.reset()

    def warn_skipped(self, skipped: int) -> None:
        """Log and print that steps were skipped."""
        run, step = self.run, self.run.state.step
        which = f"{skipped} of the last {self.steps} steps" if self.steps > 1 else "The last step"
        warning = f"{which} had a gradient that is not a finite number, and changed no weights."
        run.metrics_log.write("event", step, message=warning, skipped_steps=skipped)
        run.view.print(f"warning: step {step:,}: {warning}", style="yellow")


def last_good(run: Run) -> str:
    """A sentence that names the last checkpoint."""
    last = checkpoint.checkpoints(run.folder)
    return f"The last good checkpoint is {last[-1]}." if last else "No checkpoint was written."


def update_view(run: Run, **metrics: dict[str, float]) -> None:
    """Update the progress view with `train=` or `held_out=` metrics."""
    s = run.state
    run.view.update(progress=run.progress, seconds=s.seconds, status=f"step {s.step:,}", **metrics)
