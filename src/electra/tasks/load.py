"""Load a task by name: GLUE, SQuAD, CoNLL, or a kind of task for your own files."""

from dataclasses import replace
from pathlib import Path

from electra.errors import UserError, nearest
from electra.tasks.conll import load_tags
from electra.tasks.examples import Task
from electra.tasks.glue import GLUE, load_glue, normalize_name
from electra.tasks.squad import load_squad
from electra.tasks.squad_files import Columns
from electra.tasks.user_files import load_user_task

SQUAD = ("squad1", "squad2")
CONLL = ("conll2000", "conll2003")
USER_TASKS = ("classify", "regress", "pair", "choice", "tag", "qa")
TASKS = (*GLUE, *SQUAD, *CONLL, *USER_TASKS)


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
    if name not in TASKS:
        raise UserError(f"There is no task '{typed}': {nearest(name, list(TASKS))}")
    options = {"--text": text, "--pair": pair, "--label": label}
    given = [option for option, value in options.items() if value is not None]
    if given and name not in USER_TASKS:
        raise UserError(f"{given[0]} is for your own files: leave it out for {name}.")
    if name in GLUE:
        return load_glue(name, data)
    if name in SQUAD:
        return load_squad(name, data)
    if name == "tag" and pair is not None:
        raise UserError("--pair names a second text, which the task tag does not have: omit it.")
    if name == "tag" or name in CONLL:
        return load_tags(name, data, text=text, label=label)
    if name == "qa":
        named = {"question": text, "context": pair, "answer": label}
        columns = {key: value for key, value in named.items() if value is not None}
        task = load_squad(name, data, columns=Columns(**columns))
        return replace(task, columns=columns)
    return load_user_task(name, data, text=text, pair=pair, label=label)  # type: ignore[arg-type]
