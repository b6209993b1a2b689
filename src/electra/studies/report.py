"""What a study writes: `table.md`, `figure.png` and `page.md`, with the paper's numbers."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from electra.errors import UserError, require
from electra.files import save_figure, write_atomic
from electra.finetune.glue import AVERAGED
from electra.finetune.results import Result
from electra.models.paper_flops import ELECTRA_SMALL
from electra.studies.score import BLIMP, Scorer, TaskScorer, main_score
from electra.studies.study import Arm, Study

COLOURS = {"": "#1d4ed8", "ELECTRA": "#1d4ed8", "BERT": "#c2410c"}
FIGURE, TABLE, PAGE = "figure.png", "table.md", "page.md"


@dataclass(frozen=True, slots=True)
class ArmResults:
    """The finished runs of an arm."""

    arm: Arm
    runs: Sequence[Result]
    names: Sequence[str]
    """The scores to report."""

    @property
    def scores(self) -> list[float]:
        """The score of each seed, x 100."""
        selected = ({n: run["scores"][n] for n in self.names} for run in self.runs)
        return [100 * main_score(scores) for scores in selected]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    def mean_of(self, name: str) -> float:
        """Return the mean of one score over the seeds, x 100."""
        return 100 * statistics.fmean(run["scores"][name]["score"] for run in self.runs)


def write_report(
    study: Study,
    results: Sequence[Result],
    scorers: Sequence[Scorer],
    out: Path,
    *,
    runs: int,
    rate_losses: str = "",
    command: str,
    console: Console,
) -> None:
    """Write table, figure and page of the finished runs; `runs` is how many there will be.

    `rate_losses` is the table by which the learning rates of the arms were chosen.
    """
    names = [scorer.name for scorer in scorers]
    arms = [
        ArmResults(arm, [r for r in results if r["arm"] == arm.name], names) for arm in study.arms
    ]
    arms = [arm for arm in arms if arm.runs]
    tables = [
        scores_table(study, arms),
        tasks_table(arms, names) if len(names) > 1 else "",
        costs_table(arms),
        diagnostics_table(arms),
        rate_losses,
        "" if study.from_paper else settings_table(study),
    ]
    text = "\n".join(filter(None, tables))
    write_atomic(out / TABLE, text.encode())
    try:
        draw_figure(study, arms, out / FIGURE)
        figure = f"![The scores of each arm]({FIGURE})\n\n"
    except UserError as missing:  # matplotlib is optional
        console.print(f"warning: no figure: {missing}", style="yellow", markup=False)
        figure = ""
    state = "" if len(results) == runs else f"So far {len(results)} of {runs} runs are done.\n\n"
    head = f"# {study.title}\n\n{state}{study.note} {study.scale.note}\n\n"
    page = f"{head}{figure}{text}\n{conditions(study, results, scorers, command)}"
    write_atomic(out / PAGE, page.encode())


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with the numbers right-aligned."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def format_number(value: float | None, spec: str = ".1f") -> str:
    """Format a number; None becomes a dash."""
    return "–" if value is None else f"{value:{spec}}"


def scores_table(study: Study, arms: Sequence[ArmResults]) -> str:
    """Return our scores and the paper's; for bars also the differences from the first arm."""
    rates = any(arm.learning_rate for arm in study.arms)
    header = ["arm", *["learning rate"] * rates, "score", "sd", "lowest", "highest", "seeds"]
    header += ["paper"] * study.from_paper
    first = study.arms[0]
    compared = study.chart == "bars" and bool(arms) and arms[0].arm == first
    if compared:
        header += [f"minus {first.name}", *["the same in the paper"] * study.from_paper]
    rows = []
    for results in arms:
        scores, paper = results.scores, results.arm.paper_score
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        numbers = (results.mean, deviation, min(scores), max(scores))
        row = [
            results.arm.name,
            *[results.arm.learning_rate] * rates,
            *map(format_number, numbers),
            str(len(scores)),
            *[format_number(paper)] * study.from_paper,
        ]
        if compared:
            known = paper is not None and first.paper_score is not None
            gap = paper - first.paper_score if known else None  # type: ignore[operator]
            row.append(format_number(results.mean - arms[0].mean, "+.1f"))
            row += [format_number(gap, "+.1f")] * study.from_paper
        rows.append(row)
    return markdown_table(header, rows)


