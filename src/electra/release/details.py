"""What a model card says that a run does not know: a YAML file, all of it optional."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.config import from_yaml
from electra.errors import UserError
from electra.finetune.results import summary
from electra.jsonl import read_jsonl

LICENSE = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSource:
    """One source of the training text."""

    name: str = ""
    license: str = ""
    amount: str = ""
    """How much of it, such as 40 M tokens."""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A score from elsewhere, as a fraction."""

    task: str = ""
    metric: str = "accuracy"
    score: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores under the same conditions: a table of the card."""

    title: str = ""
    note: str = ""
    """How they were measured: settings, protocol, what they compare with."""
    file: str = ""
    """A `results.jsonl` of `electra glue` or `finetune`, relative to the YAML file."""
    scores: tuple[Score, ...] = ()
    """Scores that are in no such file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDetails:
    """The YAML file of `--card` of `electra release` and `electra export`."""

    language: str = ""
    """Code of the language, such as `en`; several with commas."""
    license: str = ""
    """Licence of the weights, an SPDX identifier such as `Apache-2.0`."""
    summary: str = ""
    """What the model is and for whom, in a sentence or two."""
    data: tuple[TextSource, ...] = ()
    """The training text."""
    data_note: str = ""
    """How the text was selected, cleaned and mixed."""
    datasets: tuple[str, ...] = ()
    """Names of the training data on the Hugging Face Hub."""
    base_model: str = ""
    """Name on the Hub of the model that it was trained from; without it, that of the run."""
    command: str = ""
    """The exact command; without it, an equivalent one is derived from the run."""
    commit: str = ""
    """Commit of this project that trained the model."""
    hardware: str = ""
    minutes: float = 0.0
    """Training time; without it, that of the run."""
    watts: float = 0.0
    """Mean power during training, for the estimate of the energy."""
    watts_note: str = ""
    """Where the power comes from, such as: mean of nvidia-smi, GPU only."""
    evaluations: tuple[Evaluation, ...] = ()
    finetuning: str = ""
    """Settings for fine-tuning with transformers that were found to work best."""
    embeddings: str = ""
    """What is known about sentence embeddings of this model."""
    limitations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """One evaluation with a summary over the seeds of each task."""

    title: str
    note: str
    rows: list[dict[str, Any]]
    is_suite: bool = False
    """Whether the mean over the tasks says something: for results of fine-tuning."""


def read_details(path: Path | None) -> CardDetails:
    """Read the YAML file; None gives empty details."""
    if path is None:
        return CardDetails()
    if not path.is_file():
        raise UserError(f"There is no file '{path}': name the YAML file with the card's details.")
    details = from_yaml(CardDetails, path.read_bytes(), str(path))
    for name in ("minutes", "watts"):
        if getattr(details, name) < 0:
            raise UserError(f"{path}: '{name}' is negative; give a positive number.")
    return details


def read_card(path: Path | None) -> tuple[CardDetails, list[ScoreTable]]:
    """The details of `--card` and their score tables, checked."""
    details = read_details(path)
    if details.license and not LICENSE.fullmatch(details.license):
        raise UserError(
            f"{path}: license '{details.license}' is no SPDX identifier: write one such as "
            "Apache-2.0 or CC-BY-SA-4.0."
        )
    return details, read_evaluations(details, path.parent if path else Path())


def read_evaluations(details: CardDetails, folder: Path) -> list[ScoreTable]:
    """The score tables; files of scores are relative to `folder`."""
    tables = []
    for evaluation in details.evaluations:
        scores: list[dict[str, Any]] = [
            {"task": s.task, "metric": s.metric, "score": s.score, "seed": s.seed}
            for s in evaluation.scores
        ]
        if evaluation.file:
            scores = read_scores(folder / evaluation.file) + scores
        if not scores:
            raise UserError(f"The evaluation '{evaluation.title}' has neither a file nor scores.")
        groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for line in scores:
            groups.setdefault((line["task"], line["metric"]), []).append({"failed": False} | line)
        rows = [summary(group) for group in groups.values()]
        suite = bool(evaluation.file)
        tables.append(
            ScoreTable(title=evaluation.title, note=evaluation.note, rows=rows, is_suite=suite)
        )
    return tables


def read_scores(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file, one for each task and seed."""
    lines = [line for line in read_jsonl(path) if isinstance(line, dict) and "seed" in line]
    keys = {"task", "metric", "score"}
    if not lines or not all(keys <= line.keys() for line in lines):
        raise UserError(
            f"'{path}' has no scores: name a results.jsonl whose lines have "
            f"{', '.join(sorted(keys))} and seed."
        )
    if any(not isinstance(line["score"], int | float) for line in lines):
        bad = next(line for line in lines if not isinstance(line["score"], int | float))
        raise UserError(f"'{path}': the score of {json.dumps(bad['task'])} is not a number.")
    return lines
