"""How a trained cell is scored: tasks that it is fine-tuned on, and BLiMP without fine-tuning."""

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

from electra.config import to_dict
from electra.errors import UserError
from electra.finetune.glue import select_tasks
from electra.finetune.probe import Network, probe
from electra.finetune.results import digest, summary
from electra.finetune.run import HARDWARE_SETTINGS, finetune
from electra.finetune.settings import FinetuneConfig
from electra.model_paths import resolve_model
from electra.tasks.blimp import Pair, load_blimp
from electra.tasks.examples import Task
from electra.tasks.glue import load_glue, plain, present
from electra.tasks.load import load_task

BLIMP = "blimp"
Scores = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Tuned:
    """A task with its fine-tuning seeds."""

    task: Task
    seeds: Sequence[int]
    config: FinetuneConfig

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def warnings(self) -> Sequence[str]:
        return self.task.warnings

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What the score depends on, besides the model."""
        settings = {k: v for k, v in to_dict(self.config).items() if k not in HARDWARE_SETTINGS}
        return {"data": digest(self.task), "seeds": list(self.seeds), "settings": settings}

    def ask(self, run: Path, console: Console) -> dict[str, Any]:
        """Median and spread over the fine-tuning seeds."""
        folder = run / "scores" / self.name
        found = summary(finetune(str(run), self.task, folder, self.seeds, self.config, console))
        return {"score": found["median"], **found, "origin": self.origin}


@dataclass(frozen=True)
class Probed:
    """Pairs of sentences, of which a model should prefer the right one."""

    pairs: Sequence[Pair]

    @property
    def name(self) -> str:
        return BLIMP

    @property
    def warnings(self) -> Sequence[str]:
        return ()

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What the score depends on, besides the model."""
        text = repr(self.pairs).encode(errors="surrogatepass")
        return {"data": hashlib.blake2b(text, digest_size=8).hexdigest(), "pairs": len(self.pairs)}

    def ask(self, run: Path, console: Console) -> dict[str, Any]:
        """Accuracy by the verdicts of a discriminator, or by the likelihood of another network."""
        kept = resolve_model(str(run), "encoder")
        network: Network = "discriminator" if kept.name == "discriminator" else "generator"
        found = probe(str(kept), self.pairs, network, console)
        return {
            "score": sum(p.accuracy * p.pairs for p in found) / len(self.pairs),
            "metric": "accuracy",
            "network": network,
            "phenomena": {p.phenomenon: p.accuracy for p in found},
            "origin": self.origin,
        }


Source = Tuned | Probed


def headline(scores: Scores) -> float:
    """The one score of a cell: the mean of its fine-tuned tasks, or else BLiMP."""
    tuned = [each["score"] for name, each in scores.items() if name != BLIMP]
    return statistics.fmean(tuned) if tuned else float(scores[BLIMP]["score"])


def open_sources(
    *,
    glue: Path | None,
    tasks: Sequence[str],
    task: str | None,
    task_data: Path | None,
    blimp: Path | None,
    blimp_pairs: int,
    seeds: Sequence[int],
    config: FinetuneConfig,
) -> list[Source]:
    """What a study is scored by; at least one of GLUE, a task and BLiMP."""
    if (task is None) != (task_data is None):
        raise UserError("--task and --task-data belong together: give both.")
    if tasks and glue is None:
        raise UserError("--tasks chooses among the tasks of GLUE: name their folder with --glue.")
    loaded = []
    if glue is not None:
        names = select_tasks(present(glue), [plain(name) for name in tasks], False, glue)
        loaded += [load_glue(name, glue) for name in names]
    if task is not None and task_data is not None:
        loaded.append(load_task(task, task_data))
    found: list[Source] = [Tuned(each, seeds, config) for each in loaded]
    if blimp is not None:
        found.append(Probed(first_pairs(load_blimp(blimp), blimp_pairs)))
    if not found:
        raise UserError(
            "A study needs something to score its models by: give --glue DIR, --blimp DIR, or "
            "--task NAME with --task-data."
        )
    names = [source.name for source in found]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"The score '{twice}' is asked for twice: leave one of them out.")
    return found


def first_pairs(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """At most so many pairs of each paradigm; 0 means all."""
    seen: dict[str, int] = {}
    kept = []
    for pair in pairs:
        seen[pair.paradigm] = seen.get(pair.paradigm, 0) + 1
        if not most or seen[pair.paradigm] <= most:
            kept.append(pair)
    return kept
