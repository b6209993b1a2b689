"""The models of the page: those of the command line, and the checkpoints of their runs."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.api import Model, load
from electra.errors import UserError
from electra.model_packages import RELEASED, installed_models

MAX_CHECKPOINTS = 20
"""Checkpoints of a run that are offered, the latest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A model and what it can do."""

    model: Model
    detects: bool = False
    """It has a discriminator whose outputs are probabilities."""
    proposes: bool = False
    """It has a generator."""
    scores: bool = False
    """It was trained as Electric."""
    task: str = ""
    """The kind of task of a fine-tuned model."""


def default_model() -> str:
    """Return the name of an installed model; without one there is nothing to play with."""
    names = sorted(installed_models())
    if names:
        return names[0]
    hint = next(iter(RELEASED.values()), "")
    install = f", or install one with  {hint}" if hint else ""
    raise UserError(
        "No model is installed: name one, as in  electra play runs/mine"
        f"{install}. A run, a checkpoint, a model folder or a Hub model will do."
    )


def open_models(names: Sequence[str], device: str | None = None) -> dict[str, Choice]:
    """Open the named models; errors appear here, before there is a page."""
    found: dict[str, Choice] = {}
    for name in names or [default_model()]:
        choice = find_abilities(load(name, device))
        label = _label(name, found)
        found[label] = choice
        for checkpoint in _checkpoints(name)[:-1]:
            step = int(checkpoint.name.removeprefix("step-"))
            older = Choice(
                model=load(checkpoint, device),
                detects=choice.detects,
                proposes=choice.proposes,
                scores=choice.scores,
            )
            found[f"{label}, step {step:,}"] = older
    return found


def find_abilities(model: Model) -> Choice:
    """Try what a model can do; this also loads its networks."""
    if model.task is not None:
        return Choice(model=model, task=model.task.kind)
    detects = proposes = scores = False
    problem = UserError("")
    try:
        model.detect("a")
        detects = True
    except UserError as error:
        problem = error
    with contextlib.suppress(UserError):
        model.fill("[MASK]")
        proposes = True
    if not detects:
        with contextlib.suppress(UserError):
            model.score(["a"])
            scores = True
    if not detects and not proposes and not scores:
        raise problem
    return Choice(model=model, detects=detects, proposes=proposes, scores=scores)


def _label(name: str, taken: dict[str, Choice]) -> str:
    """The last part of a path; the whole of it where that is not unique."""
    short = Path(name).name or name
    if short in taken:
        short = name
    number = 2
    label = short
    while label in taken:
        label = f"{short} ({number})"
        number += 1
    return label


def _checkpoints(name: str) -> list[Path]:
    found = sorted((Path(name).expanduser() / "checkpoints").glob("step-*"))
    return found[-MAX_CHECKPOINTS:]
