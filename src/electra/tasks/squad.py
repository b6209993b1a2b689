"""Questions about a text whose answers are spans of it, as a task."""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra.errors import UserError
from electra.tasks.examples import Answer, Question, Task
from electra.tasks.folder import find_folder, split_files
from electra.tasks.split import set_aside
from electra.tasks.squad_files import ENDINGS, Columns, Raw, read_questions

LENGTH = 512
EPOCHS = 2
VERSIONS = {"squad1": "v1.1", "squad2": "v2.0"}
MOVED = "answers are not at their answer_start; the nearest place with their text was taken."
SEVERAL = "answers without a start occur more than once; the first place was taken."

NOWHERE = -1
"""The start of an answer that counts in the score but has no place in the context."""


def load_squad(name: str, data: Path, *, columns: Columns | None = None) -> Task:
    """Question answering with a file, or a folder with train… and dev…, or the folder above it.

    `squad1` and `squad2` choose among files of v1.1 and v2.0. `columns` are those of CSV, TSV and
    JSON lines of your own.
    """
    columns = columns or Columns()
    folder = find_folder(data, [name, "squad"] if name in VERSIONS else [name])
    files = split_files(folder, endings=ENDINGS, version=VERSIONS.get(name, ""))
    splits: dict[str, list[Question]] = {}
    notes: list[str] = []
    for split, path in files.items():
        raws, skipped = read_questions(path, columns)
        splits[split], moved = to_questions(path, raws, training=split == "train")
        notes += [*skipped, *moved]
        if split != "train":
            refuse_twins(path, splits[split])
    if "dev" not in splits:
        # By context, so that no text is in both.
        train, dev, note = set_aside(files["train"], splits["train"], lambda each: (each.context,))
        splits |= {"train": train, "dev": dev}
        refuse_twins(files["train"], dev)
        notes.append(note)
    return Task(
        name=name,
        kind="qa",
        splits=splits,
        metric="f1",
        length=LENGTH,
        epochs=EPOCHS,
        warnings=tuple(notes),
    )


def more_questions(
    path: Path, *, columns: Columns | None = None, content: str | None = None
) -> list[Question]:
    """The questions of another file; their answers may be missing.

    `content` is the text of the file if you have read it already.
    """
    raws, skipped = read_questions(path, columns or Columns(), content, need_answers=False)
    for warning in skipped:
        warnings.warn(warning, stacklevel=2)
    questions, _ = to_questions(path, raws, training=False)
    refuse_twins(path, questions)
    return questions


def to_questions(
    path: Path, raws: Iterator[Raw], *, training: bool
) -> tuple[list[Question], list[str]]:
    """Questions with answers that are where they say, and what the user should know of them."""
    every = list(raws)
    if not every:
        raise UserError(f"'{path}' holds no questions: fill it or name another file.")
    some = any(raw.answers for raw in every)
    notes: Counter[str] = Counter()
    questions = []
    for raw in every:
        # No answer among others that have some means that there is none; if none has, that they
        # are hidden.
        empty = raw.answers is not None and not any(text.strip() for text, _ in raw.answers)
        impossible = raw.impossible or (raw.impossible is None and empty and some)
        given = [] if impossible else [pair for pair in raw.answers or () if pair[0].strip()]
        if training and not given and not impossible:
            raise UserError(f"{raw.where} has no answer to learn: add it, or leave it out.")
        found = [find_answer(raw, text, start, notes) for text, start in given]
        found += [Answer(text=text, start=NOWHERE) for text in raw.others if given]
        questions.append(
            Question(
                id=raw.id,
                question=raw.question,
                context=raw.context,
                answers=tuple(found),
                impossible=bool(impossible),
            )
        )
    return questions, [f"'{path}': {count:,} {note}" for note, count in notes.items()]


def find_answer(raw: Raw, text: str, start: int | None, notes: Counter[str]) -> Answer:
    """The answer at the place that is given, or at the nearest with its text."""
    if start is not None and raw.context.startswith(text, start):
        return Answer(text=text, start=start)
    # White space may differ: files are often normalised after the starts were counted.
    pattern = r"\s+".join(map(re.escape, text.split()))
    places = list(re.finditer(pattern, raw.context))
    if not places:
        shown = text if len(text) <= 60 else text[:60] + "…"
        raise UserError(
            f"{raw.where}: the answer '{shown}' is not in its context: correct it; answers must "
            "be copied from the context letter by letter."
        )
    if start is not None:
        notes[MOVED] += 1
    elif len(places) > 1:
        notes[SEVERAL] += 1
    nearest = min(places, key=lambda match: abs(match.start() - (start or 0)))
    return Answer(text=nearest.group(), start=nearest.start())


def refuse_twins(path: Path, questions: Sequence[Question]) -> None:
    """Predictions are kept by id: refuse two questions with the same one."""
    counts = Counter(each.id for each in questions)
    name, count = counts.most_common(1)[0]
    if count > 1:
        raise UserError(f"'{path}' has {count} questions with the id '{name}': make ids differ.")
