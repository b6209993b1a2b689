"""The inputs of `electra predict`: lines, tables and pipes."""

from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.predict_inputs import read_inputs

CLASSIFY = {"name": "c", "kind": "classify", "columns": {"text": "said", "label": "mood"}}
PAIR = {"name": "p", "kind": "classify", "columns": {"text": "a", "pair": "b"}, "pairs": True}
TAG = {"name": "t", "kind": "tag", "columns": {"scheme": "IOB2"}, "labels": ["O", "S-X"]}
QA = {"name": "q", "kind": "qa", "columns": {"answer": "antwort"}}
COLA = {"name": "cola", "kind": "classify", "columns": {}}


def texts(examples: list) -> list[tuple[str, str]]:
    return [(example.id, example.text) for example in examples]


@pytest.fixture
def source(tmp_path, pipe, request):
    """Write an input as a file, or into a named pipe, which can be read only once."""

    def make(name: str, content: str) -> Path:
        if request.param == "pipe":
            return pipe(name, content.encode())
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return make


both = pytest.mark.parametrize("source", ["file", "pipe"], indirect=True)


@both
@pytest.mark.parametrize("name", ["new.txt", "new"])
def test_lines_are_texts(source, name):
    found = read_inputs(source(name, "well, done\n\n nice \n"), **CLASSIFY)
    assert texts(found) == [("1", "well, done"), ("3", "nice")]


@both
@pytest.mark.parametrize(
    ("extension", "content"),
    [
        (".csv", "mood,said\nlow,well\nlow,nice\n"),
        (".tsv", "said\tmood\nwell\tlow\nnice\tlow\n"),
        (".jsonl", '{"id": 2, "said": "well"}\n{"id": 3, "said": "nice"}\n'),
    ],
)
@pytest.mark.parametrize("named", [True, False])
def test_tables_are_read_by_extension_or_content(source, extension, content, named):
    path = source("new" + extension * named, content)
    assert texts(read_inputs(path, **CLASSIFY)) == [("2", "well"), ("3", "nice")]


@both
def test_rows_without_text_are_skipped_with_a_warning(source):
    path = source("new.csv", "said,n\nwell,1\nwell,2\nwell,3\n ,4\nnice,5\n")
    with pytest.warns(UserWarning, match="1 of 5 rows .* first on line 5"):
        found = read_inputs(path, **CLASSIFY)
    assert [example.id for example in found] == ["2", "3", "4", "6"]


@both
@pytest.mark.parametrize("name", ["new.txt", "new"])
def test_tags_from_a_sentence_per_line(source, name):
    (one,) = read_inputs(source(name, "the old barn burns\n"), **TAG)
    assert one.words == ("the", "old", "barn", "burns")


@both
@pytest.mark.parametrize("content", ["the O\nbarn B-X\n\nburns O\n", "the\nbarn\n\nburns\n"])
def test_tags_from_a_word_per_line(source, content):
    found = read_inputs(source("new.txt", content), **TAG)
    assert [example.words for example in found] == [("the", "barn"), ("burns",)]


@both
@pytest.mark.parametrize("name", ["new.jsonl", "new"])
def test_tags_from_json(source, name):
    (sentence,) = read_inputs(source(name, '{"words": ["a", "b"]}\n'), **TAG)
    assert sentence.words == ("a", "b")


@both
@pytest.mark.parametrize("name", ["new.csv", "new"])
def test_questions_from_a_table(source, name):
    (question,) = read_inputs(source(name, "question,context\nwho,the barn\n"), **QA)
    assert (question.question, question.context) == ("who", "the barn")


@both
def test_files_of_glue(source):
    found = read_inputs(source("new.tsv", "index\tsentence\n0\twell\n"), **COLA)
    assert texts(found) == [("0", "well")]


@pytest.mark.parametrize("source", ["file"], indirect=True)
@pytest.mark.parametrize("name", ["new.txt", "new"])
def test_a_model_of_pairs_refuses_lines(source, name):
    with pytest.raises(UserError, match="needs two texts per example"):
        read_inputs(source(name, "well\n"), **PAIR)
