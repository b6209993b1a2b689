"""The report of runs: one self-contained HTML page, and the curves of a single run as a PNG."""

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.errors import UserError, require
from electra.files import save_figure, write_atomic
from electra.hub import heat_map
from electra.train import charts
from electra.train.curves import Metrics, panels_of, render_charts, series
from electra.train.metrics_log import read_metrics
from electra.train.progress_view import clock, format_metric, metrics_present
from electra.train.report_samples import render_samples
from electra.train.scoring import describe_best
from electra.train.verdict import QUIET, judge_run

COLOURS = {"training": "#9aa5b1", "held-out": "#c2410c", "": "#1d4ed8"}
STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def write_report(runs: Sequence[Path], out: Path | None = None) -> list[Path]:
    """Write `report.html`, and `report.png` for a single run; returns their paths.

    Several runs share one page, by default in the folder of the first.
    """
    metrics = {}
    for run in runs:
        if not (run / "metrics.jsonl").is_file():
            raise UserError(f"{run} is not the folder of a run: there is no metrics.jsonl in it.")
        metrics[run] = read_metrics(run)
        if not any(line["kind"] in ("train", "held_out") for line in metrics[run]):
            raise UserError(f"{run} has no metrics yet: wait for its first report.")
    if out is not None and (out.suffix == ".html" or out.is_file()):
        raise UserError(f"--out {out}: give a folder; report.html is written into it.")
    if len(runs) == 1:
        require("matplotlib", "plot")
    text = render(metrics)
    out = out or runs[0]
    out.mkdir(parents=True, exist_ok=True)
    picture, page = out / "report.png", out / "report.html"
    write_atomic(page, text.encode())
    if len(runs) > 1:
        return [page]
    draw(metrics[runs[0]], picture, title=str(runs[0].name))
    return [picture, page]


