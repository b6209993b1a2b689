"""Your own labelled files: texts, pairs of them or choices, with a label or a number."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.tasks.columns import Columns, OwnKind, find_columns
from electra.tasks.examples import Choice, Kind, Sentence, Task
from electra.tasks.folder import bare_name, find_folder, split_files
from electra.tasks.split import content, set_aside, shared
from electra.tasks.table import (
    CSV,
    JSON,
    Row,
    Table,
    drop_empty_rows,
    json_kind,
    read_table,
    short,
)
from electra.text.read import clean

MANY = 100  # labels; more of them, and all numbers, are rather values
MISSING = ("nan", "none", "null", "na", "n/a", "<na>", "nat", "nil", "-", "--", "?")
"""Labels, in lower case, that programs write for a missing value."""


def load_own(
    kind: OwnKind,
    data: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> Task:
    """The task in a file, or in a folder with train.*, dev.* and perhaps test.*."""
    files = split_files(find_folder(data, []), endings=(*CSV, ".tsv", ".tab", *JSON))
    tables = {name: read_table(path) for name, path in files.items()}
    columns = find_columns(kind, tables["train"], text, pair, label)
    notes = []
    for name, table in tables.items():
        tables[name], skipped = with_texts(table, columns)
        notes += skipped
    asked: Kind = "classify" if kind == "pair" else kind
    labels = find_labels(tables["train"], columns.label) if asked == "classify" else ()
    splits: dict[str, list[Any]] = {
        name: examples_of(table, asked, columns, labels, hidden=name == "test")
        for name, table in tables.items()
    }
    if asked == "choice":
        check_options(tables, splits)
    if asked == "classify":
        notes += [w for name in tables for w in warn_missing(tables[name], columns.label)]
    if len(labels) > MANY and all(number(name) is not None for name in labels):
        notes.append(
            f"'{files['train']}' has {len(labels)} different numbers as labels: if they are "
            "values rather than classes, use the task regress."
        )
    if "dev" not in splits:
        splits["train"], splits["dev"], note = set_aside(files["train"], splits["train"], content)
        notes.append(note)
    elif both := shared(splits["train"], splits["dev"]):
        notes.append(
            f"{both} of the {len(splits['dev'])} rows of '{files['dev']}' are in the train file "
            "too: the score will be too good."
        )
    return Task(
        name=task_name(data, kind),
        kind=asked,
        splits=splits,
        labels=labels,
        metric="spearman" if asked == "regress" else "accuracy",
        columns=columns.named(),
        warnings=tuple(notes),
    )


def task_name(data: Path, kind: str) -> str:
    """The name of the folder or file; the kind for a stream such as `/dev/fd/63`."""
    if data.is_dir():
        return data.resolve().name
    return kind if data.parts[:2] in (("/", "dev"), ("/", "proc")) else bare_name(data)


def with_texts(table: Table, columns: Columns) -> tuple[Table, list[str]]:
    """The rows that have all their texts, and a warning if some do not."""
    texts = (columns.text, *columns.pair)
    for name in texts:
        table.need(name)
    return drop_empty_rows(table, texts)


def warn_missing(table: Table, column: str) -> list[str]:
    """A warning if labels look like missing values that a program wrote out, as `nan`."""
    labels = (str(row.values.get(column, "")).strip() for row in table.rows)
    counts = Counter(label for label in labels if label.casefold() in MISSING)
    if not counts:
        return []
    listed = ", ".join(f"'{label}' {count:,}" for label, count in counts.most_common(5))
    more = ", …" if len(counts) > 5 else ""
    return [
        f"{counts.total():,} of {len(table.rows):,} rows of '{table.path}' have a label that "
        f"often stands for a missing value ({listed}{more}); each is used as a class. If they are "
        "missing, delete these rows; if they are classes, ignore this warning."
    ]


def read_own(
    path: Path, kind: Kind, columns: Mapping[str, str], text: str | None = None
) -> list[Any]:
    """The examples of another file of a known task; labels are not read.

    `text` is the content of the file if you have read it already.
    """
    pair = tuple(columns["pair"].split(",")) if columns.get("pair") else ()
    known = Columns(text=columns["text"], pair=pair, label="")
    table, skipped = with_texts(read_table(path, text), known)
    for warning in skipped:
        warnings.warn(warning, stacklevel=2)
    return examples_of(table, kind, known, (), hidden=True)


def examples_of(
    table: Table, kind: Kind, columns: Columns, labels: tuple[str, ...], *, hidden: bool
) -> list[Any]:
    """The examples of a table; `hidden` allows that labels are missing."""
    if not hidden:
        table.need(columns.label)
    examples: list[Any] = []
    for row in table.rows:
        name = table.name(row)
        text = table.text(row, columns.text)
        given = given_label(table, row, columns.label, hidden)
        if kind == "choice":
            options = options_of(table, row, columns.pair)
            right = None if given is None else option_number(table, row, given, options)
            examples.append(Choice(id=name, text=text, options=options, label=right))
            continue
        pair = table.text(row, columns.pair[0]) if columns.pair else None
        label: int | float | None = None
        if given is not None and kind == "regress":
            label = value_of(table, row, given)
        elif given is not None:
            label = label_number(table, row, given, labels)
        examples.append(Sentence(id=name, text=text, pair=pair, label=label))
    return examples


def given_label(table: Table, row: Row, column: str, hidden: bool) -> str | None:
    """The label of a row as text; None where it is missing and may be."""
    given = row.values.get(column)
    if isinstance(given, list | dict):
        raise UserError(
            f"{table.place(row)}: the label is a JSON {json_kind(given)}: write one label, a text "
            "or a number."
        )
    if isinstance(given, bool):
        return str(given).lower()
    text = "" if given is None else str(given).strip()
    if not text and not hidden:
        raise UserError(
            f"{table.place(row)} has no label in the column '{column}': fill it or delete the row."
        )
    return text or None


def number(text: str) -> float | None:
    """The finite number that a text says, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def value_of(table: Table, row: Row, given: str) -> float:
    """The value of a row to be predicted."""
    value = number(given)
    if value is None:
        raise UserError(
            f"{table.place(row)}: the label '{short(given)}' is no number: regress needs one in "
            "every row; for classes use the task classify."
        )
    return value


