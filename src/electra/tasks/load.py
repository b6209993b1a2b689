"""Tasks by name: GLUE's, SQuAD, the CoNLL's, and those for your own files."""

from dataclasses import replace
from pathlib import Path

from electra.errors import UserError, nearest
from electra.tasks.conll import load_tags
from electra.tasks.examples import Task
from electra.tasks.glue import GLUE, load_glue, plain
from electra.tasks.own import load_own
from electra.tasks.squad import load_squad
from electra.tasks.squad_files import Columns

SQUAD = ("squad1", "squad2")
CONLL = ("conll2000", "conll2003")
OWN = ("classify", "regress", "pair", "choice", "tag", "qa")
TASKS = (*GLUE, *SQUAD, *CONLL, *OWN)


def load_task(
    name: str,
    data: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> Task:
    """A task with its examples; the columns are those of your own files."""
    typed, name = name, plain(name)  # CoLA and STS-B are known, too
    if name not in TASKS:
        raise UserError(f"There is no task '{typed}': {nearest(name, list(TASKS))}")
    options = {"--text": text, "--pair": pair, "--label": label}
    given = [option for option, value in options.items() if value is not None]
    if given and name not in OWN:
        raise UserError(f"{given[0]} is for your own files; the columns of {name} are known.")
    if name in GLUE:
        return load_glue(name, data)
    if name in SQUAD:
        return load_squad(name, data)
    if name == "tag" and pair is not None:
        raise UserError("--pair is for a second text, which tags do not have: leave it out.")
    if name == "tag" or name in CONLL:
        return load_tags(name, data, text=text, label=label)
    if name == "qa":
        named = {"question": text, "context": pair, "answer": label}
        columns = {key: value for key, value in named.items() if value is not None}
        task = load_squad(name, data, columns=Columns(**columns))
        return replace(task, columns=columns)
    return load_own(name, data, text=text, pair=pair, label=label)  # type: ignore[arg-type]
