"""Read files of questions: SQuAD, MRQA, and your own tables."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from electra.errors import UserError
from electra.tasks.table import (
    JSON,
    Row,
    Table,
    drop_empty_rows,
    json_error,
    read_table,
    read_text,
    refuse_same_column,
    table_format,
)
from electra.text.readers import clean

EXTENSIONS = (*JSON, ".csv", ".tsv", ".tab")
MAX_DIGITS = 20  # of a position
ANSWER_NAMES = ("answer", "answers")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQuestion:
    """A question as it is in the file."""

    location: str
    """For error messages: the file with the line, the id, or both."""
    id: str
    question: str
    context: str
    answers: Sequence[tuple[str, int | None]] | None
    """Texts and their starts; None if unknown."""
    others: Sequence[str] = ()
    """Other texts that count as correct."""
    impossible: bool | None = None
    """Whether it is unanswerable; None if the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table of questions."""

    question: str = "question"
    context: str = "context"
    answer: str = "answer"
    """Falls back to `answers`."""
    start: str = "answer_start"


def read_questions(
    path: Path, columns: Columns, content: str | None = None, *, answers_optional: bool = False
) -> tuple[Iterator[RawQuestion], list[str]]:
    """Read the questions of a file in any of the formats, and warnings."""
    content = read_text(path) if content is None else content
    if table_format(path, content) not in JSON:
        return read_columns(read_table(path, content), columns, answers_optional=answers_optional)
    text = clean(content)
    head, _, rest = text.lstrip().partition("\n")
    try:
        first = json.loads(head)
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and (rest.strip() or "data" not in first):
        if "header" in first or "qas" in first:
            return read_mrqa(path, text), []
        return read_columns(read_table(path, content), columns, answers_optional=answers_optional)
    if text.lstrip().startswith("["):
        return read_columns(read_table(path, content), columns, answers_optional=answers_optional)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise json_error(path, getattr(error, "lineno", 1), error) from None
    return read_squad(path, whole), []


def get_field(record: Any, key: str, kind: type[Value], location: str) -> Value:
    """Get the value of a key, which must have this type."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        name = {str: "text", list: "list", int: "number"}.get(kind, kind.__name__)
        raise UserError(f"{location} has no {name} '{key}': see the format of the SQuAD files.")
    return value


def get_text(record: Any, key: str, location: str) -> str:
    """Get a text; its line ends stay, because answer starts count them."""
    text = get_field(record, key, str, location)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which tokenizers refuse
        return clean(text)
    return text


def read_squad(path: Path, content: Any) -> Iterator[RawQuestion]:
    """Read a SQuAD file: articles, paragraphs, questions."""
    for number, article in enumerate(get_field(content, "data", list, f"'{path}'"), start=1):
        for paragraph in get_field(article, "paragraphs", list, f"'{path}' article {number}"):
            context = get_text(paragraph, "context", f"'{path}' article {number}: a paragraph")
            for each in get_field(
                paragraph, "qas", list, f"'{path}' article {number}: a paragraph"
            ):
                location = f"'{path}' article {number}: a question"
                if not isinstance(each, dict) or each.get("id") is None:
                    raise UserError(f"{location} has no 'id': give it one.")
                location = f"'{path}' question '{each['id']}'"
                impossible = each.get("is_impossible")
                yield RawQuestion(
                    location=location,
                    id=str(each["id"]),
                    question=get_text(each, "question", location),
                    context=context,
                    answers=squad_answers(each, location),
                    impossible=None if impossible is None else bool(impossible),
                )


def squad_answers(question: dict[str, Any], location: str) -> list[tuple[str, int | None]] | None:
    """The answers of a question in a SQuAD file; None if unknown."""
    if question.get("answers") is None:
        return None
    return [
        (
            get_text(each, "text", f"{location}: an answer"),
            parse_start(each.get("answer_start"), location),
        )
        for each in get_field(question, "answers", list, location)
    ]


def parse_start(value: Any, location: str) -> int | None:
    """Parse the start of an answer, if there is one; in CSV and TSV it is a string."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < MAX_DIGITS:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(
            f"{location}: the start of the answer must be a character position, not {value}."
        )
    return value


def read_mrqa(path: Path, text: str) -> Iterator[RawQuestion]:
    """Read MRQA's JSON lines, each a context with its questions."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        location = f"'{path}' line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise json_error(path, number, error) from None
        if isinstance(record, dict) and "header" in record:
            continue
        context = get_text(record, "context", location)
        for each in get_field(record, "qas", list, location):
            question_id = str(each.get("qid", each.get("id", ""))) if isinstance(each, dict) else ""
            if not question_id:
                raise UserError(f"{location}: a question has no 'qid': give it one.")
            question_location = f"{location} question '{question_id}'"
            answers, others = mrqa_answers(each, context, question_location)
            yield RawQuestion(
                location=question_location,
                id=question_id,
                question=get_text(each, "question", question_location),
                context=context,
                answers=answers,
                others=others,
            )


def mrqa_answers(
    question: dict[str, Any], context: str, location: str
) -> tuple[list[tuple[str, int | None]] | None, list[str]]:
    """The annotated spans, whose ends are inclusive, and the other answer texts."""
    given = question.get("answers")
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list) else []
    if question.get("detected_answers") is None:
        return ([(text, None) for text in texts] if "answers" in question else None), []
    spans: list[tuple[str, int | None]] = []
    for each in get_field(question, "detected_answers", list, location):
        for span in get_field(each, "char_spans", list, f"{location}: a detected answer"):
            first, last = span if isinstance(span, list) and len(span) == 2 else (None, None)
            if not isinstance(first, int) or not isinstance(last, int):
                raise UserError(f"{location}: a span must be two character positions, not {span}.")
            if not 0 <= first <= last < len(context):
                raise UserError(f"{location}: the span {span} is not inside its context.")
            spans.append((context[first : last + 1], first))
    return spans, [text for text in texts if text not in {span for span, _ in spans}]


def read_columns(
    table: Table, columns: Columns, *, answers_optional: bool
) -> tuple[Iterator[RawQuestion], list[str]]:
    """Read a table with one question per row, and warnings."""
    # `electra predict`, where answers are optional, has no options for the columns
    text, pair = (None, None) if answers_optional else ("--text", "--pair")
    question = find_column(table, columns.question, text, default="question")
    context = find_column(table, columns.context, pair, default="context")
    answer = next((found for name in ANSWER_NAMES if (found := table.find(name))), None)
    if columns.answer in table.columns or (
        not answers_optional and columns.answer not in ANSWER_NAMES
    ):
        answer = find_column(table, columns.answer, "--label")
    used = {"--text": question, "--pair": context} | ({"--label": answer} if answer else {})
    refuse_same_column(table.path, used)
    table, skipped = drop_empty_rows(table, [question, context])
    questions = (
        RawQuestion(
            location=table.location(row),
            id=table.row_id(row),
            question=table.text(row, question),
            context=table.text(row, context),
            answers=None if answer is None else row_answers(table, row, answer, columns.start),
        )
        for row in table.rows
    )
    return questions, skipped


def find_column(table: Table, name: str, option: str | None, default: str = "") -> str:
    """Find a column; the default name matches in any case, others exactly."""
    found = table.find(name) if name == default else None
    if found is None:
        table.require(name, option)
    return found or name


def row_answers(table: Table, row: Row, column: str, start: str) -> list[tuple[str, int | None]]:
    """The answers of a row: a text, a list of texts, or `answers` as in SQuAD or `datasets`."""
    value, location = row.values.get(column), table.location(row)
    if value is None or value == "":
        return []
    if isinstance(value, dict):  # {"text": [...], "answer_start": [...]}
        texts, starts = (
            get_field(value, "text", list, location),
            get_field(value, "answer_start", list, location),
        )
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        texts = [each.get("text") for each in value]
        starts = [each.get("answer_start") for each in value]
    else:
        texts, given = (value if isinstance(value, list) else [value]), row.values.get(start)
        starts = given if isinstance(given, list) else [given, *[None] * (len(texts) - 1)]
    if len(starts) < len(texts) or not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{location}: the answer in the column '{column}' must be a text or a list of texts, "
            "all with a start or all without."
        )
    return [(clean(t), parse_start(s, location)) for t, s in zip(texts, starts, strict=False)]