def tasks_table(arms: Sequence[ArmResults], names: Sequence[str]) -> str:
    """Return each score of each arm: means over the seeds of pre-training."""
    rows = [[arm.arm.name, *(format_number(arm.mean_of(n)) for n in names)] for arm in arms]
    return markdown_table(["arm", *names], rows)


def costs_table(arms: Sequence[ArmResults]) -> str:
    """Return the training cost of each arm."""
    header = ["arm", "steps", "tokens", "FLOPs", "FLOPs by the paper's rules", "seconds per run"]
    rows = []
    for arm in arms:
        run = arm.runs[0]
        seconds = statistics.fmean(r["seconds"] for r in arm.runs)
        costs = (run["tokens"], run["flops"], run["paper_flops"])
        numbers = [f"{run['steps']:,}", *(f"{c:.3g}" for c in costs), f"{seconds:,.0f}"]
        rows.append([arm.arm.name, *numbers])
    return markdown_table(header, rows)


def settings_table(study: Study) -> str:
    """Return what each arm changes."""
    rows = [[arm.name, " ".join(f"`{o}`" for o in arm.overrides) or "–"] for arm in study.arms]
    return markdown_table(["arm", "settings"], rows)


DIAGNOSTICS = {
    "generator_accuracy": "generator accuracy",
    "model_accuracy": "model accuracy",
    "accuracy_above_floor": "above the floor",
    "auc": "AUC",
    "fixed_auc": "AUC, fixed corruption",
    "generator_state_cosine": "state cosine, generator",
    "discriminator_state_cosine": "state cosine, discriminator",
}
"""Held-out metrics that explain a score, and their column titles."""


def diagnostics_table(arms: Sequence[ArmResults]) -> str:
    """Return when each network left its plateau, and what validation found at the end.

    Of several seeds, the steps of each and the mean of the metrics. Results of earlier versions
    have none of this; without any, there is no table.
    """
    networks = [
        name
        for name in ("generator", "model", "discriminator")
        if any(name in run.get("plateau_ends", {}) for arm in arms for run in arm.runs)
    ]
    known = [
        name
        for name in DIAGNOSTICS
        if any(run.get("held_out", {}).get(name) is not None for arm in arms for run in arm.runs)
    ]
    if not networks or not known:
        return ""
    header = [f"{name} leaves its plateau at step" for name in networks]
    rows = []
    for arm in arms:
        ends = [
            ", ".join(
                f"{run['plateau_ends'][name]:,}" if run["plateau_ends"][name] else "never"
                for run in arm.runs
                if name in run.get("plateau_ends", {})
            )
            for name in networks
        ]
        found = {name: [run.get("held_out", {}).get(name) for run in arm.runs] for name in known}
        means = [None if None in values else statistics.fmean(values) for values in found.values()]
        cells = [end or "–" for end in ends] + [format_number(mean, ".3f") for mean in means]
        rows.append([arm.arm.name, *cells])
    return markdown_table(["arm", *header, *(DIAGNOSTICS[name] for name in known)], rows)


def conditions(
    study: Study, results: Sequence[Result], scorers: Sequence[Scorer], command: str
) -> str:
    """Return how the numbers were made and what you may compare them with."""
    seeds = ", ".join(map(str, sorted({r["seed"] for r in results})))
    notes = [
        f"- Every arm trains for {describe_budget(study)}, on the same text; with the same seed, "
        "all arms read it in the same order. The paper's rules count FLOPs differently, so arms "
        "that are equal here differ by them.",
        f"- Seeds of pre-training: {seeds}. `sd`, `lowest` and `highest` are over them; a "
        "difference that is not clearly larger may be chance.",
        f"- {describe_score(scorers)}",
    ]
    if any(arm.learning_rate for arm in study.arms):
        notes.append(
            "- Each arm has the learning rate with the lowest held-out loss at the end of a run "
            "with seed 0; the scores had no part in the choice."
        )
    tasks = {scorer.name for scorer in scorers if isinstance(scorer, TaskScorer)}
    if study.from_paper and tasks != set(AVERAGED):
        notes.append(
            "- The paper's score is the mean of eight GLUE tasks. Ours is another measure: "
            "compare the order and the distances of the arms, not the numbers."
        )
    if any(scorer.name == BLIMP for scorer in scorers):
        notes.append(
            "- BLiMP asks a discriminator which sentence has more replaced tokens, and a masked "
            "language model which is less likely. These are two measures; and Replace MLM and "
            "All-Tokens MLM never see the `[MASK]` tokens in training that BLiMP scores them with."
        )
    failed = sum(len(r["scores"][name].get("failed", ())) for r in results for name in tasks)
    if failed:
        notes.append(f"- {failed} fine-tuning seeds learned nothing; the scores include them.")
    made = {f"{r['hardware']}, electra {r['version']}, torch {r['torch']}" for r in results}
    notes.append(f"- Made on {'; '.join(sorted(made))}.")
    return "\n".join(notes) + f"\n\n```bash\n{command}\n```\n"


