"""The live view: a table that renews itself in a terminal, plain lines in a log file."""

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

FIGURES = (
    ("loss", "loss, both networks"),
    ("mlm_loss", "generator loss"),
    ("detection_loss", "discriminator loss"),
    ("replaced_rate", "replaced tokens"),
    ("generator_accuracy", "generator accuracy, best guess"),
    ("generator_sampled_accuracy", "generator accuracy, sampled"),
    ("precision", "discriminator precision"),
    ("recall", "discriminator recall"),
    ("auc", "discriminator AUC"),
)
OTHER_FIGURES = (
    ("reward", "discriminator loss, masked positions"),
    ("model_loss", "model loss"),
    ("model_accuracy", "model accuracy, masked positions"),
    ("gate_loss", "copy gate loss"),
    ("gate_precision", "copy gate precision"),
    ("gate_recall", "copy gate recall"),
    ("gate_auc", "copy gate AUC"),
)
"""Of objectives other than the paper's; `metrics_present` has those of a run."""
SHARES = {
    "replaced_rate",
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
"""What a line of a log file has room for."""


def metrics_present(*known: dict[str, float]) -> list[tuple[str, str]]:
    """The figures that are there, with their labels; before there are any, the paper's."""
    there = {key for figures in known for key in figures} or {key for key, _ in FIGURES}
    if "mlm_loss" not in there and "model_loss" in there:
        there.discard("loss")  # one network: the sum of the losses is its loss
    return [(key, label) for key, label in (*FIGURES, *OTHER_FIGURES) if key in there]


class ProgressView:
    """Shows training and held-out figures side by side, with speed and time left."""

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
        """A line that stays above the table."""
        self.console.print(Text(message, style=style), soft_wrap=True)

    def update(self, *, progress: float, seconds: float, status: str, **figures: Any) -> None:
        """New figures, as `train=` or `held_out=`."""
        self.progress, self.seconds, self.status = progress, seconds, status
        self.train = figures.get("train", self.train)
        self.held_out = figures.get("held_out", self.held_out)
        if self.console.is_terminal:
            self._live.update(self._picture(), refresh=True)
        # A log file gets a line at the first figures, then every ten seconds, and each validation.
        elif "held_out" in figures or (self.train and time.monotonic() - self._printed > 10):
            self._printed = time.monotonic()
            self.console.print(self._line(), soft_wrap=True, highlight=False)

    def _line(self) -> str:
        parts = [f"{self.progress:6.1%}", self.status]
        if self.train:
            parts.append(f"{self.train['tokens_per_second']:,.0f} tokens/s")
            parts += [f"{k} {self.train[k]:.3f}" for k in LINE if k in self.train]
        if self.held_out:
            there = [k for k in LINE_HELD_OUT if k in self.held_out]
            parts += [f"held-out {k} {self.held_out[k]:.3f}" for k in there]
        return "  ".join([*parts, f"left {clock(self.time_left())}"])

    def time_left(self) -> float | None:
        """Seconds to go, if the pace stays."""
        return self.seconds * (1 / self.progress - 1) if self.progress > 0 else None

    def _picture(self) -> Panel:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        table.add_column("training", justify="right")
        table.add_column("held-out", justify="right", style="bold")
        for key, label in metrics_present(self.train, self.held_out):
            cells = [shown(key, figures.get(key)) for figures in (self.train, self.held_out)]
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


def shown(key: str, value: float | None) -> str:
    """A figure as people read it: shares in per cent."""
    if value is None or value != value:
        return "–"
    return f"{value:.1%}" if key in SHARES else f"{value:.3f}"


def clock(seconds: float | None) -> str:
    """1:02:03, or a dash where it is not known."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
