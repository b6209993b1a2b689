"""`electra glue`: every task that is there, with the paper's metrics and the paper's rows."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from electra.errors import UserError, require
from electra.files import write_atomic
from electra.finetune.judge import plain_answers
from electra.finetune.results import Result, rank, read_results, summary
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.run_dir import check_out_dir
from electra.tasks.examples import Task
from electra.tasks.glue import GLUE, available_tasks, load_glue, normalize_name
from electra.tasks.glue_submission import write_submission

AVERAGED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
"""The tasks of the paper's average; WNLI is none of them."""
PAPER: dict[str, tuple[float, ...]] = {
    # Dev scores in the order of AVERAGED: medians, as published with the original code
    "ELECTRA-Small": (57.0, 91.2, 88.0, 87.5, 89.0, 81.3, 88.4, 66.7),
    "ELECTRA-Small-OWT": (56.8, 88.3, 87.4, 86.8, 88.3, 78.9, 87.9, 68.5),
    "ELECTRA-Base": (67.7, 95.1, 89.5, 91.2, 91.5, 88.8, 93.2, 82.7),
    "ELECTRA-Large": (69.1, 96.9, 90.8, 92.6, 92.4, 90.9, 95.0, 88.0),
}
FROM_MNLI = ("rte", "mrpc", "stsb")
"""Small tasks of sentence pairs that gain from a model that has learned MNLI first."""
SHOWN = {
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
    """Fine-tune on each task, then write the table, the figure and the submission."""
    names = choose(available_tasks(data), [normalize_name(name) for name in only], from_mnli, data)
    check_out_dir(out, "scores of GLUE", *GLUE)
    tasks = {name: load_glue(name, data) for name in names}
    for task in tasks.values():
        for warning in task.warnings:
            console.print(f"warning: {warning}", highlight=False, markup=False, style="yellow")
    rows = []
    for name, task in tasks.items():
        start = model
        if from_mnli and name in FROM_MNLI:
            start = str(out / "mnli" / "model")
        results = finetune(start, task, out / name, seeds, config, console)
        rows.append(summary(results) | others(name, results))
        console.print(line(rows[-1]), highlight=False, markup=False)
    write_results(out, names)
    whole = {"tasks": rows, "average": average(rows)}
    write_atomic(out / "summary.json", json.dumps(whole, indent=2).encode() + b"\n")
    write_atomic(out / "table.md", markdown(rows).encode())
    tests = test_predictions(tasks, out)
    if tests:
        path = write_submission(out / "submission", tests)
        console.print(f"For GLUE's server: {path}", highlight=False, markup=False, soft_wrap=True)
    return rows


def choose(there: Sequence[str], only: Sequence[str], from_mnli: bool, data: Path) -> list[str]:
    """The tasks to run; MNLI first where others start from it."""
    missing = [name for name in only if name not in there]
    if missing or not there:
        found = ", ".join(there) or "no task of GLUE"
        wanted = f"no {missing[0]}" if missing else "nothing to run"
        raise UserError(f"{data} has {wanted}: there is {found}.")
    names = [name for name in there if not only or name in only]
    if from_mnli:
        if "mnli" not in names:
            raise UserError("--from-mnli needs the task mnli too: add it, or leave the option.")
        names.sort(key=lambda name: name != "mnli")
    return names


def others(name: str, results: Sequence[Result]) -> dict[str, Any]:
    """Medians of the metrics that are shown beside the main one."""
    shown = [m for m in SHOWN.get(name, ("accuracy",)) if m in results[0]]
    return {"metrics": {m: statistics.median(float(r[m]) for r in results) for m in shown}}


def line(row: Mapping[str, Any]) -> str:
    """One task in one line."""
    text = (
        f"{row['task']:6} {row['metric']} {100 * row['median']:.1f} (median of {row['seeds']}, "
        f"{100 * row['lowest']:.1f} to {100 * row['highest']:.1f})"
    )
    if row["failed"]:
        text += f"; learned nothing: seed {', '.join(map(str, row['failed']))}"
    return text


def show_table(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The tasks with median, mean, spread and count, the paper's rows beside them."""
    heads = ("task", "metric", "median", "mean ± sd", "range", "seeds")
    shown = [name for name in PAPER if name != "ELECTRA-Small-OWT"]  # 80 columns are few
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
                for name, cell in zip(PAPER, paper_cells(row["task"]), strict=True)
                if name in shown
            ),
        )
    console.print(table)
    console.print(
        "Small, Base, Large: dev medians published with the original's weights.", style="dim"
    )
    mean = average(rows)
    if mean is not None:
        console.print(f"Average of the paper's eight tasks: {100 * mean:.2f}")