def describe_budget(study: Study) -> str:
    """Return how long each arm trains."""
    budgets = {arm.budget for arm in study.arms}
    if budgets == {""}:
        return f"{study.budget:.4g} FLOPs by our count (or for its fraction of them)"
    return budgets.pop() if len(budgets) == 1 else "the budget in its name"


def describe_score(scorers: Sequence[Scorer]) -> str:
    """Return a sentence that says what the column `score` is."""
    tasks = [scorer for scorer in scorers if isinstance(scorer, TaskScorer)]
    if not tasks:
        return "The score is the accuracy on BLiMP, without fine-tuning; guessing gives 50."
    names = ", ".join(f"{scorer.name} ({scorer.task.metric})" for scorer in tasks)
    seeds = len(tasks[0].seeds)
    return (
        f"The score is the mean over {names}, all x 100, on their dev sets; for each task the "
        f"median of {seeds} fine-tuning {'seed' if seeds == 1 else 'seeds'}."
    )


def draw_figure(study: Study, arms: Sequence[ArmResults], path: Path) -> None:
    """Draw our scores, over compute also against time, and the paper's if it prints them."""
    require("matplotlib", "plot")
    from matplotlib.figure import Figure

    printed = [arm for arm in study.arms if arm.paper_score is not None]
    numeric = study.x_axis == "FLOPs"
    axis = "training FLOPs" if numeric else study.x_axis
    ours = f"ours, scale {study.scale.name}: {study.chart} = means, dots = seeds"
    panels = [(ours, axis, [(arm.arm, arm.scores, arm.runs[0]["flops"]) for arm in arms])]
    if numeric:
        minutes = [(arm, statistics.fmean(r["seconds"] for r in arm.runs) / 60) for arm in arms]
        points = [(arm.arm, arm.scores, time) for arm, time in minutes]
        panels.append((f"{ours}, against time", "minutes of training", points))
    if printed:
        points = [
            (arm, [float(arm.paper_score or 0)], arm.budget_fraction * ELECTRA_SMALL.train)
            for arm in printed
        ]
        panels.append(("paper", axis, points))
    figure = Figure(figsize=(6.2 * len(panels), 4.4), layout="constrained")
    for axes, (title, label, points) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
    ):
        draw_panel(study, points, axes)
        axes.set_title(title)
        axes.set_xlabel(label)
    figure.suptitle(study.title)
    save_figure(figure, path, dpi=120)


def draw_panel(study: Study, points: Sequence[tuple[Arm, list[float], float]], axes: Any) -> None:
    """Draw the arms as bars or lines, with a dot for each seed."""
    labels = list(dict.fromkeys(arm.x_label or arm.name for arm in study.arms))
    numeric = study.x_axis == "FLOPs"
    lines: dict[str, list[tuple[float, float]]] = {}
    for arm, scores, amount in points:
        x = amount if numeric else labels.index(arm.x_label or arm.name)
        mean, colour = statistics.fmean(scores), COLOURS[arm.series]
        dots = colour if study.chart == "lines" else "#111827"
        axes.plot([x] * len(scores), scores, "o", color=dots, alpha=0.6, zorder=3)
        if study.chart == "bars":
            axes.bar(x, mean, width=0.6, color=colour)
        lines.setdefault(arm.series, []).append((x, mean))
    if study.chart == "lines":
        for name, line in lines.items():
            axes.plot(
                *zip(*sorted(line), strict=True), "-", color=COLOURS[name], label=name or None
            )
        if any(lines):
            axes.legend()
    every = [score for _, scores, _ in points for score in scores]
    if every:  # an axis from zero would hide the differences
        span = max(max(every) - min(every), 1.0)
        axes.set_ylim(min(every) - 0.5 * span, max(every) + 0.25 * span)
    if numeric:
        axes.set_xscale("log")
    else:
        axes.set_xticks(range(len(labels)), labels)
    axes.set_ylabel("score (the axis does not start at 0)" if study.chart == "bars" else "score")
