"""Find the columns of the text, the pair and the label in your own file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError
from electra.tasks.table import Table, refuse_same_column

UserTask = Literal["classify", "regress", "pair", "choice"]
"""`pair` is `classify` with two texts."""

TEXT_NAMES = ("text", "sentence", "question", "review", "tweet")
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("text1", "text2"), ("text", "pair")),
)
LABEL_NAMES = ("label", "labels", "class", "category", "score", "target")
OPTIONS_NAMES = ("choices", "options", "endings")
NUMBERED_OPTION = re.compile(r"(choice|option|ending)_?(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table, by role."""

    text: str
    pair: tuple[str, ...] = ()
    """The second text; for `choice` the columns of the options, or one that holds a list."""
    label: str

    def to_dict(self) -> dict[str, str]:
        """The columns as `Task.columns` stores them."""
        pair = {"pair": ",".join(self.pair)} if self.pair else {}
        return {"text": self.text, **pair, "label": self.label}


def find_columns(
    kind: UserTask, table: Table, text: str | None, pair: str | None, label: str | None
) -> Columns:
    """Take the columns that the user named, and find the others by their usual names."""
    pairs = tuple(name.strip() for name in pair.split(",")) if pair else ()
    if len(pairs) > 1 and kind != "choice":
        raise UserError(
            f"--pair names {len(pairs)} columns, but only the task choice takes more than one."
        )
    for name, option in ((text, "--text"), *((p, "--pair") for p in pairs), (label, "--label")):
        if name is not None:
            table.require(name, option)
    if kind == "choice":
        text = text or find_column(table, TEXT_NAMES, "text", "--text")
        pairs = pairs or find_options(table)
    elif text is None and not pairs:
        text, *rest = find_texts(table, only_pairs=kind == "pair")
        pairs = tuple(rest)
    elif text is None:
        partners = [first for first, second in PAIR_NAMES if second == pairs[0].casefold()]
        text = find_column(table, [*partners, *TEXT_NAMES], "text", "--text")
    elif kind == "pair" and not pairs:
        partners = [second for first, second in PAIR_NAMES if first == text.casefold()]
        pairs = (find_column(table, partners, "second text", "--pair"),)
    label = label or find_column(table, LABEL_NAMES, "label", "--label")
    for name in pairs or (None,):
        used = {"--text": text, "--label": label} | ({"--pair": name} if name else {})
        refuse_same_column(table.path, used)
    return Columns(text=text, pair=pairs, label=label)


def find_texts(table: Table, *, only_pairs: bool) -> tuple[str, ...]:
    """Find the column of the text, or those of a pair, if only one reading is possible."""
    candidates: list[tuple[str, ...]] = [*PAIR_NAMES]
    if not only_pairs:
        candidates += [(name,) for name in TEXT_NAMES]
    found = {}
    for names in candidates:
        columns = tuple(column for name in names if (column := table.find(name)))
        if len(columns) == len(names):
            found[names] = columns
    if ("text",) in found and ("text", "pair") not in found:
        return found[("text",)]
    if len(found) != 1:
        what, advice = "which column is the text", "Name it with --text (a second text with --pair)"
        if only_pairs:
            what, advice = "which columns are the two texts", "Name them with --text and --pair"
        raise UserError(
            f"It is not clear {what} in '{table.path}', it has: {table.list_columns()}. "
            f"{advice}.{table.header_hint()}"
        )
    return next(iter(found.values()))


def find_column(table: Table, names: Sequence[str], what: str, option: str) -> str:
    """Find the column with the first of some usual names, or the only one with any of them."""
    found = [column for name in dict.fromkeys(names) if (column := table.find(name))]
    if not found or (len(found) > 1 and found[0] != table.find(names[0])):
        raise UserError(
            f"It is not clear which column is the {what} in '{table.path}', it has: "
            f"{table.list_columns()}. Name it with {option}.{table.header_hint()}"
        )
    return found[0]


def find_options(table: Table) -> tuple[str, ...]:
    """Find the columns choice0, choice1, …, or the one with a list."""
    matches = [m for name in table.columns if (m := NUMBERED_OPTION.fullmatch(name))]
    if len(matches) > 1 and len({m[1].lower() for m in matches}) == 1:
        return tuple(m[0] for m in sorted(matches, key=lambda m: int(m[2])))
    return (find_column(table, OPTIONS_NAMES, "list of options", "--pair"),)
