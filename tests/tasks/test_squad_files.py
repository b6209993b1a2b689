"""The files of questions: SQuAD, MRQA and your own tables."""

import gzip
import json

import pytest

from electra.errors import UserError
from electra.tasks.squad import NO_START, load_squad, read_question_examples
from electra.tasks.squad_files import Columns

BARN = "The barn of the farmer burned. The barn was old."


def load(tmp_path, train, dev=None, name="qa", ending="json"):
    (tmp_path / f"train.{ending}").write_text(train, encoding="utf-8")
    (tmp_path / f"dev.{ending}").write_text(dev or train, encoding="utf-8")
    return load_squad(name, tmp_path)


def table(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_user_json_lines(tmp_path):
    base = {"question": "What?", "context": BARN}
    text = table(
        {**base, "id": 7, "answer": "farmer"},
        {**base, "answer": ["barn", "The barn"], "answer_start": [35, 31]},
        {**base, "answer": "barn"},
        {**base, "answer": "barn", "answer_start": 35},
        {**base, "answer": ""},
    )
    task = load(tmp_path, text, ending="jsonl")
    found = [[(a.text, a.start) for a in q.answers] for q in task.splits["train"]]
    assert found == [
        [("farmer", 16)],
        [("barn", 35), ("The barn", 31)],
        [("barn", 4)],
        [("barn", 35)],
        [],
    ]
    assert [q.id for q in task.splits["train"]] == ["7", "2", "3", "4", "5"]
    assert [q.impossible for q in task.splits["train"]] == [False] * 4 + [True]
    assert "1 answers without a start occur more than once" in task.warnings[0]


def test_user_json_lines_in_the_format_of_datasets(tmp_path):
    base = {"question": "What?", "context": BARN}
    text = table(
        {**base, "answers": {"text": ["barn"], "answer_start": [35]}},
        {**base, "answers": {"text": [], "answer_start": []}},
        {**base, "answers": [{"text": "barn", "answer_start": 4}]},
    )
    one, two, three = load(tmp_path, text, ending="jsonl").splits["dev"]
    assert [a.start for a in one.answers] == [35]
    assert two.impossible
    assert [a.start for a in three.answers] == [4]


def test_ids_default_to_line_numbers(tmp_path):
    row = {"question": "What?", "context": BARN, "answer": "barn"}
    lines = table({"id": "a", **row}, {"id": None, **row}, {"id": "", **row}, row)
    task = load(tmp_path, lines, ending="jsonl")
    assert [question.id for question in task.splits["train"]] == ["a", "2", "3", "4"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": "mill"}, "the answer 'mill' is not in its context"),
        ({"answer": 3}, "must be a text or a list of texts"),
        ({"answer": ["barn", "farmer"], "answer_start": [4]}, "all with a start"),
        ({"answer": "barn", "answer_start": -1}, "must be a character position"),
    ],
)
def test_invalid_rows_are_refused(tmp_path, row, message):
    base = {"question": "What?", "context": BARN, "answer": "barn"}
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path, table(base, {**base, **row}), ending="jsonl")
    assert "train.jsonl' line 2" in str(error.value)


def test_rows_without_question_or_context_are_skipped(tmp_path):
    base = {"question": "What?", "context": BARN, "answer": "barn"}
    lines = table(base, {**base, "context": ""}, {**base, "question": None}, base)
    task = load(tmp_path, lines, ending="jsonl")
    assert len(task.splits["train"]) == 2
    assert any("2 of 4 rows" in w and "first on line 2" in w for w in task.warnings)
    (tmp_path / "new.jsonl").write_text(lines)
    with pytest.warns(UserWarning, match="first on line 2"):
        assert len(read_question_examples(tmp_path / "new.jsonl")) == 2


def test_prediction_does_not_need_the_column_of_the_answers(tmp_path):
    path = tmp_path / "new.jsonl"
    path.write_text(table({"question": "What?", "context": BARN}))
    assert len(read_question_examples(path, columns=Columns(answer="antwort"))) == 1


def test_new_questions_without_the_column(tmp_path):
    """`electra predict` has no option for the columns, so none is named."""
    path = tmp_path / "new.csv"
    path.write_text("ask,context\nWho?,the baker\n")
    with pytest.raises(UserError, match=r"no column 'question', it has: ask, context\.$"):
        read_question_examples(path)


def test_read_question_examples(tmp_path):
    path = tmp_path / "new.jsonl"
    path.write_text(table({"q": "What?", "context": BARN}))
    (question,) = read_question_examples(path, columns=Columns(question="q"))
    assert question.answers == ()
    assert not question.impossible


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_mrqa(tmp_path, ending):
    record = {
        "context": BARN,
        "qas": [
            {
                "question": "What burned?",
                "qid": "m1",
                "answers": ["The Barn", "barn"],
                "detected_answers": [
                    {"text": "barn", "char_spans": [[4, 7], [35, 38]], "token_spans": [[1, 1]]}
                ],
            }
        ],
    }
    text = json.dumps({"header": {"dataset": "x"}}) + "\n" + json.dumps(record) + "\n"
    for split in ("train", "dev"):
        raw = text.encode()
        path = tmp_path / f"{split}.{ending}"
        path.write_bytes(gzip.compress(raw) if ending.endswith("gz") else raw)
    (question,) = load_squad("newsqa", tmp_path).splits["dev"]
    assert question.id == "m1"
    assert [(a.text, a.start) for a in question.answers] == [
        ("barn", 4),
        ("barn", 35),
        ("The Barn", NO_START),
    ]
    bad = text.replace("[35, 38]", "[35, 380]")
    (tmp_path / "train.jsonl").write_text(bad)
    with pytest.raises(UserError, match=r"train.jsonl' line 2 question 'm1': the span"):
        load_squad("newsqa", tmp_path / "train.jsonl")
    (tmp_path / "train.jsonl").write_text(text + "{\n")
    with pytest.raises(UserError, match=r"train.jsonl' line 3 is not valid JSON"):
        load_squad("newsqa", tmp_path / "train.jsonl")


def test_user_csv(tmp_path):
    text = f'frage,text,antwort,answer_start\nWhat?,"{BARN}",barn,35\nWho?,"{BARN}",,\n'
    path = tmp_path / "train.csv"
    path.write_text(text)
    (tmp_path / "dev.csv").write_text(text)
    columns = Columns(question="frage", context="text", answer="antwort")
    one, two = load_squad("qa", tmp_path, columns=columns).splits["train"]
    assert one.answers[0].start == 35
    assert two.impossible
    with pytest.raises(UserError, match=r"no column 'question'.*--text"):
        load_squad("qa", tmp_path)
    with pytest.raises(UserError, match=r"no column 'antwor'"):
        load_squad(
            "qa", tmp_path, columns=Columns(question="frage", context="text", answer="antwor")
        )


def test_a_start_of_thousands_of_digits_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"question,context,answer,answer_start\na,b c,c,{'9' * 5000}\n")
    with pytest.raises(UserError, match="must be a character position"):
        read_question_examples(path)


def test_mrqa_answers_that_are_no_list(tmp_path):
    asked = {"qid": "1", "question": "a", "answers": 5, "detected_answers": []}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"context": "b", "qas": [asked]}) + "\n")
    (question,) = read_question_examples(path)
    assert question.answers == ()
