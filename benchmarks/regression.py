"""Golden loss curves, and a comparison of two commits or two layouts.

    python benchmarks/regression.py record cpu      # five runs -> benchmarks/golden/cpu.json
    python benchmarks/regression.py check cpu       # one run against that file
    python benchmarks/regression.py compare --commits main . --recipe toy --steps 100
    python benchmarks/regression.py compare "" train.grad_accumulation=4 "torchrun 2"

Each run is a process of its own: `electra pretrain` with the source of a commit, on the same text
and with the same seed. docs/regression.md explains the tolerance.
"""

import json
import math
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from electra.config import override
from electra.device import device_name
from electra.errors import UserError
from electra.recipes import recipe as find_recipe
from electra.train.metrics_log import read_metrics

ROOT = Path(__file__).parents[1]
GOLDEN = Path(__file__).with_name("golden")
WINDOW = 10
"""Curves are compared by their means over so many steps."""
SIGMAS, POOL = 5, 5
"""A window may differ by five standard deviations of repeated runs, pooled over five windows on
each side."""
FLOORS = {"mlm_loss": 4e-3, "detection_loss": 8e-3, "gradient_norm": 2e-2}
"""What is compared, and the relative difference that is always allowed: processors and versions of
torch round differently, so that now and then the generator samples another token."""
WORKING_TREE = "."
"""Stands for a commit: the source as it is now, with changes that are not committed."""

Curves = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Kind:
    """A device kind with a golden curve."""

    recipe: str
    settings: tuple[str, ...]
    repeats: tuple[str, ...]
    """What each of the five runs adds: settings, and environment variables in upper case. None of
    it changes what is computed, only the order of additions."""
    words: int = 200
    """Of the synthetic text: few, so that a short run learns them."""


KINDS = {
    "cpu": Kind(
        "toy",
        ("train.device=cpu",),
        (
            "train.threads=1",
            "train.threads=2",
            "train.grad_accumulation=4",
            # Other processors have other instructions.
            "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_CBWR=AVX2",
            "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 MKL_CBWR=COMPATIBLE",
        ),
    ),
    # On a GPU runs differ by themselves: atomic additions come in any order.
    "h200": Kind("paper.small", ("train.device=cuda",), ("",) * 5, words=2000),
}
STEPS = 300


@dataclass(frozen=True)
class Golden:
    """Means over windows of steps, averaged over five runs, with their standard deviations."""

    recipe: str
    steps: int
    made: dict[str, str]
    mean: dict[str, list[float]]
    std: dict[str, list[float]]

    def tolerance(self, name: str) -> list[float]:
        """The relative difference that each window may have.

        Five runs say little about the spread of one window, so it is pooled with its neighbours:
        the root mean square of their relative standard deviations.
        """
        squares = [(s / m) ** 2 for s, m in zip(self.std[name], self.mean[name], strict=True)]
        near = [squares[max(0, i - POOL) : i + POOL + 1] for i in range(len(squares))]
        return [max(SIGMAS * statistics.fmean(some) ** 0.5, FLOORS[name]) for some in near]


@dataclass(frozen=True)
class Arm:
    """How to run: a source, settings, and a number of processes."""

    name: str
    source: Path
    settings: tuple[str, ...] = ()
    processes: int = 1
    variables: tuple[str, ...] = ()
    """Of the environment, as `NAME=value`."""


@dataclass(frozen=True)
class Run:
    """What a run is compared by: its losses at each step, its speed, and what computed it."""

    curves: Curves
    tokens_per_second: float
    kernels: str


def windows(curves: Curves) -> dict[str, list[float]]:
    """Means over windows of steps; the last window may be shorter."""
    return {
        name: [statistics.fmean(values[i : i + WINDOW]) for i in range(0, len(values), WINDOW)]
        for name, values in curves.items()
    }


def summarise(runs: Sequence[Curves], recipe: str, made: dict[str, str]) -> Golden:
    """The golden curve of repeated runs."""
    means = [windows(run) for run in runs]
    columns = {name: list(zip(*(m[name] for m in means), strict=True)) for name in means[0]}
    return Golden(
        recipe,
        len(next(iter(runs[0].values()))),
        made,
        {name: [round(statistics.fmean(c), 6) for c in found] for name, found in columns.items()},
        {name: [round(statistics.stdev(c), 7) for c in found] for name, found in columns.items()},
    )


def compare(found: Curves, expected: Curves, golden: Golden, scale: float = 1.0) -> list[str]:
    """The windows that differ by more than `scale` times the tolerance, as sentences.

    Windows after the end of the golden curve have the tolerance of its last one.
    """
    outside = []
    for name, values in expected.items():
        allowed = golden.tolerance(name)
        allowed += allowed[-1:] * (len(values) - len(allowed))
        for number, (a, b) in enumerate(zip(found[name], values, strict=True)):
            apart, limit = abs(a - b) / abs(b), scale * allowed[number]
            if not apart <= limit:  # NaN is outside
                first = number * WINDOW + 1
                outside.append(
                    f"{name} of steps {first} to {first + WINDOW - 1} is {a:.4f}, not {b:.4f}: "
                    f"{apart:.2%} apart, where {limit:.2%} is allowed."
                )
    return outside


