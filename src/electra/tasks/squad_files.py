"""Files of questions in three formats: SQuAD, MRQA, and tables of your own."""

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
    no_json,
    read_table,
    read_text,
    refuse_same_column,
    table_format,
)
from electra.text.read import clean

ENDINGS = (*JSON, ".csv", ".tsv", ".tab")
ANSWERS = ("answer", "answers")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A question as a file has it."""

    where: str
    """For errors: the file with the line, the question's id, or both."""
    id: str
    question: str
    context: str
    answers: Sequence[tuple[str, int | None]] | None
    """Texts and their starts; None where the file does not say."""
    others: Sequence[str] = ()
    """More texts that count as right."""
    impossible: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns of a table of questions."""

    question: str = "question"
    context: str = "context"
    answer: str = "answer"
    """If there is none of that name, `answers`."""
    start: str = "answer_start"


def read_questions(
    path: Path, columns: Columns, content: str | None = None, *, need_answers: bool = True
) -> tuple[Iterator[Raw], list[str]]:
    """The questions of a file in any of the formats, and warnings."""
    content = read_text(path) if content is None else content
    if table_format(path, content) not in JSON:
        return read_columns(read_table(path, content), columns, need_answers=need_answers)
    text = clean(content)
    head, _, rest = text.lstrip().partition("\n")
    try:
        first = json.loads(head)
    except (ValueError, RecursionError):
        first = None
    if isinstance(first, dict) and (rest.strip() or "data" not in first):
        if "header" in first or "qas" in first:
            return read_mrqa(path, text), []
        return read_columns(read_table(path, content), columns, need_answers=need_answers)
    if text.lstrip().startswith("["):
        return read_columns(read_table(path, content), columns, need_answers=need_answers)
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise no_json(path, getattr(error, "lineno", 1), error) from None
    return read_squad(path, whole), []


def need(record: Any, key: str, kind: type[Value], where: str) -> Value:
    """What an object has under a key, of the kind that it must be."""
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        name = {str: "text", list: "list", int: "number"}.get(kind, kind.__name__)
        raise UserError(f"{where} has no {name} '{key}': see the format of SQuAD's files.")
    return value


def need_text(record: Any, key: str, where: str) -> str:
    """A text under a key, its line ends as they are, since starts of answers count them."""
    text = need(record, key, str, where)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which tokenizers refuse
        return clean(text)
    return text


def read_squad(path: Path, content: Any) -> Iterator[Raw]:
    """The questions of a SQuAD file: articles with paragraphs with questions."""
    for number, article in enumerate(need(content, "data", list, f"'{path}'"), start=1):
        for paragraph in need(article, "paragraphs", list, f"'{path}' article {number}"):
            context = need_text(paragraph, "context", f"'{path}' article {number}: a paragraph")
            for each in need(paragraph, "qas", list, f"'{path}' article {number}: a paragraph"):
                where = f"'{path}' article {number}: a question"
                if not isinstance(each, dict) or each.get("id") is None:
                    raise UserError(f"{where} has no 'id': give it one.")
                where = f"'{path}' question '{each['id']}'"
                impossible = each.get("is_impossible")
                yield Raw(
                    where=where,
                    id=str(each["id"]),
                    question=need_text(each, "question", where),
                    context=context,
                    answers=squad_answers(each, where),
                    impossible=None if impossible is None else bool(impossible),
                )


def squad_answers(question: dict[str, Any], where: str) -> list[tuple[str, int | None]] | None:
    """The answers of a question in a SQuAD file; None where they are hidden."""
    if question.get("answers") is None:
        return None
    return [
        (need_text(each, "text", f"{where}: an answer"), start_of(each.get("answer_start"), where))
        for each in need(question, "answers", list, where)
    ]


def start_of(value: Any, where: str) -> int | None:
    """Where an answer starts, if that is given; in a table it is a text."""
    if value is None or value == "":
        return None
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(f"{where}: the answer's start must be a number of characters, not {value}.")
    return value


def read_mrqa(path: Path, text: str) -> Iterator[Raw]:
    """The questions of MRQA's JSON lines: a context and its questions in each."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"'{path}' line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise no_json(path, number, error) from None
        if isinstance(record, dict) and "header" in record:
            continue
        context = need_text(record, "context", where)
        for each in need(record, "qas", list, where):
            name = str(each.get("qid", each.get("id", ""))) if isinstance(each, dict) else ""
            if not name:
                raise UserError(f"{where}: a question has no 'qid': give it one.")
            place = f"{where} question '{name}'"
            answers, others = mrqa_answers(each, context, place)
            yield Raw(
                where=place,
                id=name,
                question=need_text(each, "question", place),
                context=context,
                answers=answers,
                others=others,
            )


