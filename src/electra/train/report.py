"""The report of a run: its curves as a PNG and a self-contained HTML page."""

import base64
import html
import math
from pathlib import Path
from typing import Any

from electra.errors import UserError, require
from electra.train.metrics_log import read_metrics
from electra.train.progress_view import clock, format_metric, metrics_present

Panel = tuple[str, tuple[tuple[str, str, str], ...]]
"""A title, and for each curve the kind of line, the metric and the label."""
PANELS: tuple[Panel, ...] = (
    ("Generator loss", (("train", "mlm_loss", "training"), ("held_out", "mlm_loss", "held-out"))),
    (
        "Discriminator loss",
        (("train", "detection_loss", "training"), ("held_out", "detection_loss", "held-out")),
    ),
    (
        "Discriminator on held-out text",
        (
            ("held_out", "auc", "AUC"),
            ("held_out", "precision", "precision"),
            ("held_out", "recall", "recall"),
        ),
    ),
    (
        "Generator on held-out text",
        (
            ("held_out", "generator_accuracy", "top prediction right"),
            ("held_out", "generator_sampled_accuracy", "sample right"),
        ),
    ),
    (
        "Replaced tokens",
        (("train", "replaced_rate", "training"), ("held_out", "replaced_rate", "held-out")),
    ),
    (
        "Diagnostics on held-out text",
        (
            ("held_out", "fixed_auc", "AUC, fixed corruption"),
            ("held_out", "accuracy_above_floor", "accuracy above floor"),
            ("held_out", "generator_state_cosine", "state cosine, generator"),
            ("held_out", "discriminator_state_cosine", "state cosine, discriminator"),
            ("held_out", "generator_local_attention", "local attention, generator"),
            ("held_out", "discriminator_local_attention", "local attention, discriminator"),
        ),
    ),
    ("Learning rate", (("train", "learning_rate", ""),)),
    ("Gradient norm before clipping", (("train", "gradient_norm", ""),)),
    ("Speed, tokens/s", (("train", "tokens_per_second", ""),)),
)
OTHER_PANELS: tuple[Panel, ...] = (
    ("Model loss", (("train", "model_loss", "training"), ("held_out", "model_loss", "held-out"))),
    (
        "Model accuracy, masked positions",
        (("train", "model_accuracy", "training"), ("held_out", "model_accuracy", "held-out")),
    ),
    (
        "Copy gate on held-out text",
        (
            ("held_out", "gate_auc", "AUC"),
            ("held_out", "gate_precision", "precision"),
            ("held_out", "gate_recall", "recall"),
        ),
    ),
    ("Reward of the generator", (("train", "reward", "training"),)),
)
"""For objectives other than the paper's."""
COLOURS = {"training": "#9aa5b1", "held-out": "#c2410c", "": "#1d4ed8"}


def write_report(run: Path, out: Path | None = None) -> tuple[Path, Path]:
    """Write `report.png` and `report.html`; returns their paths."""
    if not (run / "metrics.jsonl").is_file():
        raise UserError(f"{run} is not the folder of a run: there is no metrics.jsonl in it.")
    metrics = read_metrics(run)
    if not any(line["kind"] in ("train", "held_out") for line in metrics):
        raise UserError(f"{run} has no metrics yet: wait for its first report.")
    out = out or run
    out.mkdir(parents=True, exist_ok=True)
    picture, page = out / "report.png", out / "report.html"
    draw(metrics, picture, title=str(run.name))
    page.write_text(render(run, metrics, picture), encoding="utf-8")
    return picture, page


def series(metrics: list[dict[str, Any]], kind: str, name: str) -> tuple[list[int], list[float]]:
    """The steps and values of one metric, without missing values."""
    points = [
        (line["step"], line[name])
        for line in metrics
        if line["kind"] == kind and line.get(name) is not None
    ]
    return [step for step, _ in points], [value for _, value in points]


def panels_of(metrics: list[dict[str, Any]]) -> list[Panel]:
    """The panels that have data; a run that has just started gets empty ones."""
    known = [
        panel
        for panel in (*PANELS, *OTHER_PANELS)
        if any(series(metrics, kind, name)[0] for kind, name, _ in panel[1])
    ]
    return known or list(PANELS)


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
    figure.savefig(path, dpi=110)


def render(run: Path, metrics: list[dict[str, Any]], picture: Path) -> str:
    """The HTML page: summary, warnings, curves, configuration."""
    train = _last(metrics, "train")
    held_out = _last(metrics, "held_out")
    rows = "".join(
        f"<tr><td>{html.escape(label)}</td><td>{format_metric(key, train.get(key))}</td>"
        f"<td><b>{format_metric(key, held_out.get(key))}</b></td></tr>"
        for key, label in metrics_present(train, held_out)
    )
    warnings = "".join(
        f"<li>step {line['step']:,}: {html.escape(line['message'])}</li>"
        for line in metrics
        if line["kind"] == "event" and line["message"] not in ("started", "resumed")
    )
    image = base64.b64encode(picture.read_bytes()).decode()
    config = run / "config.yaml"
    settings = html.escape(config.read_text(encoding="utf-8")) if config.exists() else ""
    step = max(line["step"] for line in metrics)
    facts = [f"{step:,} steps"]
    if train:
        facts += [f"{_amount(train['tokens'])} tokens", f"{clock(train['seconds'])} of training"]
    facts += [
        f"{line['batch_size']} rows of {line['seq_length']} tokens from step {line['step']:,}"
        for line in metrics
        if line["kind"] == "phase"
    ]
    name = html.escape(run.resolve().name)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{name}</title>
<style>
  body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem;
         padding: 0 1rem; color: #1f2933; }}
  img {{ width: 100%; }}
  table {{ border-collapse: collapse; }}
  td, th {{ padding: .15rem 1.2rem .15rem 0; text-align: left; }}
  td + td, th + th {{ text-align: right; }}
  .warning {{ background: #fef3c7; padding: .5rem 1rem; border-radius: .4rem; }}
  pre {{ background: #f5f7fa; padding: 1rem; overflow-x: auto; font-size: 13px; }}
</style>
<h1>{name}</h1>
<p>{" · ".join(facts)}</p>
{f'<div class="warning"><b>Warnings</b><ul>{warnings}</ul></div>' if warnings else ""}
<table><tr><th></th><th>training</th><th>held-out</th></tr>{rows}</table>
<img alt="Curves of the run" src="data:image/png;base64,{image}">
<details><summary>Configuration</summary><pre>{settings}</pre></details>
</html>
"""


def _last(metrics: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((line for line in reversed(metrics) if line["kind"] == kind), {})


def _amount(count: float) -> str:
    """12.3 M, 4.5 G."""
    if count < 1000:
        return f"{count:.0f}"
    power = min(3, int(math.log10(count) // 3))
    return f"{count / 1000**power:.1f} {'kMG'[power - 1]}"
