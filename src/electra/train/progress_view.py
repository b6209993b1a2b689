"""The progress view: a live table in a terminal, plain lines in a log file."""

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

METRICS = (
    ("loss", "loss, both networks"),
    ("mlm_loss", "generator loss"),
    ("detection_loss", "discriminator loss"),
    ("replaced_rate", "replaced tokens"),
    ("generator_accuracy", "generator accuracy, top prediction"),
    ("generator_sampled_accuracy", "generator accuracy, sampled"),
    ("precision", "discriminator precision"),
    ("recall", "discriminator recall"),
    ("auc", "discriminator AUC"),
)
OTHER_METRICS = (
    ("fixed_auc", "discriminator AUC, fixed corruption"),
    ("accuracy_above_floor", "accuracy above copying and frequency"),
    ("generator_state_cosine", "mean cosine of token states, generator"),
    ("discriminator_state_cosine", "mean cosine of token states, discriminator"),
    ("mlm_state_cosine", "mean cosine of token states, model"),
    ("generator_local_attention", "attention to neighbours, generator"),
    ("discriminator_local_attention", "attention to neighbours, discriminator"),
    ("mlm_local_attention", "attention to neighbours, model"),
    ("reward", "discriminator loss, masked positions"),
    ("model_loss", "model loss"),
    ("model_accuracy", "model accuracy, masked positions"),
    ("gate_loss", "copy gate loss"),
    ("gate_precision", "copy gate precision"),
    ("gate_recall", "copy gate recall"),
    ("gate_auc", "copy gate AUC"),
)
"""Diagnostics, and metrics of objectives other than the paper's."""
SHARES = {
    "replaced_rate",
    "accuracy_above_floor",
    "generator_accuracy",
    "generator_sampled_accuracy",
    "precision",
    "recall",
    "model_accuracy",
    "gate_precision",
    "gate_recall",
}
LINE = ("mlm_loss", "detection_loss", "model_loss")
LINE_HELD_OUT = ("recall", "auc", "model_accuracy", "gate_auc")
"""Metrics in a line of a log file."""


def metrics_present(*known: dict[str, float]) -> list[tuple[str, str]]:
    """Names and labels of the metrics that exist; before there are any, the paper's."""
    present = {key for metrics in known for key in metrics} or {key for key, _ in METRICS}
    if "mlm_loss" not in present and "model_loss" in present:
        present.discard("loss")  # one network: the total loss is its loss
    return [(key, label) for key, label in (*METRICS, *OTHER_METRICS) if key in present]


class ProgressView:
    """Shows training and held-out metrics side by side, with speed and time left."""

    def __init__(self, console: Console, title: str) -> None:
        self.console = console
        self.title = title
        self.train: dict[str, float] = {}
        self.held_out: dict[str, float] = {}
        self.progress = 0.0
        self.seconds = 0.0
        self.status = "starting"
        self._printed = 0.0
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> "ProgressView":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def print(self, message: str, style: str = "") -> None:
        """Print a line that stays above the table."""
        self.console.print(Text(message, style=style), soft_wrap=True)

    def update(self, *, progress: float, seconds: float, status: str, **metrics: Any) -> None:
        """Show new metrics, given as `train=` or `held_out=`."""
        self.progress, self.seconds, self.status = progress, seconds, status
        self.train = metrics.get("train", self.train)
        self.held_out = metrics.get("held_out", self.held_out)
        if self.console.is_terminal:
            self._live.update(self._panel(), refresh=True)
        # A log file gets a line at first, then every ten seconds and at each validation.
        elif "held_out" in metrics or (self.train and time.monotonic() - self._printed > 10):
            self._printed = time.monotonic()
            self.console.print(self._line(), soft_wrap=True, highlight=False)

    def _line(self) -> str:
        parts = [f"{self.progress:6.1%}", self.status]
        if self.train:
            parts.append(f"{self.train['tokens_per_second']:,.0f} tokens/s")
            parts += [f"{k} {self.train[k]:.3f}" for k in LINE if k in self.train]
        if self.held_out:
            keys = [k for k in LINE_HELD_OUT if k in self.held_out]
            parts += [f"held-out {k} {self.held_out[k]:.3f}" for k in keys]
        return "  ".join([*parts, f"left {clock(self.time_left())}"])

    def time_left(self) -> float | None:
        """Seconds left at the pace so far."""
        return self.seconds * (1 / self.progress - 1) if self.progress > 0 else None

    def _panel(self) -> Panel:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("training", justify="right")
        table.add_column("held-out", justify="right", style="bold")
        for key, label in metrics_present(self.train, self.held_out):
            cells = [format_metric(key, m.get(key)) for m in (self.train, self.held_out)]
            table.add_row(label, *cells)
        speed = Text("  ")
        if self.train:
            speed.append(f"{self.train['tokens_per_second']:,.0f} tokens/s", style="cyan")
            speed.append(f"   {self.train['peak_share']:.1%} of the hardware's peak")
            speed.append(f"   rate {self.train['learning_rate']:.2e}")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            Text("  "),
            ProgressBar(total=1.0, completed=self.progress, width=36),
            Text(f"{self.progress:.1%}  {self.status}  left {clock(self.time_left())}"),
        )
        return Panel(Group(table, speed, bar), title=Text(self.title), title_align="left", width=92)


def format_metric(key: str, value: float | None) -> str:
    """A metric as text: shares in per cent, a dash for a missing value."""
    if value is None or value != value:
        return "–"
    return f"{value:.1%}" if key in SHARES else f"{value:.3f}"


def clock(seconds: float | None) -> str:
    """1:02:03, or a dash if unknown."""
    if seconds is None:
        return "–"
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