def find_labels(table: Table, column: str) -> tuple[str, ...]:
    """The labels of the train file, sorted; by value when all are numbers."""
    table.need(column, "--label")
    found = {str(given_label(table, row, column, hidden=False)) for row in table.rows}
    if len(found) == 1:
        raise UserError(
            f"'{table.path}' has the one label '{short(found.pop())}' in all its rows: there is "
            "nothing to learn; add rows with another label."
        )
    values = {name: number(name) for name in found}
    if None in values.values():
        return tuple(sorted(found))
    return tuple(sorted(found, key=lambda name: (values[name] or 0.0, name)))


def label_number(table: Table, row: Row, given: str, labels: tuple[str, ...]) -> int:
    """The place of a row's label among the labels."""
    if given not in labels:
        known = ", ".join(short(name) for name in labels[:10]) + (", …" if labels[10:] else "")
        raise UserError(
            f"{table.place(row)}: no row of the train file has the label '{short(given)}', only: "
            f"{known}. Correct it, or add such rows to the train file."
        )
    return labels.index(given)


def options_of(table: Table, row: Row, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a row, from several columns or from one with a list."""
    if len(columns) > 1:
        return tuple(table.text(row, column) for column in columns)
    options: Any = row.values.get(columns[0])
    texts = isinstance(options, list) and all(isinstance(o, str) and o.strip() for o in options)
    if not texts or len(options) < 2:
        raise UserError(
            f"{table.place(row)}: the column '{columns[0]}' is no list of two texts or more: write "
            'a JSON list, as ["…", "…"], or name several columns, as --pair choice0,choice1.'
        )
    return tuple(clean(option) for option in options)


def option_number(table: Table, row: Row, given: str, options: tuple[str, ...]) -> int:
    """The right option, given by its number from 0 or else by its text."""
    value = number(given)
    if value is not None and value in range(len(options)):
        return int(value)
    if options.count(given) == 1:
        return options.index(given)
    raise UserError(
        f"{table.place(row)}: the label '{short(given)}' is no option: write the number of the "
        f"right one, 0 to {len(options) - 1}, or its text."
    )


def check_options(tables: Mapping[str, Table], splits: Mapping[str, Sequence[Choice]]) -> None:
    """Refuse rows with another number of options than the first."""
    wanted = len(splits["train"][0].options)
    for name, table in tables.items():
        for row, example in zip(table.rows, splits[name], strict=True):
            if len(example.options) != wanted:
                raise UserError(
                    f"{table.place(row)} has {len(example.options)} options where the first row of "
                    f"the train file has {wanted}: all must have the same number."
                )
