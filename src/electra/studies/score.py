"""How a study scores its runs: by fine-tuning on tasks, and by BLiMP without fine-tuning."""

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
from electra.tasks.glue import available_tasks, load_glue, normalize_name
from electra.tasks.load import load_task

BLIMP = "blimp"
Scores = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class TaskScorer:
    """Fine-tunes a run on a task with several seeds; the score is their median."""

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
        """What the score depends on besides the model."""
        return {
            "data": digest(self.task),
            "seeds": list(self.seeds),
            "settings": score_settings(self.config),
        }

    def score(self, run: Path, console: Console) -> dict[str, Any]:
        """Fine-tune a run and return the median and the spread over the seeds."""
        folder = run / "scores" / self.name
        found = summary(finetune(str(run), self.task, folder, self.seeds, self.config, console))
        return {"score": found["median"], **found, "origin": self.origin}


@dataclass(frozen=True)
class BlimpScorer:
    """Asks a run which sentence of a pair is acceptable; the score is the accuracy."""

    pairs: Sequence[Pair]

    @property
    def name(self) -> str:
        return BLIMP

    @property
    def warnings(self) -> Sequence[str]:
        return ()

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What the score depends on besides the model."""
        text = repr(self.pairs).encode(errors="surrogatepass")
        return {"data": hashlib.blake2b(text, digest_size=8).hexdigest(), "pairs": len(self.pairs)}

    def score(self, run: Path, console: Console) -> dict[str, Any]:
        """Return the accuracy of the discriminator, or of the masked language model."""
        folder = resolve_model(str(run), "encoder")
        network: Network = "discriminator" if folder.name == "discriminator" else "generator"
        found = probe(str(folder), self.pairs, [network], console)[network]
        return {
            "score": sum(p.accuracy * p.pairs for p in found) / len(self.pairs),
            "metric": "accuracy",
            "network": network,
            "phenomena": {p.phenomenon: p.accuracy for p in found},
            "origin": self.origin,
        }


Scorer = TaskScorer | BlimpScorer


def score_settings(config: FinetuneConfig) -> dict[str, Any]:
    """Return the settings of fine-tuning that a score depends on."""
    return {k: v for k, v in to_dict(config).items() if k not in HARDWARE_SETTINGS}


def main_score(scores: Scores) -> float:
    """Return the one score of a run: the mean of its fine-tuned tasks, or else BLiMP."""
    tasks = [each["score"] for name, each in scores.items() if name != BLIMP]
    return statistics.fmean(tasks) if tasks else float(scores[BLIMP]["score"])


def build_scorers(
    *,
    glue: Path | None,
    tasks: Sequence[str],
    task: str | None,
    task_data: Path | None,
    blimp: Path | None,
    blimp_pairs: int,
    seeds: Sequence[int],
    config: FinetuneConfig,
) -> list[Scorer]:
    """Load the tasks that score a study; at least one of GLUE, a task and BLiMP."""
    if (task is None) != (task_data is None):
        raise UserError("--task and --task-data belong together: give both.")
    if tasks and glue is None:
        raise UserError("--tasks selects tasks of GLUE: give their folder with --glue.")
    loaded = []
    if glue is not None:
        names = select_tasks(
            available_tasks(glue), [normalize_name(name) for name in tasks], False, glue
        )
        loaded += [load_glue(name, glue) for name in names]
    if task is not None and task_data is not None:
        loaded.append(load_task(task, task_data))
    scorers: list[Scorer] = [TaskScorer(each, seeds, config) for each in loaded]
    if blimp is not None:
        scorers.append(BlimpScorer(limit_pairs(load_blimp(blimp), blimp_pairs)))
    if not scorers:
        raise UserError(
            "A study needs something to score its models by: give --glue DIR, --blimp DIR, or "
            "--task NAME with --task-data."
        )
    names = [scorer.name for scorer in scorers]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"The score '{twice}' is given twice: leave one of them out.")
    return scorers


def limit_pairs(pairs: Sequence[Pair], most: int) -> list[Pair]:
    """Return at most `most` pairs of each paradigm; 0 means all."""
    seen: dict[str, int] = {}
    kept = []
    for pair in pairs:
        seen[pair.paradigm] = seen.get(pair.paradigm, 0) + 1
        if not most or seen[pair.paradigm] <= most:
            kept.append(pair)
    return kept
