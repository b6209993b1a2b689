"""`electra glue`: fine-tune on every GLUE task found and compare with the published scores."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from electra.errors import UserError, require
from electra.files import save_figure, write_atomic
from electra.finetune.kinds import make_kind
from electra.finetune.kinds.base import Record
from electra.finetune.kinds.text import TextKind
from electra.finetune.results import Result, rank, read_results, summary
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import TaskCard
from electra.run_dir import check_out_dir
from electra.tasks.examples import Task
from electra.tasks.glue import GLUE, available_tasks, load_glue, normalize_name
from electra.tasks.glue_submission import write_submission

AVERAGED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
"""The tasks of the paper's average, which leaves out WNLI."""
PUBLISHED: dict[str, tuple[float, ...]] = {
    # Dev medians in the order of AVERAGED, published with google-research/electra
    "ELECTRA-Small": (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7),
    "ELECTRA-Small-OWT": (56.8, 88.3, 87.4, 86.8, 88.3, 78.9, 87.9, 68.5),
    "ELECTRA-Base": (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7),
    "ELECTRA-Large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0),
}
FROM_MNLI = ("rte", "mrpc", "stsb")
"""Small sentence-pair tasks that gain from an encoder fine-tuned on MNLI first."""
EXTRA_METRICS = {
    "cola": ("matthews", "accuracy"),
    "stsb": ("spearman", "pearson"),
    "mrpc": ("accuracy", "f1"),
    "qqp": ("accuracy", "f1"),
    "mnli": ("accuracy", "dev_mismatched_accuracy"),
}
TESTS = {
    ("mnli", "test_mismatched"): "mnli_mismatched",
    ("mnli", "ax"): "ax",
}


def run_glue(
    model: str,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    config: FinetuneConfig,
    console: Console,
    *,
    only: Sequence[str] = (),
    from_mnli: bool = False,
) -> list[dict[str, Any]]:
    """Fine-tune on each task, then write the tables and the files for the GLUE server."""
    names = select_tasks(
        available_tasks(data), [normalize_name(name) for name in only], from_mnli, data
    )
    check_out_dir(out, "scores of GLUE", *GLUE)
    tasks = {name: load_glue(name, data) for name in names}
    missing = [] if only else missing_tasks(names, data)
    for warning in [*missing, *(w for task in tasks.values() for w in task.warnings)]:
        console.print(f"warning: {warning}", highlight=False, markup=False, style="yellow")
    rows = []
    for name, task in tasks.items():
        start = model
        if from_mnli and name in FROM_MNLI:
            start = str(out / "mnli" / "model")
        results = finetune(start, task, out / name, seeds, config, console)
        rows.append(summary(results) | extra_metrics(name, results))
        console.print(summary_line(rows[-1]), highlight=False, markup=False)
    write_results(out, names)
    whole = {"tasks": rows, "average": average(rows)}
    write_atomic(out / "summary.json", json.dumps(whole, indent=2).encode() + b"\n")
    write_atomic(out / "table.md", markdown(rows).encode())
    tests = best_test_predictions(tasks, out)
    if tests:
        path = write_submission(out / "submission", tests)
        console.print(
            f"Submission for the GLUE server: {path}", highlight=False, markup=False, soft_wrap=True
        )
    return rows


def select_tasks(
    found: Sequence[str], only: Sequence[str], from_mnli: bool, data: Path
) -> list[str]:
    """The tasks to run; MNLI comes first where others start from it."""
    if not found:
        raise UserError(f"'{data}' has no GLUE task: name the folder that contains their folders.")
    missing = [name for name in only if name not in found]
    if missing:
        raise UserError(f"'{data}' has no task {missing[0]}: choose from {', '.join(found)}.")
    names = [name for name in found if not only or name in only]
    if from_mnli:
        if "mnli" not in names:
            raise UserError(
                "--from-mnli also needs the task mnli: add it, or leave out --from-mnli."
            )
        names.sort(key=lambda name: name != "mnli")
    return names


def missing_tasks(names: Sequence[str], data: Path) -> list[str]:
    """A warning if tasks of the average were not found."""
    missing = ", ".join(name for name in AVERAGED if name not in names)
    return [f"'{data}' lacks {missing}: no average is computed."] if missing else []