def average(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The paper's average, when all its tasks are there."""
    medians = {row["task"]: row["median"] for row in rows}
    if not set(AVERAGED) <= medians.keys():
        return None
    return float(sum(medians[name] for name in AVERAGED) / len(AVERAGED))


def paper_cells(task: str) -> list[str]:
    """The published scores of a task."""
    if task not in AVERAGED:
        return [""] * len(PAPER)
    return [f"{scores[AVERAGED.index(task)]:.1f}" for scores in PAPER.values()]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """The same table for a document."""
    heads = ["task", "metric", "median", "mean", "sd", "lowest", "highest", "seeds", "failed"]
    heads += [f"{name} (published)" for name in PAPER]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for row in rows:
        figures = [row[k] for k in ("median", "mean", "deviation", "lowest", "highest")]
        cells = [row["task"], row["metric"], *(f"{100 * v:.1f}" for v in figures)]
        cells += [str(row["seeds"]), ", ".join(map(str, row["failed"])), *paper_cells(row["task"])]
        lines.append(f"| {' | '.join(cells)} |")
    mean = average(rows)
    if mean is not None:
        lines += ["", f"Average of the paper's eight tasks: {100 * mean:.2f}"]
    return "\n".join(lines) + "\n"


def write_results(out: Path, names: Sequence[str]) -> None:
    """All seeds of all tasks in one file of JSON lines."""
    lines = [json.dumps(result) for name in names for result in read_results(out / name)]
    write_atomic(out / "results.jsonl", ("\n".join(lines) + "\n").encode())


def test_predictions(tasks: Mapping[str, Task], out: Path) -> dict[str, Any]:
    """What the best seed of each task says about the test splits."""
    found: dict[str, Any] = {}
    for name, task in tasks.items():
        best = max(read_results(out / name), key=rank)
        folder = out / name / "predictions" / f"seed-{best['seed']}"
        for split in task.splits:
            test = name if split == "test" else TESTS.get((name, split))
            if test:
                text = (folder / f"{split}.jsonl").read_text(encoding="utf-8")
                records = [json.loads(record) for record in text.splitlines()]
                found[test] = plain_answers(task, records)
    return found


def draw(rows: Sequence[Mapping[str, Any]], out: Path) -> Path:
    """A figure: every seed as a dot, the median as a line, the published scores as marks."""
    require("matplotlib", "plot")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2 + 1.1 * max(4, len(rows)), 4.2), layout="constrained")
    axes = figure.subplots()
    names: dict[str, str | None] = {"seed": "a seed", "median": "median of the seeds"}
    for place, row in enumerate(rows):
        scores = [100 * r["score"] for r in read_results(out / row["task"])]
        axes.plot(
            [place] * len(scores), scores, "o", color="#1d4ed8", alpha=0.4, label=names["seed"]
        )
        reach, median = [place - 0.3, place + 0.3], 100 * row["median"]
        axes.plot(reach, [median] * 2, color="#1d4ed8", linewidth=2, label=names["median"])
        names |= {"seed": None, "median": None}  # once in the legend is enough
    for name, mark in (("ELECTRA-Small", "v"), ("ELECTRA-Base", "^")):
        known = [p for p, row in enumerate(rows) if row["task"] in AVERAGED]
        published = [PAPER[name][AVERAGED.index(rows[p]["task"])] for p in known]
        axes.plot(known, published, mark, color="#9aa5b1", label=f"{name}, published")
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xticks(range(len(rows)), [f"{r['task']}\n{r['metric']}" for r in rows])
    axes.set_ylabel("dev score")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize="small")
    path = out / "glue.png"
    figure.savefig(path, dpi=120)
    return path
