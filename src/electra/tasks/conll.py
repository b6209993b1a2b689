"""Load tagging tasks: CoNLL columns, CoNLL-U, and your own tables."""

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.tasks.data_files import file_extension, find_data, find_split_files
from electra.tasks.dev_split import make_dev_split
from electra.tasks.examples import Tagged, Task
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
from electra.tasks.tag_schemes import OUTSIDE, Scheme, find_scheme, find_violations, to_bioes
from electra.text.readers import clean

MAX_LENGTH = 256
LAST_COLUMN = -1

WORDS_NAMES = ("words", "tokens", "text")
TAGS_NAMES = ("tags", "labels", "label")

BLANKS = re.compile(r"[ \t]+")  # only these: a word may contain a no-break space
COMMENT = re.compile(r"#\s*(id|sent_id|text|newdoc|newpar|global\.columns)\b")
CONLLU_WIDTH = 10
"""Columns of CoNLL-U; the first is the number, the second the word, the fourth its UPOS tag."""
CONLLU_NUMBER = re.compile(r"\d+([-.]\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawSentence:
    """A sentence as it is in the file, with the line of each word for error messages."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: Sequence[int]


def load_tags(name: str, data: Path, *, text: str | None = None, label: str | None = None) -> Task:
    """Load CoNLL files, or tables with a column of words and a column of tags.

    `data` is a file, a folder with train.… and dev.…, or the folder that contains it. `label` is
    the column of the tags: a name in tables, a number in CoNLL files (from 1, or from the end with
    -1). By default CoNLL files use the last column, and CoNLL-U files the UPOS tags. Span tags are
    converted to BIOES.
    """
    files = find_split_files(find_data(data, [name]))
    raw: dict[str, list[RawSentence]] = {}
    notes: list[str] = []
    for split, path in files.items():
        raw[split], skipped = read_tags(path, text, label)
        notes += skipped
    for split in ("train", "dev"):
        if untagged := next((s for s in raw.get(split, ()) if s.tags is None), None):
            raise UserError(f"'{files[split]}' line {untagged.lines[0]} has no tags: add them.")
    scheme = find_scheme(s.tags for s in raw["train"] if s.tags is not None)
    splits: dict[str, list[Tagged]] = {}
    for split, sentences in raw.items():
        if scheme is not None:
            notes += check_scheme(files[split], sentences, scheme, strict=split == "train")
        splits[split] = to_examples(sentences, convert=scheme is not None)
    labels = find_labels(splits["train"])
    if "dev" not in splits:
        train, dev, note = make_dev_split(files["train"], splits["train"], lambda e: e.words)
        splits |= {"train": train, "dev": dev}
        notes.append(note)
    for split, examples in splits.items():
        if unseen := sorted(set(find_labels(examples)) - set(labels)):
            notes.append(
                f"Tags of {split} that train does not have and the model cannot learn: "
                f"{', '.join(unseen[:5])}{', …' if len(unseen) > 5 else ''}."
            )
    named = {key: value for key, value in (("text", text), ("label", label)) if value}
    return Task(
        name=name,
        kind="tag",
        splits=splits,
        labels=labels,
        metric="accuracy" if scheme is None else "f1",
        max_length=MAX_LENGTH,
        columns={**named, "scheme": scheme or ""},
        warnings=tuple(notes),
    )


def read_tagged_examples(
    path: Path, columns: Mapping[str, str], content: str | None = None
) -> list[Tagged]:
    """Read the sentences of another file of a task with these `columns`; tags are optional.

    `content` is the text of the file if you have read it already.
    """
    sentences, skipped = read_tags(
        path, columns.get("text"), columns.get("label"), content, tags_optional=True
    )
    for warning in skipped:
        warnings.warn(warning, stacklevel=2)
    return to_examples(sentences, convert=bool(columns.get("scheme")))


def read_tags(
    path: Path,
    text: str | None = None,
    label: str | None = None,
    content: str | None = None,
    *,
    tags_optional: bool = False,
) -> tuple[list[RawSentence], list[str]]:
    """Read the sentences of a file in any of the formats, and warnings."""
    content = read_text(path) if content is None else content
    if is_table(path, content, text, label):
        table = read_table(path, content)
        return read_tagged_table(table, text, label, tags_optional=tags_optional)
    if label is not None and not re.fullmatch(r"-?\d{1,9}", label):
        raise UserError(
            f"'{path}' has no header: name the column of the tags by its number, not '{label}'."
        )
    return read_conll(path, None if label is None else int(label), content), []


def to_examples(sentences: Sequence[RawSentence], *, convert: bool) -> list[Tagged]:
    """Make examples; `convert` turns their tags into BIOES."""
    examples = []
    for index, sentence in enumerate(sentences):
        tags = sentence.tags
        if convert and tags is not None:
            tags = to_bioes(tags)
        examples.append(Tagged(id=str(index), words=sentence.words, tags=tags))
    return examples


def find_labels(examples: Sequence[Tagged]) -> tuple[str, ...]:
    """The tags that occur, sorted, O first."""
    found = {tag for each in examples for tag in each.tags or ()}
    return tuple(sorted(found, key=lambda tag: (tag != OUTSIDE, tag)))


def check_scheme(
    path: Path, sentences: list[RawSentence], scheme: Scheme, *, strict: bool
) -> list[str]:
    """Check that tags follow their scheme: raise if `strict`, else return warnings."""
    found = [
        (sentence.lines[word], reason)
        for sentence in sentences
        for word, reason in find_violations(sentence.tags or (), scheme)
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
        f"'{path}' line {line}{more} violates the scheme {scheme}: {reason}; the spans are read as "
        "conlleval reads them."
    ]


def read_conll(
    path: Path, column: int | None = None, content: str | None = None
) -> list[RawSentence]:
    """Read a CoNLL file; the tags are None if it has words only."""
    content = clean(read_text(path) if content is None else content)
    rows = list(enumerate(content.split("\n"), start=1))
    sample = next((t for _, t in rows if t.strip() and not t.startswith(("#", "-DOCSTART-"))), "#")
    separator = "\t" if "\t" in sample else None
    first = split_columns(sample, separator)
    width = len(first)
    conllu = width == CONLLU_WIDTH and CONLLU_NUMBER.fullmatch(first[0]) is not None
    word_column = 1 if conllu else 0
    tag_column = find_tag_column(path, column, width, conllu)
    sentences: list[RawSentence] = []
    words: list[tuple[int, str, str]] = []
    for line, text in [*rows, (len(rows) + 1, "")]:
        if not text.strip() or text.startswith("-DOCSTART-"):
            if words:
                sentences.append(build_sentence(words, tagged=tag_column is not None))
            words = []
            continue
        row = split_columns(text, separator)
        if text.startswith("#") and not words and (len(row) != width or COMMENT.match(text)):
            continue
        if len(row) != width:
            raise UserError(
                f"'{path}' line {line} has {len(row)} columns, where the first word has {width}: "
                "correct it; each word has its own line, and a blank line separates sentences."
            )
        if conllu and not row[0].isdecimal():
            continue  # a multiword token or an empty node
        tag = row[tag_column].strip() if tag_column is not None else ""
        if not tag and tag_column is not None:
            raise UserError(f"'{path}' line {line} has no tag in column {tag_column + 1}: add it.")
        words.append((line, clean(row[word_column].strip()), tag))
    if not sentences:
        raise UserError(f"'{path}' holds no words: fill it or name another file.")
    return sentences


def split_columns(text: str, separator: str | None) -> list[str]:
    """Split a line at the separator, or at blanks if there is none."""
    return text.split(separator) if separator else BLANKS.split(text.strip(" \t"))


def find_tag_column(path: Path, column: int | None, width: int, conllu: bool) -> int | None:
    """The index of the column of the tags, from 0; None if the file has words only."""
    if width == 1:
        return None
    if column is None:
        column = 4 if conllu else LAST_COLUMN
    index = column - 1 if column > 0 else width + column
    if not 0 < index < width:
        raise UserError(
            f"'{path}' has {width} columns, of which the first is the word: there are no tags in "
            f"column {column}; count from 1, or from the end with -1."
        )
    return index


def build_sentence(words: list[tuple[int, str, str]], *, tagged: bool) -> RawSentence:
    """Make a sentence from the line, text and tag of each word."""
    lines, texts, tags = zip(*words, strict=True)
    return RawSentence(words=texts, tags=tags if tagged else None, lines=lines)


def is_table(path: Path, content: str, text: str | None, label: str | None) -> bool:
    """Whether a file is a table with one sentence per row, and not in CoNLL format."""
    if table_format(path, content) in JSON or file_extension(path) in CSV:
        return True
    if file_extension(path) not in ("", ".tsv", ".tab"):
        return False
    header = header_cells(content)
    names = {cell.casefold() for cell in header}
    usual = not names.isdisjoint(WORDS_NAMES) and not names.isdisjoint(TAGS_NAMES)
    return usual or text in header or label in header


def read_tagged_table(
    table: Table, text: str | None, label: str | None, *, tags_optional: bool
) -> tuple[list[RawSentence], list[str]]:
    """Read a table whose cells hold lists, or words and tags separated by blanks."""
    text = text or next((c for name in WORDS_NAMES if (c := table.find(name))), WORDS_NAMES[0])
    label = label or next((c for name in TAGS_NAMES if (c := table.find(name))), TAGS_NAMES[0])
    table.require(text, "--text")
    if not tags_optional and label not in TAGS_NAMES:
        table.require(label, "--label")
    refuse_same_column(table.path, {"--text": text, "--label": label})
    table, skipped = drop_empty_rows(table, [text])
    sentences = []
    for row in table.rows:
        words = read_list(table, row, text)
        tags = read_list(table, row, label) if label in table.columns else None
        if tags is not None and len(tags) != len(words):
            raise UserError(
                f"{table.location(row)} has {len(words)} words and {len(tags)} tags: "
                "every word needs one tag."
            )
        sentences.append(RawSentence(words=words, tags=tags, lines=[row.line] * len(words)))
    return sentences, skipped


def read_list(table: Table, row: Row, column: str) -> tuple[str, ...]:
    """The words or tags in a cell."""
    value: Any = row.values.get(column)
    if isinstance(value, list):
        if not value or not all(isinstance(each, str) for each in value):
            raise UserError(
                f"{table.location(row)}: the list in the column '{column}' must hold one or more "
                "strings and nothing else (tags by name, not by number)."
            )
        return tuple(clean(each) for each in value)
    return tuple(BLANKS.split(table.text(row, column).strip(" \t")))
