"""Which columns of your own file are the text, the pair and the label."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError
from electra.tasks.table import Table, refuse_same_column

OwnKind = Literal["classify", "regress", "pair", "choice"]
"""`pair` is `classify` with two texts."""

TEXTS = ("text", "sentence", "question", "review", "tweet")
PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("text1", "text2"), ("text", "pair")),
)
LABELS = ("label", "labels", "class", "category", "score", "target")
LISTS = ("choices", "options", "endings")
NUMBERED = re.compile(r"(choice|option|ending)_?(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Which column is what."""

    text: str
    pair: tuple[str, ...] = ()
    """The second text; of a choice its options, or the one column that holds the list of them."""
    label: str

    def named(self) -> dict[str, str]:
        """The columns as a task keeps them."""
        pair = {"pair": ",".join(self.pair)} if self.pair else {}
        return {"text": self.text, **pair, "label": self.label}


def find_columns(
    kind: OwnKind, table: Table, text: str | None, pair: str | None, label: str | None
) -> Columns:
    """The columns that the user named, and for the others those that leave no doubt."""
    pairs = tuple(name.strip() for name in pair.split(",")) if pair else ()
    if len(pairs) > 1 and kind != "choice":
        raise UserError(f"--pair names {len(pairs)} columns, but only a choice has several.")
    for name, option in ((text, "--text"), *((p, "--pair") for p in pairs), (label, "--label")):
        if name is not None:
            table.need(name, option)
    if kind == "choice":
        text = text or the_one(table, TEXTS, "text", "--text")
        pairs = pairs or find_options(table)
    elif text is None and not pairs:
        text, *rest = guess_texts(table, only_pairs=kind == "pair")
        pairs = tuple(rest)
    elif text is None:
        partners = [first for first, second in PAIRS if second == pairs[0].casefold()]
        text = the_one(table, [*partners, *TEXTS], "text", "--text")
    elif kind == "pair" and not pairs:
        partners = [second for first, second in PAIRS if first == text.casefold()]
        pairs = (the_one(table, partners, "second text", "--pair"),)
    label = label or the_one(table, LABELS, "label", "--label")
    for name in pairs or (None,):
        used = {"--text": text, "--label": label} | ({"--pair": name} if name else {})
        refuse_same_column(table.path, used)
    return Columns(text=text, pair=pairs, label=label)


def guess_texts(table: Table, *, only_pairs: bool) -> tuple[str, ...]:
    """The column of the text or those of the pair, where only one guess is possible."""
    candidates: list[tuple[str, ...]] = [*PAIRS]
    if not only_pairs:
        candidates += [(name,) for name in TEXTS]
    found = {names: [table.find(name) for name in names] for names in candidates}
    guesses = {
        names: tuple(column for column in columns if column)
        for names, columns in found.items()
        if None not in columns
    }
    if ("text",) in guesses and ("text", "pair") not in guesses:
        return guesses[("text",)]
    if len(guesses) != 1:
        what, advice = "which column is the text", "Name it with --text (a second text with --pair)"
        if only_pairs:
            what, advice = "which columns are the two texts", "Name them with --text and --pair"
        raise UserError(
            f"'{table.path}' does not tell {what}, it has: {table.listed()}. "
            f"{advice}.{table.headless()}"
        )
    return next(iter(guesses.values()))


def the_one(table: Table, names: Sequence[str], what: str, option: str) -> str:
    """The first of some usual names, or the only one of them that the table has."""
    found = [column for name in dict.fromkeys(names) if (column := table.find(name))]
    if not found or (len(found) > 1 and found[0] != table.find(names[0])):
        raise UserError(
            f"'{table.path}' does not tell which column is the {what}, it has: {table.listed()}. "
            f"Name it with {option}.{table.headless()}"
        )
    return found[0]


def find_options(table: Table) -> tuple[str, ...]:
    """The columns choice0, choice1, …, or the one with a list."""
    matches = [m for name in table.columns if (m := NUMBERED.fullmatch(name))]
    if len(matches) > 1 and len({m[1].lower() for m in matches}) == 1:
        return tuple(m[0] for m in sorted(matches, key=lambda m: int(m[2])))
    return (the_one(table, LISTS, "list of options", "--pair"),)
