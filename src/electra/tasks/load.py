"""Load a task by name: GLUE, SQuAD, CoNLL, or a kind of task for your own files."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from electra.errors import UserError, nearest
from electra.model_packages import installed_models
from electra.tasks.conll import load_tags
from electra.tasks.examples import Task
from electra.tasks.glue import GLUE, load_glue, normalize_name
from electra.tasks.squad import load_squad
from electra.tasks.squad_files import Columns
from electra.tasks.user_files import load_user_task

SQUAD = ("squad1", "squad2")
CONLL = ("conll2000", "conll2003")
MIN_STEPS = 120
"""Steps that your own files get at least: three epochs of 200 examples are 18, which is too few to
learn from (docs/finetune.md has the measurement). The paper's tasks keep the paper's epochs."""


def load_task(
    name: str,
    data: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> Task:
    """Load a task; `text`, `pair` and `label` are columns of your own files."""
    typed, name = name, normalize_name(name)  # accepts CoLA and STS-B
    if name in USER_TASKS:
        task = USER_TASKS[name](data, text=text, pair=pair, label=label)
        return replace(task, min_steps=MIN_STEPS)
    if name not in (*GLUE, *SQUAD, *CONLL):
        known = [*GLUE, *SQUAD, *CONLL, *USER_TASKS]
        is_model = Path(typed).exists() or typed in installed_models()
        hint = "name the model first and then the task." if is_model else ""
        raise UserError(f"There is no task '{typed}': {hint or nearest(name, known)}")
    options = {"--text": text, "--pair": pair, "--label": label}
    if given := [option for option, value in options.items() if value is not None]:
        raise UserError(f"{given[0]} is for your own files: leave it out for {name}.")
    if name in GLUE:
        return load_glue(name, data)
    return load_squad(name, data) if name in SQUAD else load_tags(name, data)


def load_user_tags(data: Path, *, text: str | None, pair: str | None, label: str | None) -> Task:
    """Load words with tags from your own file."""
    if pair is not None:
        raise UserError("--pair names a second text, which the task tag does not have: omit it.")
    return load_tags("tag", data, text=text, label=label)


def load_user_questions(
    data: Path, *, text: str | None, pair: str | None, label: str | None
) -> Task:
    """Load questions from your own file."""
    named = {"question": text, "context": pair, "answer": label}
    columns = {key: value for key, value in named.items() if value is not None}
    return replace(load_squad("qa", data, columns=Columns(**columns)), columns=columns)


USER_TASKS: dict[str, Callable[..., Task]] = {
    "classify": partial(load_user_task, "classify"),
    "regress": partial(load_user_task, "regress"),
    "pair": partial(load_user_task, "pair"),
    "choice": partial(load_user_task, "choice"),
    "tag": load_user_tags,
    "qa": load_user_questions,
}
"""What loads your own files, by the name of the task: called with the path and the columns."""
