"""The metrics of a run: always in `metrics.jsonl`, and optionally in a logger."""

import math
import shlex
from pathlib import Path
from typing import Any, Literal, Protocol

from electra.errors import UserError, require
from electra.files import is_disk_full, sync, write_atomic
from electra.json_types import has_type, shown
from electra.jsonl import read_jsonl, to_json

TEXTS = ("kind", "message", "warning", "hardware", "kernels", "task", "metric", "origin")
"""Values of `metrics.jsonl` that are texts; all others are numbers."""
SCORE = {"task", "metric", "origin", "score", "seeds"}
"""What each line of the kind 'score' has."""
LARGEST = 1e100
"""Larger numbers are no metrics, and charts cannot scale them."""
LoggerName = Literal["none", "tensorboard", "trackio", "wandb"]


class Logger(Protocol):
    """A dashboard that receives metrics by name."""

    def log(self, metrics: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """Appends to `metrics.jsonl`, the source of truth, and passes the metrics to the logger.

    One process of a run writes; those of the others are not `enabled`.
    """

    def __init__(self, run: Path, logger: Logger | None = None, *, enabled: bool = True) -> None:
        self.path = run / "metrics.jsonl"
        self.logger = logger
        self.enabled = enabled

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one line: kind ('train', 'held_out', 'score', 'phase', 'event') and metrics."""
        if not self.enabled:
            return
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(to_json({"kind": kind, "step": step, **values}) + "\n")
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise UserError(
                f"The disk is full: {self.path} could not be written. Free some space and "
                f"continue with --resume --out {shlex.quote(str(self.path.parent))}"
            ) from None
        if self.logger and kind in ("train", "held_out", "score"):
            numbers = {k: v for k, v in values.items() if not isinstance(v, str)}
            # an AUC without positives is NaN
            metrics = {f"{kind}/{k}": v for k, v in numbers.items() if math.isfinite(v)}
            self.logger.log(metrics, step)

    def sync(self) -> None:
        """Flush the lines to the disk, so that a checkpoint does not outlive those before it."""
        if self.enabled and self.path.exists():
            sync(self.path)

    def rewind(self, step: int) -> None:
        """Drop the lines after `step`, from which the run resumes."""
        if not self.enabled:
            return
        kept = [line for line in read_metrics(self.path.parent) if line["step"] <= step]
        write_atomic(self.path, "".join(to_json(line) + "\n" for line in kept).encode())

    def close(self) -> None:
        if self.logger:
            self.logger.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All lines of a run's `metrics.jsonl`; one that no run writes is an error."""
    path = run / "metrics.jsonl"
    lines = read_jsonl(path)
    for line in lines:
        needed = {"kind", "step"} | (SCORE if line.get("kind") == "score" else set())
        for name in (*sorted(needed), *line):
            value = line.get(name)
            if not _is_metric(line.get("kind"), name, value) or (value is None and name in needed):
                raise UserError(
                    f"{path} has a line with {shown(name)}: {shown(value)}, which no run "
                    "writes: delete the line, or copy the file again."
                )
    return lines


def _is_metric(kind: Any, name: str, value: Any) -> bool:
    """Whether a value can be shown: a text, a number of a usual size, or the sizes of networks."""
    if name in TEXTS:
        return isinstance(value, str)
    if name == "step":
        return has_type(value, int)
    if name == "parameters":
        return has_type(value, dict[str, int])
    if kind == "event":  # what else it says about the machine is not shown
        return True
    return value is None or (has_type(value, float) and not LARGEST <= abs(value) < math.inf)


def open_logger(name: LoggerName, run: Path, config: dict[str, Any]) -> Logger | None:
    """Create the logger of that name; imports its library."""
    if name == "none":
        return None
    if name == "tensorboard":
        require("tensorboard", "tensorboard")
        return TensorBoard(run)
    return Dashboard(require(name, name), run, config)


class TensorBoard:
    """Event files under RUN/tensorboard."""

    def __init__(self, run: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(run / "tensorboard"))

    def log(self, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Dashboard:
    """Weights & Biases, or Trackio, which has the same API."""

    def __init__(self, library: Any, run: Path, config: dict[str, Any]) -> None:
        self.module = library
        library.init(project="electra", name=run.resolve().name, config=config)

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.module.log(metrics, step=step)

    def close(self) -> None:
        self.module.finish()
