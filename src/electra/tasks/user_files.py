"""Load a task from your own labelled files: texts, pairs or choices with a label or a number."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.tasks.columns import Columns, UserTask, find_columns
from electra.tasks.data_files import file_stem, find_data, find_split_files
from electra.tasks.dev_split import count_overlap, example_texts, make_dev_split
from electra.tasks.examples import Choice, Kind, Sentence, Task
from electra.tasks.table import (
    CSV,
    JSON,
    Row,
    Table,
    drop_empty_rows,
    json_type,
    read_table,
    shorten,
)
from electra.text.readers import clean

MAX_NUMERIC_LABELS = 100
"""With more different numbers as labels, the task is probably a regression."""
MIN_ROWS = 20
"""With fewer rows, nearly every row may have a label of its own."""
MISSING_VALUES = ("nan", "none", "null", "na", "n/a", "<na>", "nat", "nil", "-", "--", "?")
"""Labels, in lower case, that programs write for a missing value."""


def load_user_task(
    task: UserTask,
    data: Path,
    *,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
) -> Task:
    """Load a task from a file, or from a folder with train.*, dev.* and optionally test.*."""
    files = find_split_files(find_data(data, []), extensions=(*CSV, ".tsv", ".tab", *JSON))
    tables = {name: read_table(path) for name, path in files.items()}
    columns = find_columns(task, tables["train"], text, pair, label)
    notes = []
    for name, table in tables.items():
        tables[name], skipped = drop_rows_without_text(table, columns)
        notes += skipped
    kind: Kind = "classify" if task == "pair" else task
    labels = find_labels(tables["train"], columns.label) if kind == "classify" else ()
    splits: dict[str, list[Any]] = {
        name: build_examples(table, kind, columns, labels, labels_optional=name == "test")
        for name, table in tables.items()
    }
    if kind == "choice":
        check_options(tables, splits)
    if kind == "classify":
        notes += label_warnings(tables, columns.label, labels)
    if "dev" not in splits:
        splits["train"], splits["dev"], note = make_dev_split(
            files["train"], splits["train"], example_texts
        )
        notes.append(note)
    elif overlap := count_overlap(splits["train"], splits["dev"]):
        notes.append(
            f"{overlap} of the {len(splits['dev'])} rows of '{files['dev']}' are also in the train "
            "file: the dev score will be too high."
        )
    return Task(
        name=task_name(data, task),
        kind=kind,
        splits=splits,
        labels=labels,
        metric="spearman" if kind == "regress" else "accuracy",
        columns=columns.to_dict(),
        warnings=tuple(notes),
    )


def task_name(data: Path, kind: str) -> str:
    """The name of the folder or file; the kind for a stream such as `/dev/fd/63`."""
    if data.is_dir():
        return data.resolve().name
    return kind if data.parts[:2] in (("/", "dev"), ("/", "proc")) else file_stem(data)


def read_user_examples(
    path: Path,
    kind: Kind,
    columns: Mapping[str, str],
    content: str | None = None,
    labels: Sequence[str] | None = None,
) -> list[Any]:
    """Read examples from another file of a known task.

    `content` is the text of the file if you have read it already. The labels of the examples are
    read if `labels`, those of the task, are given and the file has the column.
    """
    pair = tuple(columns["pair"].split(",")) if columns.get("pair") else ()
    label = "" if labels is None else columns.get("label", "")
    known = Columns(text=columns["text"], pair=pair, label=label)
    table, skipped = drop_rows_without_text(read_table(path, content), known)
    for warning in skipped:
        warnings.warn(warning, stacklevel=2)
    return build_examples(table, kind, known, tuple(labels or ()), labels_optional=True)


def drop_rows_without_text(table: Table, columns: Columns) -> tuple[Table, list[str]]:
    """Drop the rows that lack one of their texts, and warn if there are any."""
    texts = (columns.text, *columns.pair)
    for name in texts:
        table.require(name)
    return drop_empty_rows(table, texts)


def build_examples(
    table: Table,
    kind: Kind,
    columns: Columns,
    labels: tuple[str, ...],
    *,
    labels_optional: bool,
) -> list[Any]:
    """Make the examples of a table."""
    if not labels_optional:
        table.require(columns.label)
    examples: list[Any] = []
    for row in table.rows:
        row_id = table.row_id(row)
        text = table.text(row, columns.text)
        given = read_label(table, row, columns.label, optional=labels_optional)
        if kind == "choice":
            options = read_options(table, row, columns.pair)
            correct = None if given is None else option_index(table, row, given, options)
            examples.append(Choice(id=row_id, text=text, options=options, label=correct))
            continue
        pair = table.text(row, columns.pair[0]) if columns.pair else None
        label: int | float | None = None
        if given is not None and kind == "regress":
            label = label_value(table, row, given)
        elif given is not None:
            label = label_index(table, row, given, labels)
        examples.append(Sentence(id=row_id, text=text, pair=pair, label=label))
    return examples


def read_label(table: Table, row: Row, column: str, *, optional: bool) -> str | None:
    """The label of a row as a string; None if it is missing and `optional`."""
    given = row.values.get(column)
    if isinstance(given, list | dict):
        raise UserError(
            f"{table.location(row)}: the label is a JSON {json_type(given)}: write one label, a "
            "string or a number."
        )
    if isinstance(given, bool):
        return str(given).lower()
    text = "" if given is None else str(given).strip()
    if not text and not optional:
        raise UserError(
            f"{table.location(row)} has no label in the column '{column}': fill it or delete the "
            "row."
        )
    return text or None


def parse_number(text: str) -> float | None:
    """Parse a finite number; None if the text is something else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def find_labels(table: Table, column: str) -> tuple[str, ...]:
    """The labels of the train file, sorted; by value if all are numbers."""
    table.require(column, "--label")
    found = {str(read_label(table, row, column, optional=False)) for row in table.rows}
    if len(found) == 1:
        raise UserError(
            f"'{table.path}' has the same label '{shorten(found.pop())}' in all rows: there is "
            "nothing to learn; add rows with another label."
        )
    if len(table.rows) >= MIN_ROWS and len(found) > 0.9 * len(table.rows):
        raise UserError(
            f"'{table.path}' has {len(found):,} different labels in {len(table.rows):,} rows, such "
            f"as '{shorten(min(found))}': name the column of the labels with --label; for numbers "
            "use the task regress."
        )
    values = {name: parse_number(name) for name in found}
    if None in values.values():
        return tuple(sorted(found))
    return tuple(sorted(found, key=lambda name: (values[name] or 0.0, name)))


