"""Do the fast step and the plain step learn alike? Loss curves of both over the same batches.

    python benchmarks/curves.py --data shards --out curves.json
    python benchmarks/curves.py --draw curves.json docs/curves.svg

The fast step is a CUDA graph of the package's kernels, in bf16; the plain one is the modules as
they are written, in bf16 by autocast, launched one by one. With one seed both begin with the same
weights and see the same rows with the same masks at the same rates; samples and dropout differ.
Each runs with several seeds; the difference between the two steps is compared with that between
two seeds of the same step.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from rich.console import Console

from electra.config import override
from electra.recipes import recipe
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import start
from electra.train.settings import PretrainConfig

STEPS = {"plain": ("train.cuda_graph=false", "train.fused_kernels=off"), "fast": ()}
LOSSES = ("mlm_loss", "detection_loss")
WINDOW = 20
"""Steps over which a curve is averaged before curves are compared."""


def curve(config: PretrainConfig, changes: tuple[str, ...]) -> dict[str, list[float]]:
    """The losses of each step of a run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        start(override(config, list(changes)), out, Console(stderr=True, quiet=True))
        lines = [line for line in read_metrics(out) if line["kind"] == "train"]
    return {name: [line[name] for line in lines] for name in LOSSES}


def smooth(values: list[float]) -> list[float]:
    """Means of windows."""
    starts = range(0, len(values) - WINDOW + 1, WINDOW)
    return [statistics.fmean(values[i : i + WINDOW]) for i in starts]


def apart(pairs: Iterable[tuple[list[float], list[float]]]) -> list[float]:
    """Relative differences of curves, window by window."""
    return [abs(a - b) / b for one, two in pairs for a, b in zip(one, two, strict=True)]


def compare(found: dict[str, list[dict[str, list[float]]]]) -> dict[str, dict[str, float]]:
    """For each loss: how far the two steps are apart, and how far two seeds of one step are."""
    answer = {}
    for name in LOSSES:
        curves = {kind: [smooth(run[name]) for run in runs] for kind, runs in found.items()}
        steps = apart(zip(curves["fast"], curves["plain"], strict=True))
        seeds = apart(pair for runs in curves.values() for pair in pairwise(runs))
        answer[name] = {
            "between_steps_mean": statistics.fmean(steps),
            "between_steps_largest": max(steps),
            "between_seeds_mean": statistics.fmean(seeds),
            "between_seeds_largest": max(seeds),
        }
    return answer


def draw(source: Path, target: Path) -> None:
    """The curves as a figure."""
    import matplotlib.pyplot as plt

    found = json.loads(source.read_text())["curves"]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    colours = {"plain": "tab:gray", "fast": "tab:red"}
    for axis, name in zip(axes, LOSSES, strict=True):
        for kind, runs in found.items():
            for number, run in enumerate(runs):
                label = f"{kind} step" if not number else None
                axis.plot(run[name], color=colours[kind], lw=0.8, alpha=0.7, label=label)
        axis.set(xlabel="step", title=name.replace("_", " "))
    axes[0].legend(frameon=False)
    figure.savefig(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--recipe", default="paper.small")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, nargs=2)
    parser.add_argument("settings", nargs="*", help="key=value")
    args = parser.parse_intermixed_args()
    if args.draw:
        draw(*args.draw)
        return
    fixed = [f"data.folder={args.data}", f"train.budget={args.steps}steps", "train.report_every=1"]
    config = override(recipe(args.recipe), [*fixed, *args.settings])
    found: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in STEPS}
    for number in range(args.runs):
        seeded = replace(config, train=replace(config.train, seed=number))
        for kind, changes in STEPS.items():
            found[kind].append(curve(seeded, changes))
    result = {"settings": args.settings, "steps": args.steps, **compare(found)}
    print(json.dumps(result))
    if args.out:
        args.out.write_text(json.dumps(result | {"curves": found}))


if __name__ == "__main__":
    main()