def draw(metrics: list[dict[str, Any]], path: Path, title: str) -> None:
    """Plot the curves, four panels per row."""
    require("matplotlib", "plot")
    # Not pyplot: its figures are global, and its backend may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = panels_of(metrics)
    rows = -(-len(chosen) // 4)
    figure = Figure(figsize=(15, 3.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, parse_math=False)  # a name with dollar signs is not a formula
    panels = figure.subplots(rows, 4, squeeze=False).ravel()
    for spare in panels[len(chosen) :]:
        spare.set_axis_off()
    for axes, (name, curves) in zip(panels, chosen, strict=False):
        for kind, key, label in curves:
            steps, values = series(metrics, kind, key)
            marker = "o" if len(steps) < 2 else None
            axes.plot(steps, values, label=label, color=COLOURS.get(label), marker=marker)
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("step", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        if len(curves) > 1:
            axes.legend(fontsize=8, frameon=False)
    save_figure(figure, path, dpi=110)


def render(metrics: Mapping[Path, Metrics]) -> str:
    """The HTML page: verdicts, curves, and what is known of each run."""
    names = name_runs(list(metrics))
    title = html.escape(", ".join(names.values()))
    several = len(metrics) > 1
    by_name = {names[run]: lines for run, lines in metrics.items()}
    compared = f"<h2>Held-out text</h2>{_comparison(by_name)}" if several else ""
    verdicts = "".join(
        _verdict(names[run] if several else "", lines) for run, lines in metrics.items()
    )
    details = "".join(_details(run, names[run], metrics[run], several) for run in metrics)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{STYLE}{charts.STYLE}{heat_map.STYLE}</style>
<h1>{title}</h1>
{verdicts}
{compared}
<h2>Curves</h2>
{render_charts(by_name)}
{details}
<script>
{charts.SCRIPT}</script>
</html>
"""


def name_runs(runs: Sequence[Path]) -> dict[Path, str]:
    """The folder names of runs; whole paths where names are equal."""
    short = {run: run.resolve().name for run in runs}
    counts = list(short.values())
    return {run: name if counts.count(name) == 1 else str(run) for run, name in short.items()}


def _verdict(name: str, metrics: Metrics) -> str:
    found = judge_run(metrics)
    label = f"{html.escape(name)}: " if name else ""
    sentences = " ".join(html.escape(sentence) for sentence in found.sentences)
    return f'<p class="verdict {found.health}"><b>{label}{found.title}.</b> {sentences}</p>'


def _comparison(metrics: Mapping[str, Metrics]) -> str:
    """A table of the last held-out metrics, one column per run."""
    last = {name: _last(lines, "held_out") for name, lines in metrics.items()}
    head = "".join(f"<th>{html.escape(name)}</th>" for name in last)
    rows = "".join(
        f"<tr><td>{html.escape(label)}</td>"
        + "".join(f"<td>{format_metric(key, line.get(key))}</td>" for line in last.values())
        + "</tr>"
        for key, label in metrics_present(*last.values())
    )
    return f"<div class='wide'><table><tr><th></th>{head}</tr>{rows}</table></div>"


def _details(run: Path, name: str, metrics: Metrics, several: bool) -> str:
    """Facts, metrics, warnings, sample sentences and configuration of one run."""
    train, held_out = _last(metrics, "train"), _last(metrics, "held_out")
    rows = "".join(
        f"<tr><td>{html.escape(label)}</td><td>{format_metric(key, train.get(key))}</td>"
        f"<td><b>{format_metric(key, held_out.get(key))}</b></td></tr>"
        for key, label in metrics_present(train, held_out)
    )
    warnings = "".join(
        f"<li>step {line['step']:,}: {html.escape(line['message'])}</li>"
        for line in metrics
        if line["kind"] == "event" and line.get("message", "started") not in QUIET
    )
    config = run / "config.yaml"
    settings = config.read_text(encoding="utf-8", errors="replace") if config.exists() else ""
    return f"""<section>
<h2>{html.escape(name) if several else "The run"}</h2>
<p>{" · ".join(_facts(metrics))}</p>
{f'<div class="warning"><b>Warnings</b><ul>{warnings}</ul></div>' if warnings else ""}
<h3>Sample sentences</h3>
{render_samples(run)}
<h3>Last metrics</h3>
<div class="wide"><table><tr><th></th><th>training</th><th>held-out</th></tr>{rows}</table></div>
<details><summary>Configuration</summary><pre>{html.escape(settings)}</pre></details>
</section>
"""


def _facts(metrics: Metrics) -> list[str]:
    """Steps, tokens, time, sizes, hardware and kernels, as far as the run recorded them."""
    train = _last(metrics, "train")
    begun = next((line for line in metrics if line.get("message") == "started"), {})
    facts = [f"{max(line['step'] for line in metrics):,} steps"]
    if train:
        tokens, seconds = train.get("tokens") or 0, train.get("seconds")
        facts += [f"{_amount(tokens)} tokens", f"{clock(seconds)} of training"]
    facts += [
        f"{line['batch_size']} rows of {line['seq_length']} tokens from step {line['step']:,}"
        for line in metrics
        if line["kind"] == "phase" and {"batch_size", "seq_length"} <= line.keys()
    ]
    facts += [
        f"{html.escape(name)} {_amount(size)} parameters"
        for name, size in begun.get("parameters", {}).items()
    ]
    if "hardware" in begun:
        facts.append(f"hardware: {html.escape(begun['hardware'])}")
    if "kernels" in begun:
        facts.append(f"kernels: {html.escape(begun['kernels'])}")
    if best := describe_best(metrics):
        facts.append(html.escape(best))
    return facts


def _last(metrics: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((line for line in reversed(metrics) if line["kind"] == kind), {})


def _amount(count: float) -> str:
    """12.3 M, 4.5 G."""
    if count < 1000:
        return f"{count:.0f}"
    power = min(3, int(math.log10(count) // 3))
    return f"{count / 1000**power:.1f} {'kMG'[power - 1]}"