def mrqa_answers(
    question: dict[str, Any], context: str, where: str
) -> tuple[list[tuple[str, int | None]] | None, list[str]]:
    """The spans that are given, the end included in each, and the texts that are no span."""
    texts = [text for text in question.get("answers") or () if isinstance(text, str)]
    if question.get("detected_answers") is None:
        return ([(text, None) for text in texts] if "answers" in question else None), []
    spans: list[tuple[str, int | None]] = []
    for each in need(question, "detected_answers", list, where):
        for span in need(each, "char_spans", list, f"{where}: a detected answer"):
            first, last = span if isinstance(span, list) and len(span) == 2 else (None, None)
            if not isinstance(first, int) or not isinstance(last, int):
                raise UserError(f"{where}: a span must be two numbers of characters, not {span}.")
            if not 0 <= first <= last < len(context):
                raise UserError(f"{where}: the span {span} is not inside its context.")
            spans.append((context[first : last + 1], first))
    return spans, [text for text in texts if text not in {span for span, _ in spans}]


def read_columns(
    table: Table, columns: Columns, *, need_answers: bool
) -> tuple[Iterator[Raw], list[str]]:
    """The questions of a table, one in a row, and warnings."""
    question = find_column(table, columns.question, "--text", usual=("question",))
    context = find_column(table, columns.context, "--pair", usual=("context",))
    answer = next((found for name in ANSWERS if (found := table.find(name))), None)
    if columns.answer in table.columns or (need_answers and columns.answer not in ANSWERS):
        answer = find_column(table, columns.answer, "--label")
    used = {"--text": question, "--pair": context} | ({"--label": answer} if answer else {})
    refuse_same_column(table.path, used)
    table, skipped = drop_empty_rows(table, [question, context])
    raws = (
        Raw(
            where=table.place(row),
            id=table.name(row),
            question=table.text(row, question),
            context=table.text(row, context),
            answers=None if answer is None else row_answers(table, row, answer, columns.start),
        )
        for row in table.rows
    )
    return raws, skipped


def find_column(table: Table, name: str, option: str, usual: Sequence[str] = ()) -> str:
    """The column of that name; the case counts unless it is a usual name."""
    found = table.find(name) if name in usual else None
    if found is None:
        table.need(name, option)
    return found or name


def row_answers(table: Table, row: Row, column: str, start: str) -> list[tuple[str, int | None]]:
    """A row's answers: a text, a list of texts, or SQuAD's answers in one of two forms."""
    value, where = row.values.get(column), table.place(row)
    if value is None or value == "":
        return []
    if isinstance(value, dict):  # {"text": [...], "answer_start": [...]}
        texts, starts = need(value, "text", list, where), need(value, "answer_start", list, where)
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        texts = [each.get("text") for each in value]
        starts = [each.get("answer_start") for each in value]
    else:
        texts, given = (value if isinstance(value, list) else [value]), row.values.get(start)
        starts = given if isinstance(given, list) else [given, *[None] * (len(texts) - 1)]
    if len(starts) < len(texts) or not all(isinstance(text, str) for text in texts):
        raise UserError(
            f"{where}: the answer in the column '{column}' must be a text or a list of texts, "
            "with a start for each or none."
        )
    return [(clean(t), start_of(s, where)) for t, s in zip(texts, starts, strict=False)]