def read_golden(kind: str) -> Golden:
    """The stored curve of a device kind."""
    path = GOLDEN / f"{kind}.json"
    if not path.is_file():
        raise UserError(f"{path.name} is missing: python benchmarks/regression.py record {kind}")
    return Golden(**json.loads(path.read_text(encoding="utf-8")))


def synthetic_text(documents: int, words: int, seed: int = 0) -> str:
    """Documents of made-up words; each word has four possible successors."""
    rng = random.Random(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    names: dict[str, list[str]] = {}
    while len(names) < words:
        names["".join(rng.choices(syllables, k=rng.randint(1, 3)))] = []
    for successors in names.values():
        successors += rng.choices(list(names), k=4)
    blocks = []
    for _ in range(documents):
        word, lines = rng.choice(list(names)), []
        for _ in range(rng.randint(3, 8)):
            line = []
            for _ in range(rng.randint(6, 14)):
                word = rng.choices(names[word], weights=(8, 4, 2, 1))[0]
                line.append(word)
            lines.append(" ".join(line) + " .")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def source_of(commit: str, folder: Path) -> Path:
    """The folder `src` of a commit, written below `folder`."""
    if commit == WORKING_TREE:
        return ROOT / "src"
    done = subprocess.run(["git", "-C", str(ROOT), "archive", commit, "src"], capture_output=True)
    if done.returncode:
        raise UserError(f"git finds no folder src in a commit '{commit}'.")
    folder.mkdir()
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder / "src"


def electra(
    source: Path, *arguments: object, processes: int = 1, variables: Sequence[str] = ()
) -> str:
    """Run the command line of a source; returns what it prints."""
    launcher = ("torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m")
    command = [sys.executable, "-m", *(launcher if processes > 1 else ()), "electra"]
    given = dict(variable.split("=", 1) for variable in variables)
    env = {**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200", **given}
    done = subprocess.run([*command, *map(str, arguments)], env=env, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        said = errors[0].removeprefix("error: ") if errors else done.stderr[-2000:]
        raise UserError(f"'electra {shlex.join(map(str, arguments))}' failed: {said}")
    return done.stdout


def prepare(source: Path, folder: Path, lengths: str, words: int = 200) -> Path:
    """Shards of synthetic text, with rows of these lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    text, tokenizer, shards = folder / "text.txt", folder / "tokenizer", folder / "shards"
    text.write_text(synthetic_text(10 * words, words), encoding="utf-8")
    electra(source, "tokenizer", "train", text, "--out", tokenizer, "--vocab-size", words)
    electra(
        *(source, "prepare", text, "--tokenizer", tokenizer, "--out", shards),
        *("--length", lengths, "--held-out", 0.05, "--workers", 1),
    )
    return shards


def lengths_of(recipe: str, settings: Sequence[str]) -> str:
    """The sequence lengths of a recipe, as `electra prepare --length` takes them."""
    return ",".join(map(str, override(find_recipe(recipe), settings).data.lengths))


def train(arm: Arm, recipe: str, steps: int, settings: Sequence[str], shards: Path) -> Run:
    """Run an arm in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        electra(
            *(arm.source, "pretrain", recipe, "--data", shards, "--out", out),
            *("--budget", f"{steps}steps", "train.report_every=1", *settings, *arm.settings),
            processes=arm.processes,
            variables=arm.variables,
        )
        events = read_metrics(out)
    lines = [line for line in events if line["kind"] == "train"]
    curves = {name: [line[name] for line in lines] for name in FLOORS if name in lines[0]}
    speeds = [line["tokens_per_second"] for line in lines[steps // 2 :]]
    # Version 0.1.0 has no kernels
    return Run(curves, statistics.median(speeds), events[0].get("kernels", "plain modules"))


def describe(name: str, first: Run, other: Run, golden: Golden, console: Console) -> bool:
    """Print how a run differs from the first one; returns whether it is within the tolerance."""
    one, two = windows(first.curves), windows(other.curves)
    table = Table("from step", title=name, title_justify="left")
    for label in one:
        for heading in (label, "", "apart"):
            table.add_column(heading, justify="right")
    rows = len(next(iter(one.values())))
    for row in range(0, rows, math.ceil(rows / 12)):
        pairs = [(one[label][row], two[label][row]) for label in one]
        cells = [(f"{a:.4f}", f"{b:.4f}", f"{abs(b - a) / abs(a):.2%}") for a, b in pairs]
        table.add_row(str(row * WINDOW + 1), *(cell for three in cells for cell in three))
    console.print(table)
    for label, values in first.curves.items():
        apart = [abs(a - b) / abs(a) for a, b in zip(values, other.curves[label], strict=True)]
        begins = next((f"from step {step}" for step, d in enumerate(apart, 1) if d), "nowhere")
        console.print(f"{label} differs {begins}, in a step by at most {100 * max(apart):.2g} %")
    console.print(f"speed: {other.tokens_per_second / first.tokens_per_second:.2f} times")
    if other.kernels != first.kernels:
        console.print(f"kernels: {other.kernels}, where the first has {first.kernels}")
    outside = compare(two, one, golden, scale=2**0.5)  # both runs have their noise
    for line in outside[:6]:
        console.print(line)
    console.print("verdict: DIFFERENT" if outside else "verdict: the same within the tolerance")
    return not outside


HERE = "h200" if torch.cuda.is_available() else "cpu"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def record(kind: str) -> None:
    """Write the golden curve of a device kind, from five runs."""
    curves = []
    with tempfile.TemporaryDirectory() as folder:
        known, shards = prepare_kind(kind, Path(folder))
        for repeat in known.repeats:
            words = repeat.split()
            settings = tuple(word for word in words if not word[0].isupper())
            variables = tuple(word for word in words if word[0].isupper())
            arm = Arm(repeat, ROOT / "src", settings, variables=variables)
            curves.append(train(arm, known.recipe, STEPS, known.settings, shards).curves)
            print(f"run {len(curves)} of {len(known.repeats)} {repeat}", file=sys.stderr)
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    made = {
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "hardware": device_name(torch.device("cpu" if kind == "cpu" else "cuda")),
        "torch": version("torch"),
    }
    text = json.dumps(asdict(summarise(curves, known.recipe, made)))
    text = text.replace('], "', '],\n"').replace('}, "', '},\n"')  # one list in a line
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{kind}.json").write_text(text + "\n", encoding="utf-8")


@app.command()
def check(kind: str) -> None:
    """Train once, and compare the losses with the golden curve of a device kind."""
    golden = read_golden(kind)
    with tempfile.TemporaryDirectory() as folder:
        known, shards = prepare_kind(kind, Path(folder))
        arm = Arm(WORKING_TREE, ROOT / "src")
        run = train(arm, known.recipe, golden.steps, known.settings, shards)
    outside = compare(windows(run.curves), golden.mean, golden)
    print(f"Kernels: {run.kernels}.")
    print("\n".join(outside) or f"The same as {kind}.json within the tolerance.")
    raise typer.Exit(bool(outside))


def prepare_kind(kind: str, folder: Path) -> tuple[Kind, Path]:
    """A device kind and its shards."""
    if kind not in KINDS:
        raise UserError(f"There is no device kind '{kind}', only {', '.join(KINDS)}.")
    known = KINDS[kind]
    lengths = lengths_of(known.recipe, known.settings)
    return known, prepare(ROOT / "src", folder, lengths, known.words)


@app.command("compare")
def compare_runs(
    layouts: Annotated[list[str], typer.Argument(help="'key=value …', 'torchrun N …' or ''.")] = [],  # noqa: B006
    commits: Annotated[
        tuple[str, str], typer.Option(help="Two commits, the older one first; '.': working tree.")
    ] = (WORKING_TREE, WORKING_TREE),
    recipe: Annotated[str, typer.Option(help="A recipe, or a YAML file.")] = "toy",
    steps: Annotated[int, typer.Option(min=2, help="Length of each run.")] = 100,
    settings: Annotated[list[str], typer.Option("--set", help="key=value for all runs.")] = [],  # noqa: B006
    data: Annotated[Path | None, typer.Option(help="Shards; default: of synthetic text.")] = None,
    tolerance: Annotated[str, typer.Option(help="Device kind with a golden curve.")] = HERE,
) -> None:
    """Compare two commits or several layouts, each with the first; exit code 1 if one differs."""
    golden = read_golden(tolerance)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = {c: source_of(c, folder / f"source-{i}") for i, c in enumerate(commits)}
        arms = [
            parse_layout(text, commit, source)
            for commit, source in sources.items()
            for text in layouts or [""]
        ]
        if len(arms) < 2:
            raise UserError("There is nothing to compare: give --commits A B or two layouts.")
        # By the source of the first arm: later versions read the shards of earlier ones
        shards = data or prepare(arms[0].source, folder, lengths_of(recipe, settings))
        runs = [train(arm, recipe, steps, settings, shards) for arm in arms]
    same = [
        describe(f"{arms[0].name}  ->  {arm.name}", runs[0], run, golden, Console(width=120))
        for arm, run in zip(arms[1:], runs[1:], strict=True)
    ]
    raise typer.Exit(not all(same))


def parse_layout(text: str, commit: str, source: Path) -> Arm:
    """`torchrun N` and settings, either or both, with the source of a commit."""
    words, processes = shlex.split(text), 1
    if words[:1] == ["torchrun"]:
        if not words[1:] or not words[1].isdigit():
            raise UserError(f"'{text}' is not a layout: write 'torchrun N key=value …'.")
        processes, words = int(words[1]), words[2:]
    return Arm(f"{commit} {text}".strip(), source, tuple(words), processes)


if __name__ == "__main__":
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
