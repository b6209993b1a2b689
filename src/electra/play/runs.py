"""The runs in a folder: their curves side by side, and how far each is."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.train.charts import COLOURS
from electra.train.curves import Metrics, render_charts
from electra.train.metrics_log import read_metrics
from electra.train.progress_view import clock, format_metric

MAX_RUNS = 30
"""Runs that are listed, the ones with the latest metrics."""
SHOWN_AT_FIRST = 3
SUMMARY = (
    ("mlm_loss", "generator loss"),
    ("detection_loss", "discriminator loss"),
    ("auc", "AUC"),
    ("recall", "recall"),
)
"""Held-out metrics in the table of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A run and when its metrics last changed."""

    folder: Path
    changed: float


def find_runs(folder: Path) -> dict[str, RunFile]:
    """Return the runs in a folder by name, latest first; the folder itself may be one."""
    candidates = [folder / "metrics.jsonl", *folder.glob("*/metrics.jsonl")]
    found = []
    for path in candidates:
        try:
            found.append(RunFile(folder=path.parent, changed=path.stat().st_mtime))
        except OSError:  # no run, or one that was just deleted
            continue
    found.sort(key=lambda run: -run.changed)
    return {run.folder.resolve().name: run for run in found[:MAX_RUNS]}


def read_runs(runs: Mapping[str, RunFile], names: Sequence[str]) -> dict[str, Metrics]:
    """Read the metrics of some runs; unknown names are left out."""
    return {name: read_metrics(runs[name].folder) for name in names if name in runs}


def version(runs: Mapping[str, RunFile], names: Sequence[str]) -> str:
    """Return a text that changes when the list of runs does, the choice, or a chosen run."""
    chosen = [f"{name} {runs[name].changed}" for name in names if name in runs]
    return "\n".join([*sorted(runs), "", *chosen])


def render_runs(metrics: Mapping[str, Metrics]) -> str:
    """Return a table and the curves of the runs as HTML."""
    known = {
        name: lines
        for name, lines in metrics.items()
        if any(line["kind"] in ("train", "held_out") for line in lines)
    }
    if not known:
        return "<p>No metrics yet: choose a run, or wait for its first report.</p>"
    return f'<div class="wide-table">{_table(known)}</div>{render_charts(known)}'


def _table(metrics: Mapping[str, Metrics]) -> str:
    head = "".join(f"<th>{label}</th>" for _, label in SUMMARY)
    rows = []
    for number, (name, lines) in enumerate(metrics.items()):
        held_out: dict[str, Any] = {}
        for line in lines:
            held_out |= line if line["kind"] == "held_out" else {}
        train = next((line for line in reversed(lines) if line["kind"] == "train"), {})
        step = max(line["step"] for line in lines)
        cells = "".join(f"<td>{format_metric(k, held_out.get(k))}</td>" for k, _ in SUMMARY)
        colour = COLOURS[number % len(COLOURS)]
        rows.append(
            f'<tr><th scope="row"><i style="background:{colour}"></i>{html.escape(name)}</th>'
            f"<td>{step:,}</td><td>{clock(train.get('seconds'))}</td>"
            f"<td>{train.get('tokens_per_second', 0):,.0f}</td>{cells}</tr>"
        )
    return (
        '<table class="runs"><thead><tr><th>run</th><th>step</th><th>time</th><th>tokens/s</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )
