"""Files with a tag per word -> a task: CoNLL columns, CoNLL-U, and tables of your own."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.tasks.examples import Tagged, Task
from electra.tasks.folder import ending, find_folder, split_files
from electra.tasks.spans import OUTSIDE, Scheme, breaches, find_scheme, to_bioes
from electra.tasks.split import set_aside
from electra.tasks.table import (
    CSV,
    JSON,
    Row,
    Table,
    drop_empty_rows,
    header_cells,
    read_table,
    read_text,
    refuse_same_column,
    table_format,
)
from electra.text.read import clean

LENGTH = 256
LAST = -1

WORDS = ("words", "tokens", "text")
TAGS = ("tags", "labels", "label")

BLANKS = re.compile(r"[ \t]+")  # no others: a word may hold a no-break space
COMMENT = re.compile(r"#\s*(id|sent_id|text|newdoc|newpar|global\.columns)\b")
CONLLU = 10
"""Columns of CoNLL-U: 1 the number, 2 the word, 4 its part of speech."""
CONLLU_NUMBER = re.compile(r"\d+([-.]\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """A sentence as a file has it, with the line of each word for errors."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: Sequence[int]


def load_tags(name: str, data: Path, *, text: str | None = None, label: str | None = None) -> Task:
    """Tagging with CoNLL files, or with tables that have words and tags in two columns.

    They are a file, a folder with train.… and dev.…, or the folder above. `label` names the column
    of the tags; in CoNLL files by its number from 1, or from the end with -1, else it is the last
    one, in CoNLL-U the part of speech.
    """
    files = split_files(find_folder(data, [name]))
    named = {key: value for key, value in (("text", text), ("label", label)) if value}
    return build(name, files, lambda path: read_tags(path, text, label), named)


def more_tagged(path: Path, columns: Mapping[str, str], content: str | None = None) -> list[Tagged]:
    """The sentences of another file of a known task, with its `columns`; tags may be missing.

    `content` is the text of the file if you have read it already.
    """
    sentences, skipped = read_tags(
        path, columns.get("text"), columns.get("label"), content, need_tags=False
    )
    for warning in skipped:
        warnings.warn(warning, stacklevel=2)
    spans = bool(columns.get("scheme"))
    return [tagged(place, each, spans=spans) for place, each in enumerate(sentences)]


def read_tags(
    path: Path,
    text: str | None = None,
    label: str | None = None,
    content: str | None = None,
    *,
    need_tags: bool = True,
) -> tuple[list[Lines], list[str]]:
    """The sentences of a file in any of the formats, and warnings."""
    content = read_text(path) if content is None else content
    if is_table(path, content, text, label):
        return read_tagged_table(read_table(path, content), text, label, need_tags=need_tags)
    if label is not None and not re.fullmatch(r"-?\d+", label):
        raise UserError(
            f"'{path}' has no header: name the column of the tags by its number, not '{label}'."
        )
    return read_conll(path, None if label is None else int(label), content), []


def build(
    name: str,
    files: dict[str, Path],
    read: Callable[[Path], tuple[list[Lines], list[str]]],
    columns: Mapping[str, str],
) -> Task:
    """The task of some files; tags of spans are turned into BIOES."""
    content: dict[str, list[Lines]] = {}
    notes: list[str] = []
    for split, path in files.items():
        content[split], skipped = read(path)
        notes += skipped
    hidden = next((s for s in content["train"] if s.tags is None), None)
    if hidden:
        raise UserError(f"'{files['train']}' line {hidden.lines[0]} has no tags to train on.")
    scheme = find_scheme(s.tags for s in content["train"] if s.tags is not None)
    splits: dict[str, list[Tagged]] = {}
    for split, sentences in content.items():
        if scheme is not None:
            notes += check(files[split], sentences, scheme, strict=split == "train")
        splits[split] = [
            tagged(place, each, spans=scheme is not None) for place, each in enumerate(sentences)
        ]
    labels = all_labels(splits["train"])
    if "dev" not in splits:
        train, dev, note = set_aside(files["train"], splits["train"], lambda e: e.words)
        splits |= {"train": train, "dev": dev}
        notes.append(note)
    for split, examples in splits.items():
        if strange := sorted(set(all_labels(examples)) - set(labels)):
            notes.append(
                f"Tags of {split} that train does not have, so that they cannot be learnt: "
                f"{', '.join(strange[:5])}{', …' if len(strange) > 5 else ''}."
            )
    return Task(
        name=name,
        kind="tag",
        splits=splits,
        labels=labels,
        metric="accuracy" if scheme is None else "f1",
        length=LENGTH,
        columns={**columns, "scheme": scheme or ""},
        warnings=tuple(notes),
    )


def tagged(number: int, sentence: Lines, *, spans: bool) -> Tagged:
    """The example of a sentence."""
    tags = sentence.tags
    if spans and tags is not None:
        tags = to_bioes(tags)
    return Tagged(id=str(number), words=sentence.words, tags=tags)


def all_labels(examples: Sequence[Tagged]) -> tuple[str, ...]:
    """The tags that occur, sorted, O first."""
    found = {tag for each in examples for tag in each.tags or ()}
    return tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))


