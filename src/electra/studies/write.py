"""What a study leaves: table.md, figure.png, and page.md with our numbers beside the paper's."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from electra.errors import UserError, require
from electra.files import write_atomic
from electra.finetune.glue import AVERAGED
from electra.finetune.results import Result
from electra.models.paper_flops import ELECTRA_SMALL
from electra.studies.score import BLIMP, Source, Tuned, headline
from electra.studies.study import Arm, Study

COLOURS = {"": "#1d4ed8", "ELECTRA": "#1d4ed8", "BERT": "#c2410c"}
FIGURE, TABLE, PAGE = "figure.png", "table.md", "page.md"


@dataclass(frozen=True, slots=True)
class Row:
    """An arm and the cells of it that are done."""

    arm: Arm
    cells: Sequence[Result]
    names: Sequence[str]
    """The scores that were asked for."""

    @property
    def scores(self) -> list[float]:
        """The score of each seed, in per cent."""
        asked = ({n: c["scores"][n] for n in self.names} for c in self.cells)
        return [100 * headline(scores) for scores in asked]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    def average(self, name: str) -> float:
        """The mean of one score over the seeds, in per cent."""
        return 100 * statistics.fmean(c["scores"][name]["score"] for c in self.cells)


def write(
    study: Study,
    results: Sequence[Result],
    sources: Sequence[Source],
    out: Path,
    *,
    cells: int,
    command: str,
    console: Console,
) -> None:
    """Table, figure and page of the cells that are done."""
    names = [source.name for source in sources]
    rows = [Row(arm, [r for r in results if r["arm"] == arm.name], names) for arm in study.arms]
    rows = [row for row in rows if row.cells]
    tables = [scores_table(study, rows), costs_table(rows)]
    if len(names) > 1:
        tables.insert(1, tasks_table(rows, names))
    text = "\n".join(tables)
    write_atomic(out / TABLE, text.encode())
    try:
        draw(study, rows, out / FIGURE)
        figure = f"![The scores of each arm]({FIGURE})\n\n"
    except UserError as missing:  # matplotlib is an extra; the numbers are there without it
        console.print(f"warning: no figure: {missing}", style="yellow", markup=False)
        figure = ""
    state = "" if len(results) == cells else f"So far {len(results)} of {cells} cells are done.\n\n"
    head = f"# {study.title}\n\n{state}{study.note} {study.scale.note}\n\n"
    page = f"{head}{figure}{text}\n{conditions(study, results, sources, command)}"
    write_atomic(out / PAGE, page.encode())


def grid_of(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *lines))


def number(value: float | None, form: str = ".1f") -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:{form}}"


def scores_table(study: Study, rows: Sequence[Row]) -> str:
    """Our scores with their spread beside the paper's; bars also as distances to the first arm."""
    heads = ["arm", "score", "sd", "lowest", "highest", "seeds", "paper"]
    first = study.arms[0]
    compared = study.form == "bars" and bool(rows) and rows[0].arm == first
    if compared:
        heads += [f"minus {first.name}", "the same in the paper"]
    lines = []
    for row in rows:
        scores, paper = row.scores, row.arm.paper
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        figures = (row.mean, spread, min(scores), max(scores))
        line = [row.arm.name, *map(number, figures), str(len(scores)), number(paper)]
        if compared:
            known = paper is not None and first.paper is not None
            gap = paper - first.paper if known else None  # type: ignore[operator]
            line += [number(row.mean - rows[0].mean, "+.1f"), number(gap, "+.1f")]
        lines.append(line)
    return grid_of(heads, lines)


