"""Read the inputs of `electra predict`: plain lines, or a table as in training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.tasks.conll import read_tagged_examples
from electra.tasks.data_files import file_extension
from electra.tasks.examples import Kind, Sentence, Tagged
from electra.tasks.glue import GLUE, read_glue_file
from electra.tasks.squad import read_question_examples
from electra.tasks.squad_files import Columns
from electra.tasks.table import JSON, check_extension, header_cells, read_text, table_format
from electra.tasks.user_files import read_user_examples
from electra.text.readers import clean


def read_inputs(
    source: Path,
    *,
    name: str,
    kind: Kind,
    columns: Mapping[str, str],
    labels: Sequence[str] = (),
    pairs: bool = False,
    labelled: bool = False,
) -> list[Any]:
    """Read a `.txt` with one text per line, or a table or JSON with the columns of the task.

    With `labelled`, the labels of a table are read too, where it has them.
    """
    if kind != "tag":  # CoNLL files have any extension
        check_extension(source)
    content = read_text(source)  # once: it may be a pipe
    if kind == "qa":
        return read_question_examples(source, columns=Columns(**columns), content=content)
    lines = has_lines(source, content, columns)
    if kind == "tag":
        if lines and not has_word_per_line(content, labels):
            return [Tagged(id=n, words=tuple(line.split())) for n, line in plain_lines(content)]
        return read_tagged_examples(source, columns, content)
    if lines:
        if pairs or kind == "choice" or columns.get("pair"):
            raise UserError(
                f"The model needs two texts per example, and '{source}' has one per line: use a "
                "table (.csv, .tsv, .jsonl) with the columns of the training file."
            )
        return [Sentence(id=n, text=line) for n, line in plain_lines(content)]
    if name in GLUE and not columns and file_extension(source) == ".tsv":
        return read_glue_file(name, source, labels_optional=True, content=content)[0]
    columns = columns or ({"text": "text", "pair": "pair"} if pairs else {"text": "text"})
    return read_user_examples(source, kind, columns, content, labels if labelled else None)


def plain_lines(content: str) -> list[tuple[str, str]]:
    """The lines that are not blank, each with its line number as id."""
    lines = enumerate(clean(content).split("\n"), start=1)
    return [(str(number), line.strip()) for number, line in lines if line.strip()]


def has_lines(source: Path, content: str, columns: Mapping[str, str]) -> bool:
    """Whether a file has one text per line; without a file extension, by its first line."""
    if file_extension(source):
        return file_extension(source) == ".txt"
    header = {cell.casefold() for cell in header_cells(content)}
    names = {"text", "words", "tokens", *(name.casefold() for name in columns.values())}
    return table_format(source, content) not in JSON and header.isdisjoint(names)


def has_word_per_line(content: str, labels: Sequence[str]) -> bool:
    """Whether a file has one word per line, alone or followed by its tag."""
    lines = [line.split() for line in content.split("\n") if line.strip()]
    types = {label.partition("-")[2] for label in labels} - {""}
    tags = {line[-1] for line in lines if line[0] != "-DOCSTART-"}
    known = all(tag in labels or tag.partition("-")[2] in types for tag in tags)
    return len({len(line) for line in lines}) == 1 and (known or len(lines[0]) == 1)
