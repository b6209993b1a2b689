"""What a run leaves to be read: `metrics.jsonl` always, a tracker if one is wanted."""

import math
from pathlib import Path
from typing import Any, Literal, Protocol

from electra.errors import require
from electra.text.files import write_whole
from electra.text.lines import read_lines, to_json

TrackerName = Literal["none", "tensorboard", "trackio", "wandb"]


class Tracker(Protocol):
    """A dashboard: it is told figures by name, and that the run is over."""

    def log(self, figures: dict[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class Record:
    """Appends to `metrics.jsonl`, the source of truth, and repeats the figures to the tracker."""

    def __init__(self, run: Path, tracker: Tracker | None = None) -> None:
        self.path = run / "metrics.jsonl"
        self.tracker = tracker

    def write(self, kind: str, step: int, **values: Any) -> None:
        """One line: its kind ('train', 'held_out' or 'event'), the step and the figures."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json({"kind": kind, "step": step, **values}) + "\n")
        if self.tracker and kind != "event":
            # An AUC without positives is no number
            figures = {f"{kind}/{k}": v for k, v in values.items() if math.isfinite(v)}
            self.tracker.log(figures, step)

    def rewind(self, step: int) -> None:
        """Forget what was recorded after a checkpoint from which the run goes on."""
        kept = [line for line in read_metrics(self.path.parent) if line["step"] <= step]
        write_whole(self.path, "".join(to_json(line) + "\n" for line in kept).encode())

    def close(self) -> None:
        if self.tracker:
            self.tracker.close()


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All lines of a run."""
    return read_lines(run / "metrics.jsonl")


def open_tracker(name: TrackerName, run: Path, config: dict[str, Any]) -> Tracker | None:
    """The tracker of that name, its library imported only now."""
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

    def log(self, figures: dict[str, float], step: int) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class Dashboard:
    """Weights & Biases, or Trackio, which speaks the same language."""

    def __init__(self, library: Any, run: Path, config: dict[str, Any]) -> None:
        self.module = library
        library.init(project="electra", name=run.resolve().name, config=config)

    def log(self, figures: dict[str, float], step: int) -> None:
        self.module.log(figures, step=step)

    def close(self) -> None:
        self.module.finish()
