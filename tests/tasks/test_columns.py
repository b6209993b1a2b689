"""Which columns of a user's file are used."""

from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.load import load_task


def table(path: Path, header: str, *cells: str, rows: int = 20) -> Path:
    """Write a CSV file; `#` in a cell becomes the row number, `?` a or b."""
    lines = [header]
    for number in range(rows):
        lines.append(",".join(cells).replace("#", str(number)).replace("?", "ab"[number % 2]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def refusal(kind: str, path: Path, **columns: str) -> str:
    with pytest.raises(UserError) as error:
        load_task(kind, path, **columns)
    return str(error.value)


@pytest.mark.parametrize(
    ("kind", "header", "cells", "columns"),
    [
        ("classify", "Text,Label", ("film #", "?"), {"text": "Text", "label": "Label"}),
        ("classify", "REVIEW,Class,n", ("film #", "?", "1"), {"text": "REVIEW", "label": "Class"}),
        (
            "pair",
            "Premise,Hypothesis,Label",
            ("p #", "h #", "?"),
            {"text": "Premise", "pair": "Hypothesis", "label": "Label"},
        ),
        (
            "choice",
            "Question,Choice0,Choice1,Label",
            ("q #", "a", "b", "?"),
            {"text": "Question", "pair": "Choice0,Choice1", "label": "Label"},
        ),
    ],
)
def test_default_columns_are_found_in_any_case(tmp_path, kind, header, cells, columns):
    assert load_task(kind, table(tmp_path / "a.csv", header, *cells)).columns == columns


def test_default_columns_of_tags_and_questions_are_found_in_any_case(tmp_path):
    tags = load_task("tag", table(tmp_path / "a.csv", "Words,Tags", "w# x", "N ?"))
    assert tags.labels == ("N", "a", "b")
    path = table(
        tmp_path / "b.csv", "Id,Question,Context,Answer", "q#", "who #", "the barn #", "barn"
    )
    questions = load_task("qa", path).splits["train"]
    assert questions[0].answers[0].text == "barn"
    assert questions[0].id.startswith("q")


def test_the_exact_name_is_preferred(tmp_path):
    path = table(tmp_path / "a.csv", "TEXT,text,label", "wrong #", "right #", "?")
    assert load_task("classify", path).columns["text"] == "text"


def test_two_columns_that_differ_in_case_only_must_be_named(tmp_path):
    path = table(tmp_path / "a.csv", "TEXT,Text,label", "one #", "two #", "?")
    with pytest.raises(UserError, match=r"which column is the text.*--text"):
        load_task("classify", path)
    assert load_task("classify", path, text="Text").columns["text"] == "Text"


@pytest.mark.parametrize(
    ("kind", "named", "options"),
    [
        ("classify", {"text": "text", "label": "text"}, "--text and --label"),
        ("classify", {"label": "text"}, "--text and --label"),
        ("regress", {"text": "label"}, "--text and --label"),
        ("pair", {"text": "text", "pair": "text"}, "--text and --pair"),
        ("pair", {"text": "text", "pair": "label"}, "--label and --pair"),
        ("choice", {"text": "text", "pair": "other,label"}, "--label and --pair"),
        ("tag", {"text": "text", "label": "text"}, "--text and --label"),
        ("qa", {"text": "text", "pair": "other", "label": "other"}, "--pair and --label"),
        ("qa", {"text": "text", "pair": "text", "label": "label"}, "--text and --pair"),
    ],
)
def test_a_column_cannot_have_two_roles(tmp_path, kind, named, options):
    path = table(tmp_path / "a.csv", "text,other,label", "film #", "x", "?")
    with pytest.raises(UserError, match=f"{options} are both the column"):
        load_task(kind, path, **named)


PAIR = {"premise": "a", "hypothesis": "b", "label": "x", "other": "c"}


@pytest.mark.parametrize(
    ("row", "named", "columns"),
    [
        (PAIR, {}, ("premise", "hypothesis", "label")),
        (PAIR, {"text": "premise"}, ("premise", "hypothesis", "label")),
        (PAIR, {"pair": "hypothesis"}, ("premise", "hypothesis", "label")),
        (PAIR, {"text": "other", "pair": "premise"}, ("other", "premise", "label")),
        (
            PAIR,
            {"text": "other", "pair": "premise", "label": "label"},
            ("other", "premise", "label"),
        ),
        ({"text": "a", "pair": "b", "class": "c"}, {}, ("text", "pair", "class")),
        ({"text": "a", "text1": "b", "text2": "b", "class": "c"}, {}, ("text1", "text2", "class")),
        (
            {"text": "a", "text1": "b", "text2": "b", "class": "c"},
            {"pair": "text2"},
            ("text1", "text2", "class"),
        ),
    ],
)
def test_columns_of_a_pair(write_rows, tmp_path, row, named, columns):
    rows = [{**row, columns[2]: label} for label in "xyxyxy"]
    for number, each in enumerate(rows):
        each[columns[0]] += str(number)
    task = load_task("pair", write_rows(tmp_path / "a.csv", *rows), **named)
    assert task.kind == "classify"
    assert task.columns == dict(zip(("text", "pair", "label"), columns, strict=True))


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("classify", {"a": "1", "b": "2"}, "which column is the text in"),
        ("classify", {"sentence": "1", "review": "2", "label": "3"}, "which column is the text"),
        ("classify", {"text": "1", "pair": "2", "label": "3"}, "which column is the text"),
        ("classify", {"text": "1", "score": "2", "class": "3"}, "which column is the label"),
        ("pair", {"text": "1", "label": "2"}, "which columns are the two texts"),
        ("choice", {"question": "1", "label": "2"}, "which column is the list of options"),
    ],
)
def test_unclear_columns_are_refused(write_rows, tmp_path, kind, row, words):
    path = write_rows(tmp_path / "a.csv", row, row)
    message = refusal(kind, path)
    assert words in message
    assert str(path) in message
    assert all(column in message for column in row)


def test_text_and_label_are_preferred(write_rows, tmp_path):
    rows = [{"text": f"{i}", "review": "x", "label": i % 2, "score": 3} for i in range(4)]
    task = load_task("classify", write_rows(tmp_path / "a.csv", *rows))
    assert task.columns == {"text": "text", "label": "label"}


def test_options_with_two_prefixes_are_refused(write_rows, tmp_path):
    rows = [{"text": "x", "choice0": "a", "choice1": "b", "option2": "c", "label": 0}] * 4
    assert "list of options" in refusal("choice", write_rows(tmp_path / "a.jsonl", *rows))


def test_misspelt_column_error_names_the_option(tmp_path):
    path = table(tmp_path / "a.csv", "text,label", "film #", "?")
    assert "did you mean 'text'? Name the right one with --text" in refusal(
        "classify", path, text="txt"
    )
    assert "no column 'second', it has: text, label" in refusal("classify", path, pair="second")
    assert "only the task choice takes more than one" in refusal(
        "classify", path, pair="text,label"
    )


def test_an_option_numbered_by_thousands_of_digits_is_no_option(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"text,choice1,choice{'9' * 5000},label\na,b,c,0\nd,e,f,1\n")
    with pytest.raises(UserError, match="which column is the list of options"):
        load_task("choice", path)