def check(path: Path, sentences: list[Lines], scheme: Scheme, *, strict: bool) -> list[str]:
    """Refuse or warn of tags that break their scheme."""
    found = [
        (sentence.lines[place], reason)
        for sentence in sentences
        for place, reason in breaches(sentence.tags or (), scheme)
    ]
    if not found:
        return []
    line, reason = found[0]
    more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
    if strict:
        raise UserError(
            f"'{path}' line {line}{more}: the tags follow the scheme {scheme}, but {reason}: "
            "correct the tags, so that it is clear where each span starts."
        )
    return [
        f"'{path}' line {line}{more} breaks the scheme {scheme}: {reason}; read as well as can be."
    ]


def read_conll(path: Path, column: int | None = None, content: str | None = None) -> list[Lines]:
    """The sentences of a CoNLL file; the tags are None where there is only the word."""
    content = clean(read_text(path) if content is None else content)
    rows = list(enumerate(content.split("\n"), start=1))
    sample = next((t for _, t in rows if t.strip() and not t.startswith(("#", "-DOCSTART-"))), "#")
    separator = "\t" if "\t" in sample else None
    width = len(cells(sample, separator))
    conllu = width == CONLLU and CONLLU_NUMBER.fullmatch(cells(sample, separator)[0]) is not None
    word_at = 1 if conllu else 0
    tag_at = tag_column(path, column, width, conllu)
    sentences: list[Lines] = []
    words: list[tuple[int, str, str]] = []
    for line, text in [*rows, (len(rows) + 1, "")]:
        if not text.strip() or text.startswith("-DOCSTART-"):
            if words:
                sentences.append(sentence(words, hidden=tag_at is None))
            words = []
            continue
        row = cells(text, separator)
        if text.startswith("#") and not words and (len(row) != width or COMMENT.match(text)):
            continue
        if len(row) != width:
            raise UserError(
                f"'{path}' line {line} has {len(row)} columns, where the first word has {width}: "
                "correct it; words have one line each and sentences a blank line between them."
            )
        if conllu and not row[0].isdecimal():
            continue  # several words written as one, or one that is not written
        tag = row[tag_at].strip() if tag_at is not None else ""
        if not tag and tag_at is not None:
            raise UserError(f"'{path}' line {line} has no tag in column {tag_at + 1}: add it.")
        words.append((line, clean(row[word_at].strip()), tag))
    if not sentences:
        raise UserError(f"'{path}' holds no words: fill it or name another file.")
    return sentences


def cells(text: str, separator: str | None) -> list[str]:
    """The columns of a line, at tabs where the file has them, else at blanks."""
    return text.split(separator) if separator else BLANKS.split(text.strip(" \t"))


def tag_column(path: Path, column: int | None, width: int, conllu: bool) -> int | None:
    """Where the tags are, counted from 0; None in a file with nothing but words."""
    if width == 1:
        return None
    if column is None:
        column = 4 if conllu else LAST
    place = column - 1 if column > 0 else width + column
    if not 0 < place < width:
        raise UserError(
            f"'{path}' has {width} columns, of which the first is the word: there are no tags in "
            f"column {column}; count from 1, or from the end with -1."
        )
    return place


def sentence(words: list[tuple[int, str, str]], *, hidden: bool) -> Lines:
    """The sentence of some lines."""
    lines, texts, tags = zip(*words, strict=True)
    return Lines(words=texts, tags=None if hidden else tags, lines=lines)


def is_table(path: Path, content: str, text: str | None, label: str | None) -> bool:
    """Whether a file is a table with one sentence in a row, and not in CoNLL format."""
    if table_format(path, content) in JSON or ending(path) in CSV:
        return True
    if ending(path) not in ("", ".tsv", ".tab"):
        return False
    header = header_cells(content)
    names = {cell.casefold() for cell in header}
    usual = not names.isdisjoint(WORDS) and not names.isdisjoint(TAGS)
    return usual or text in header or label in header


def read_tagged_table(
    table: Table, text: str | None, label: str | None, *, need_tags: bool
) -> tuple[list[Lines], list[str]]:
    """The sentences of a table whose cells hold lists, or words and tags between blanks."""
    text = text or next((found for name in WORDS if (found := table.find(name))), WORDS[0])
    label = label or next((found for name in TAGS if (found := table.find(name))), TAGS[0])
    table.need(text, "--text")
    if need_tags and label not in table.columns and label not in TAGS:
        table.need(label, "--label")
    refuse_same_column(table.path, {"--text": text, "--label": label})
    table, skipped = drop_empty_rows(table, [text])
    sentences = []
    for row in table.rows:
        words = listed(table, row, text)
        tags = listed(table, row, label) if label in table.columns else None
        if tags is not None and len(tags) != len(words):
            raise UserError(
                f"{table.place(row)} has {len(words)} words and {len(tags)} tags: "
                "every word needs one tag."
            )
        sentences.append(Lines(words=words, tags=tags, lines=[row.line] * len(words)))
    return sentences, skipped


def listed(table: Table, row: Row, column: str) -> tuple[str, ...]:
    """The words or tags in a cell."""
    value: Any = row.values.get(column)
    if isinstance(value, list):
        if not value or not all(isinstance(each, str) for each in value):
            raise UserError(
                f"{table.place(row)}: the list in the column '{column}' must hold texts, at least "
                "one, and nothing else (tags by their names, not by numbers)."
            )
        return tuple(clean(each) for each in value)
    return tuple(BLANKS.split(table.text(row, column).strip(" \t")))