def extra_metrics(name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Medians of the metrics shown beside the main one."""
    shown = [m for m in EXTRA_METRICS.get(name, ("accuracy",)) if m in results[0]]
    return {"metrics": {m: statistics.median(float(r[m]) for r in results) for m in shown}}


def summary_line(row: Mapping[str, Any]) -> str:
    """The summary of one task in one line."""
    spread = f"{100 * row['lowest']:.1f} to {100 * row['highest']:.1f}"
    seeds = f"median of {row['seeds']}, {spread}" if row["seeds"] > 1 else "one seed"
    text = f"{row['task']:6} {row['metric']} {100 * row['median']:.1f} ({seeds})"
    if row["failed"]:
        text += f"; learned nothing: seed {', '.join(map(str, row['failed']))}"
    return text


def show_table(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """Print median, mean, spread and number of seeds, compared with the published scores."""
    heads = ("task", "metric", "median", "mean ± sd", "range", "seeds")
    shown = [name for name in PUBLISHED if name != "ELECTRA-Small-OWT"]  # to fit in 80 columns
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for head in (*heads, *(name.removeprefix("ELECTRA-") for name in shown)):
        table.add_column(head, no_wrap=True, style="" if head in heads else "dim")
    for row in rows:
        seeds = str(row["seeds"])
        if row["failed"]:
            seeds += f", {len(row['failed'])} failed"
        table.add_row(
            row["task"],
            row["metric"],
            f"{100 * row['median']:.1f}",
            f"{100 * row['mean']:.1f} ± {100 * row['deviation']:.1f}",
            f"{100 * row['lowest']:.1f} to {100 * row['highest']:.1f}",
            seeds,
            *(
                cell
                for name, cell in zip(PUBLISHED, paper_cells(row["task"]), strict=True)
                if name in shown
            ),
        )
    console.print(table)
    console.print(
        "Small, Base, Large: dev medians published with google-research/electra.", style="dim"
    )
    mean = average(rows)
    if mean is not None:
        console.print(f"Average of the paper's eight tasks: {100 * mean:.2f}")


def average(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The paper's average, if all its tasks were run."""
    medians = {row["task"]: row["median"] for row in rows}
    if not set(AVERAGED) <= medians.keys():
        return None
    return float(sum(medians[name] for name in AVERAGED) / len(AVERAGED))


def paper_cells(task: str) -> list[str]:
    """The published scores of a task."""
    if task not in AVERAGED:
        return [""] * len(PUBLISHED)
    return [f"{scores[AVERAGED.index(task)]:.1f}" for scores in PUBLISHED.values()]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown."""
    heads = ["task", "metric", "median", "mean", "sd", "lowest", "highest", "seeds", "failed"]
    heads += [f"{name} (published)" for name in PUBLISHED]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        scores = [row[k] for k in ("median", "mean", "deviation", "lowest", "highest")]
        cells = [row["task"], row["metric"], *(f"{100 * v:.1f}" for v in scores)]
        cells += [str(row["seeds"]), ", ".join(map(str, row["failed"])), *paper_cells(row["task"])]
        lines.append(f"| {' | '.join(cells)} |")
    mean = average(rows)
    if mean is not None:
        lines += ["", f"Average of the paper's eight tasks: {100 * mean:.2f}"]
    return "\n".join(lines) + "\n"


def write_results(out: Path, names: Sequence[str]) -> None:
    """Collect the results of all tasks in one `results.jsonl`."""
    lines = [json.dumps(result) for name in names for result in read_results(out / name)]
    write_atomic(out / "results.jsonl", ("\n".join(lines) + "\n").encode())


def best_test_predictions(tasks: Mapping[str, Task], out: Path) -> dict[str, Any]:
    """The test predictions of the best seed of each task."""
    found: dict[str, Any] = {}
    for name, task in tasks.items():
        best = max(read_results(out / name), key=rank)
        folder = out / name / "predictions" / f"seed-{best['seed']}"
        for split in task.splits:
            test = name if split == "test" else TESTS.get((name, split))
            if test:
                text = (folder / f"{split}.jsonl").read_text(encoding="utf-8")
                records = [json.loads(record) for record in text.splitlines()]
                found[test] = submission_values(task, records)
    return found


def submission_values(task: Task, records: Sequence[Record]) -> npt.NDArray[Any]:
    """Predictions as the GLUE server takes them: label indices or values."""
    kind = make_kind(TaskCard(name=task.name, kind=task.kind))
    assert isinstance(kind, TextKind)
    return kind.predictions(task, records)


def plot_scores(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """Plot every seed as a dot, the median as a line and the published scores as triangles."""
    require("matplotlib", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 1.1 * max(4, len(rows)), 4.2), layout="constrained")
    axes = figure.subplots()
    names: dict[str, str | None] = {"seed": "one seed", "median": "median of the seeds"}
    for place, row in enumerate(rows):
        scores = [100 * r["score"] for r in read_results(out / row["task"])]
        axes.plot(
            [place] * len(scores), scores, "o", color="#1d4ed8", alpha=0.4, label=names["seed"]
        )
        reach, median = [place - 0.3, place + 0.3], 100 * row["median"]
        axes.plot(reach, [median] * 2, color="#1d4ed8", linewidth=2, label=names["median"])
        names |= {"seed": None, "median": None}  # one legend entry each
    for name, mark in (("ELECTRA-Small", "v"), ("ELECTRA-Base", "^")):
        known = [p for p, row in enumerate(rows) if row["task"] in AVERAGED]
        published = [PUBLISHED[name][AVERAGED.index(rows[p]["task"])] for p in known]
        axes.plot(known, published, mark, color="#9aa5b1", label=f"{name}, published")
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), [f"{r['task']}\n{r['metric']}" for r in rows])
    axes.set_ylabel("dev score")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
    path = out / "glue.png"
    save_figure(figure, path, dpi=120)
    return path