def label_warnings(tables: Mapping[str, Table], column: str, labels: tuple[str, ...]) -> list[str]:
    """Warn about labels that look like missing values or like numbers to predict."""
    notes = []
    for table in tables.values():
        given = (read_label(table, row, column, optional=True) for row in table.rows)
        counts = Counter(name for name in given if name and name.casefold() in MISSING_VALUES)
        if counts:
            listed = ", ".join(f"'{name}' {count:,}" for name, count in counts.most_common(5))
            more = ", …" if len(counts) > 5 else ""
            notes.append(
                f"{counts.total():,} of {len(table.rows):,} rows of '{table.path}' have a label "
                f"that often stands for a missing value ({listed}{more}); each is used as a class. "
                "If they are missing, delete these rows; if they are classes, ignore this warning."
            )
    if len(labels) > MAX_NUMERIC_LABELS and all(parse_number(name) is not None for name in labels):
        notes.append(
            f"'{tables['train'].path}' has {len(labels)} different numbers as labels: if they are "
            "values rather than classes, use the task regress."
        )
    return notes


def label_value(table: Table, row: Row, given: str) -> float:
    """The label of a regression."""
    value = parse_number(given)
    if value is None:
        raise UserError(
            f"{table.location(row)}: the label '{shorten(given)}' is not a number: regress needs "
            "one in every row; for classes use the task classify."
        )
    return value


def label_index(table: Table, row: Row, given: str, labels: tuple[str, ...]) -> int:
    """The index of a row's label among the labels of the train file."""
    if given not in labels:
        known = ", ".join(shorten(name) for name in labels[:10]) + (", …" if labels[10:] else "")
        raise UserError(
            f"{table.location(row)}: no row of the train file has the label '{shorten(given)}', "
            f"only: {known}. Correct it, or add such rows to the train file."
        )
    return labels.index(given)


def read_options(table: Table, row: Row, columns: tuple[str, ...]) -> tuple[str, ...]:
    """The options of a row, from several columns or from one with a list."""
    if len(columns) > 1:
        return tuple(table.text(row, column) for column in columns)
    options: Any = row.values.get(columns[0])
    texts = isinstance(options, list) and all(isinstance(o, str) and o.strip() for o in options)
    if not texts or len(options) < 2:
        raise UserError(
            f"{table.location(row)}: the column '{columns[0]}' is not a list of two or more texts: "
            'write a JSON list, as ["…", "…"], or name several columns, as --pair choice0,choice1.'
        )
    return tuple(clean(option) for option in options)


def option_index(table: Table, row: Row, given: str, options: tuple[str, ...]) -> int:
    """The index of the correct option, given by its index or its text."""
    value = parse_number(given)
    if value is not None and value in range(len(options)):
        return int(value)
    if options.count(given) == 1:
        return options.index(given)
    raise UserError(
        f"{table.location(row)}: the label '{shorten(given)}' is not an option: write the index of "
        f"the correct one, 0 to {len(options) - 1}, or its text."
    )


def check_options(tables: Mapping[str, Table], splits: Mapping[str, Sequence[Choice]]) -> None:
    """Refuse rows whose number of options differs from that of the first row."""
    expected = len(splits["train"][0].options)
    for name, table in tables.items():
        for row, example in zip(table.rows, splits[name], strict=True):
            if len(example.options) != expected:
                raise UserError(
                    f"{table.location(row)} has {len(example.options)} options where the first row "
                    f"of the train file has {expected}: all must have the same number."
                )
