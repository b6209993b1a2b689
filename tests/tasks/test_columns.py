"""Which columns of a user's file are used."""

from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.load import load_task


def table(path: Path, header: str, *cells: str, rows: int = 20) -> Path:
    """A CSV file; `#` in a cell becomes the row's number, `?` a or b."""
    lines = [header]
    for number in range(rows):
        lines.append(",".join(cells).replace("#", str(number)).replace("?", "ab"[number % 2]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


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