def tasks_table(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Each task of each arm: means over the seeds of pre-training."""
    lines = [[row.arm.name, *(number(row.average(n)) for n in names)] for row in rows]
    return grid_of(["arm", *names], lines)


def costs_table(rows: Sequence[Row]) -> str:
    """What each arm was trained for."""
    heads = ["arm", "steps", "tokens", "FLOPs", "FLOPs by the paper's rules", "seconds a run"]
    lines = []
    for row in rows:
        one = row.cells[0]
        seconds = statistics.fmean(c["seconds"] for c in row.cells)
        costs = (one["tokens"], one["flops"], one["paper_flops"])
        figures = [f"{one['steps']:,}", *(f"{c:.3g}" for c in costs), f"{seconds:,.0f}"]
        lines.append([row.arm.name, *figures])
    return grid_of(heads, lines)


def conditions(
    study: Study, results: Sequence[Result], sources: Sequence[Source], command: str
) -> str:
    """How the numbers were made and what they may be compared with."""
    seeds = ", ".join(map(str, sorted({r["seed"] for r in results})))
    parts = [
        f"- Every arm trains for {study.budget:.4g} FLOPs by our count (its share of them where "
        "the arm names one), on the same text; with one seed, all arms read it in one order. The "
        "paper's rules count otherwise, so that arms which are equal here differ by them.",
        f"- Seeds of pre-training: {seeds}. `sd`, `lowest` and `highest` are over them; a "
        "difference that is not clearly larger may be chance.",
        f"- {score_sentence(sources)}",
    ]
    tuned = {source.name for source in sources if isinstance(source, Tuned)}
    if tuned != set(AVERAGED):
        parts.append(
            "- The paper's score is the mean of eight tasks of GLUE. Ours is another measure: "
            "compare the order and the distances of the arms, not the numbers."
        )
    if any(source.name == BLIMP for source in sources):
        parts.append(
            "- BLiMP asks a discriminator which sentence has more replaced tokens, and a masked "
            "language model which is less likely. These are two measures; and Replace MLM and "
            "All-Tokens MLM have never read the `[MASK]` by which they are asked."
        )
    failed = sum(len(r["scores"][name].get("failed", ())) for r in results for name in tuned)
    if failed:
        parts.append(f"- {failed} fine-tuning seeds learned nothing; they are counted in.")
    made = {f"{r['hardware']}, electra {r['version']}, torch {r['torch']}" for r in results}
    parts.append(f"- Made on {'; '.join(sorted(made))}.")
    return "\n".join(parts) + f"\n\n```bash\n{command}\n```\n"


def score_sentence(sources: Sequence[Source]) -> str:
    """What the column `score` is."""
    tuned = [source for source in sources if isinstance(source, Tuned)]
    if not tuned:
        return "The score is the accuracy on BLiMP, without fine-tuning; guessing gives 50."
    each = ", ".join(f"{source.name} ({source.task.metric})" for source in tuned)
    seeds = len(tuned[0].seeds)
    return (
        f"The score is the mean over {each}, all x 100, on their dev sets; of each task the median "
        f"of {seeds} fine-tuning {'seed' if seeds == 1 else 'seeds'}."
    )


def draw(study: Study, rows: Sequence[Row], path: Path) -> None:
    """Our scores, and the paper's in a panel of their own where it prints them."""
    require("matplotlib", "plot")
    from matplotlib.figure import Figure

    printed = [arm for arm in study.arms if arm.paper is not None]
    figure = Figure(figsize=(6.2 * (2 if printed else 1), 4.4), layout="constrained")
    panels = figure.subplots(1, 2 if printed else 1, squeeze=False)[0]
    points = [(row.arm, row.scores, row.cells[0]["flops"]) for row in rows]
    draw_panel(study, points, panels[0])
    shown = "bars" if study.form == "bars" else "lines"
    panels[0].set_title(f"ours, scale {study.scale.name}: {shown} the means, dots the seeds")
    if printed:
        figures = [(a, [float(a.paper or 0)], a.share * ELECTRA_SMALL.train) for a in printed]
        draw_panel(study, figures, panels[1])
        panels[1].set_title("paper")
    figure.suptitle(study.title)
    figure.savefig(path, dpi=120)


def draw_panel(study: Study, points: Sequence[tuple[Arm, list[float], float]], axes: Any) -> None:
    """Bars of the arms, or lines of arms, with a dot for each seed."""
    ticks = list(dict.fromkeys(arm.tick or arm.name for arm in study.arms))
    measured = study.axis == "FLOPs"
    lines: dict[str, list[tuple[float, float]]] = {}
    for arm, scores, flops in points:
        place = flops if measured else ticks.index(arm.tick or arm.name)
        mean, colour = statistics.fmean(scores), COLOURS[arm.line]
        dots = colour if study.form == "curve" else "#111827"
        axes.plot([place] * len(scores), scores, "o", color=dots, alpha=0.6, zorder=3)
        if study.form == "bars":
            axes.bar(place, mean, width=0.6, color=colour)
        lines.setdefault(arm.line, []).append((place, mean))
    if study.form == "curve":
        for line, places in lines.items():
            axes.plot(*zip(*places, strict=True), "-", color=COLOURS[line], label=line or None)
        if any(lines):
            axes.legend()
    every = [score for _, scores, _ in points for score in scores]
    if every:  # from zero on, nothing would be seen of what differs
        room = max(max(every) - min(every), 1.0)
        axes.set_ylim(min(every) - 0.5 * room, max(every) + 0.25 * room)
    if measured:
        axes.set_xscale("log")
    else:
        axes.set_xticks(range(len(ticks)), ticks)
    axes.set_xlabel("training FLOPs" if measured else study.axis)
    axes.set_ylabel("score (the axis does not begin at 0)" if study.form == "bars" else "score")
