"""Infer what kind of task a file of your own holds, from its columns."""

from pathlib import Path

from electra.tasks.columns import LABEL_NAMES, NUMBERED_OPTION, OPTIONS_NAMES
from electra.tasks.conll import TAGS_NAMES
from electra.tasks.data_files import file_extension, find_data, find_split_files
from electra.tasks.table import EXTENSIONS, Table, read_table
from electra.tasks.user_files import MAX_NUMERIC_LABELS, parse_number


def infer_task(data: Path, label: str | None = None) -> str:
    """Return `classify`, `regress`, `choice`, `tag` or `qa`; `label` is a column you know.

    Numbers are classes unless one has a fraction or there are very many different ones.
    """
    train = find_split_files(find_data(data, []))["train"]
    if train.is_file() and file_extension(train) not in EXTENSIONS:
        return "tag"  # a CoNLL file has any extension
    table = read_table(train)
    if table.find("question") and table.find("context"):
        return "qa"
    numbered = [name for name in table.columns if NUMBERED_OPTION.fullmatch(name)]
    if len(numbered) > 1 or any(map(table.find, OPTIONS_NAMES)):
        return "choice"
    words = any(map(table.find, ("words", "tokens")))
    if words and any(map(table.find, TAGS_NAMES)):
        return "tag"
    return "regress" if has_values(table, label) else "classify"


def has_values(table: Table, label: str | None) -> bool:
    """Whether the labels are values to predict rather than names of classes."""
    found = (column for name in LABEL_NAMES if (column := table.find(name)))
    column = label or next(found, "")
    given = {str(row.values.get(column, "")).strip() for row in table.rows}
    numbers = [parse_number(text) for text in given]
    known = [number for number in numbers if number is not None]
    if len(known) < len(numbers):
        return False
    return len(known) > MAX_NUMERIC_LABELS or any(number % 1 for number in known)
