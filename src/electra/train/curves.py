"""The curves of runs: which metrics share a panel, and the charts of one run or several."""

from collections.abc import Mapping, Sequence
from typing import Any

from electra.train.charts import COLOURS, Curve, chart

Metrics = list[dict[str, Any]]
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
    ("Score on your task", (("score", "score", "held-out"),)),
)
"""For objectives other than the paper's, and for runs that are scored."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 5", "12 4")


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


def render_charts(metrics: Mapping[str, Metrics]) -> str:
    """Return the charts of all panels as HTML; runs share them."""
    everything = [line for lines in metrics.values() for line in lines]
    charts = "".join(
        chart(title, curves_of(metrics, panel)) for title, panel in panels_of(everything)
    )
    return f'<div class="charts">{charts}</div>'


def curves_of(metrics: Mapping[str, Metrics], panel: Sequence[tuple[str, str, str]]) -> list[Curve]:
    """The curves of one panel: a colour for each run, or for each curve of a single run."""
    found = []
    several = len(metrics) > 1
    both = {kind for kind, _, _ in panel} == {"train", "held_out"}
    for run, (name, lines) in enumerate(metrics.items()):
        for number, (kind, key, label) in enumerate(panel):
            steps, values = series(lines, kind, key)
            colour = COLOURS[(run if several or both else number) % len(COLOURS)]
            text = " · ".join(part for part in (name if several else "", label) if part)
            found.append(
                Curve(
                    label=text,
                    steps=steps,
                    values=values,
                    colour=colour,
                    faint=both and kind == "train",
                    dash=DASHES[number % len(DASHES)] if several and not both else "",
                )
            )
    return found
