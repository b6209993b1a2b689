"""Load extractive question answering: SQuAD 1.1 and 2.0, and your own files."""

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from electra.errors import UserError
from electra.tasks.data_files import find_data, find_split_files
from electra.tasks.dev_split import make_dev_split
from electra.tasks.examples import Answer, Question, Task
from electra.tasks.squad_files import EXTENSIONS, Columns, RawQuestion, read_questions

MAX_LENGTH = 512
EPOCHS = 2
VERSIONS = {"squad1": "v1.1", "squad2": "v2.0"}
MOVED = "answers are not at their answer_start; the nearest occurrence of their text is used."
AMBIGUOUS = "answers without a start occur more than once; the first occurrence is used."

NO_START = -1
"""The start of an answer that counts in the score but is not a span of the context."""


def load_squad(name: str, data: Path, *, columns: Columns | None = None) -> Task:
    """Load a file, a folder with train.… and dev.…, or the folder that contains it.

    `squad1` and `squad2` prefer files of v1.1 and v2.0. `columns` are those of your own tables.
    """
    columns = columns or Columns()
    folder = find_data(data, [name, "squad"] if name in VERSIONS else [name])
    files = find_split_files(folder, extensions=EXTENSIONS, version=VERSIONS.get(name, ""))
    splits: dict[str, list[Question]] = {}
    notes: list[str] = []
    for split, path in files.items():
        raw, skipped = read_questions(path, columns)
        splits[split], moved = to_questions(path, raw, labelled=split in ("train", "dev"))
        notes += [*skipped, *moved]
        if split != "train":
            refuse_duplicate_ids(path, splits[split])
    if "dev" not in splits:
        # by context, so that no context is in both splits
        train, dev, note = make_dev_split(
            files["train"], splits["train"], lambda each: (each.context,)
        )
        splits |= {"train": train, "dev": dev}
        refuse_duplicate_ids(files["train"], dev)
        notes.append(note)
    return Task(
        name=name,
        kind="qa",
        splits=splits,
        metric="f1",
        max_length=MAX_LENGTH,
        epochs=EPOCHS,
        warnings=tuple(notes),
    )


def read_question_examples(
    path: Path, *, columns: Columns | None = None, content: str | None = None
) -> list[Question]:
    """Read the questions of another file; answers are optional.

    `content` is the text of the file if you have read it already.
    """
    raw, skipped = read_questions(path, columns or Columns(), content, answers_optional=True)
    for warning in skipped:
        warnings.warn(warning, stacklevel=2)
    questions, _ = to_questions(path, raw, labelled=False)
    refuse_duplicate_ids(path, questions)
    return questions


def to_questions(
    path: Path, raw_questions: Iterator[RawQuestion], *, labelled: bool
) -> tuple[list[Question], list[str]]:
    """Make questions whose answers are at their start in the context, and warnings.

    With `labelled`, each question needs an answer, or must be unanswerable.
    """
    all_raw = list(raw_questions)
    if not all_raw:
        raise UserError(f"'{path}' holds no questions: fill it or name another file.")
    any_answers = any(raw.answers for raw in all_raw)
    notes: Counter[str] = Counter()
    questions = []
    for raw in all_raw:
        # In a file with answers, a question without one is unanswerable; in a file without any,
        # the answers are unknown.
        empty = raw.answers is not None and not any(text.strip() for text, _ in raw.answers)
        impossible = raw.impossible or (raw.impossible is None and empty and any_answers)
        given = [] if impossible else [pair for pair in raw.answers or () if pair[0].strip()]
        if labelled and not given and not impossible:
            raise UserError(f"{raw.location} has no answer: add one, or remove the question.")
        found = [find_answer(raw, text, start, notes) for text, start in given]
        found += [Answer(text=text, start=NO_START) for text in raw.others if given]
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


def find_answer(raw: RawQuestion, text: str, start: int | None, notes: Counter[str]) -> Answer:
    """Find the answer at its start, or at the nearest occurrence of its text."""
    if start is not None and raw.context.startswith(text, start):
        return Answer(text=text, start=start)
    # White space may differ: files are often normalized after the starts were counted.
    pattern = r"\s+".join(map(re.escape, text.split()))
    matches = list(re.finditer(pattern, raw.context))
    if not matches:
        shown = text if len(text) <= 60 else text[:60] + "…"
        raise UserError(
            f"{raw.location}: the answer '{shown}' is not in its context: correct it; answers must "
            "be copied from the context letter by letter."
        )
    if start is not None:
        notes[MOVED] += 1
    elif len(matches) > 1:
        notes[AMBIGUOUS] += 1
    nearest = min(matches, key=lambda match: abs(match.start() - (start or 0)))
    return Answer(text=nearest.group(), start=nearest.start())


def refuse_duplicate_ids(path: Path, questions: Sequence[Question]) -> None:
    """Refuse two questions with the same id, because predictions are stored by id."""
    counts = Counter(each.id for each in questions)
    duplicate, count = counts.most_common(1)[0]
    if count > 1:
        raise UserError(
            f"'{path}' has {count} questions with the id '{duplicate}': make the ids unique."
        )
