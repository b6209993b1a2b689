"""Questions and their answers in the context."""

import json

import pytest

from electra.errors import UserError
from electra.tasks.squad import load_squad, read_question_examples

BARN = "The barn of the farmer burned. The barn was old."


def qa(number=1, text="barn", start=4, **more):
    answers = [] if text is None else [{"text": text, "answer_start": start}]
    return {"id": f"q{number}", "question": f"What {number}?", "answers": answers, **more}


def squad(*questions, context=BARN):
    paragraph = {"context": context, "qas": list(questions)}
    return json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": [paragraph]}]})


def load(tmp_path, train, dev=None, name="qa", ending="json"):
    (tmp_path / f"train.{ending}").write_text(train, encoding="utf-8")
    (tmp_path / f"dev.{ending}").write_text(dev or train, encoding="utf-8")
    return load_squad(name, tmp_path)


def test_squad(tmp_path):
    task = load(tmp_path, squad(qa(1), qa(2, "The barn", 31)))
    first, second = task.splits["train"]
    assert (first.id, first.question, first.context) == ("q1", "What 1?", BARN)
    assert [(a.text, a.start) for a in first.answers] == [("barn", 4)]
    assert [(a.text, a.start) for a in second.answers] == [("The barn", 31)]
    assert (task.kind, task.metric, task.max_length, task.epochs) == ("qa", "f1", 512, 2)
    assert task.warnings == ()
    assert load(tmp_path, squad(qa(1, "The barn", 0))).warnings == ()  # answer_start is correct


def test_indented_json_with_byte_order_mark(tmp_path):
    text = "\ufeff" + json.dumps(json.loads(squad(qa())), indent=1)
    assert load(tmp_path, text).splits["dev"][0].answers[0].start == 4


def test_unanswerable_questions(tmp_path):
    some = squad(qa(1, is_impossible=False), qa(2, None, is_impossible=True), qa(3, None))
    assert [q.impossible for q in load(tmp_path, some).splits["dev"]] == [False, True, True]
    plausible = qa(4, "barn", 4, is_impossible=True)
    (question,) = load(tmp_path, some, squad(plausible)).splits["dev"]
    assert question.impossible
    assert question.answers == ()


@pytest.mark.parametrize("keep", [True, False])
def test_unknown_answers(tmp_path, keep):
    hidden = qa(1, None)
    if not keep:
        del hidden["answers"]
    with pytest.raises(UserError, match=r"dev.json' question 'q1' has no answer: add one"):
        load(tmp_path, squad(qa()), squad(hidden))
    (question,) = read_question_examples(tmp_path / "dev.json")
    assert question.answers == ()
    assert not question.impossible
    with pytest.raises(UserError, match=r"train.json' question 'q1' has no answer: add one"):
        load(tmp_path, squad(hidden))


def test_answer_is_found_at_the_nearest_occurrence(tmp_path):
    task = load(tmp_path, squad(qa(1, "barn", 33), qa(2, "barn", 9)))
    assert [q.answers[0].start for q in task.splits["train"]] == [35, 4]
    assert "2 answers are not at their answer_start" in task.warnings[0]


def test_answer_with_different_white_space(tmp_path):
    context = "The  old\nbarn burned."
    task = load(tmp_path, squad(qa(1, "old barn", 4), context=context))
    (answer,) = task.splits["train"][0].answers
    assert (answer.text, answer.start) == ("old\nbarn", 5)


def test_answer_outside_the_context_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"train.json' question 'q2': the answer 'mill' is not in"):
        load(tmp_path, squad(qa(1), qa(2, "mill", 4)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"data": [\n{"paragraphs": [}]}', "line 2 is not valid JSON"),
        ("[" * 100_000, "line 1 is not valid JSON"),
        ('{"data": []}', "holds no questions"),
        ('{"data": 3}', "has no list 'data'"),
        ('{"data": [{"title": "x"}]}', "article 1 has no list 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "has no text 'context'"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "has no list 'qas'"),
        ('{"data": [{"paragraphs": [{"context": "x", "qas": [{}]}]}]}', "has no 'id'"),
        (squad({"id": "q7", "answers": []}), "question 'q7' has no text 'question'"),
        (squad(qa(1, "barn", "four")), "must be a character position"),
        (squad({"id": "q7", "question": "x", "answers": [{}]}), "'q7': an answer has no text"),
        (squad({"id": "q7", "question": "x", "answers": "barn"}), "'q7' has no list 'answers'"),
        ("  \n", "is empty"),
    ],
)
def test_invalid_files_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path, text)
    assert "train.json" in str(error.value)


def test_duplicate_ids_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"dev.json' has 2 questions with the id 'q1'"):
        load(tmp_path, squad(qa(1), qa(1)))


def test_duplicate_ids_in_the_dev_split(tmp_path):
    for same in (False, True):
        paragraphs = [
            {"context": f"{BARN} {n}", "qas": [qa(1 if same else 2 * n + i) for i in range(2)]}
            for n in range(40)
        ]
        text = json.dumps({"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]})
        (tmp_path / "train.json").write_text(text, encoding="utf-8")
        if not same:
            splits = load_squad("qa", tmp_path).splits
            train, dev = ({q.context for q in splits[name]} for name in ("train", "dev"))
            assert dev
            assert not train & dev
    with pytest.raises(UserError, match=r"train.json' has \d+ questions with the id 'q1'"):
        load_squad("qa", tmp_path)


def test_versions(tmp_path):
    folder = tmp_path / "squad"
    folder.mkdir()
    for version, number in (("v1.1", 1), ("v2.0", 2)):
        for split in ("train", "dev"):
            (folder / f"{split}-{version}.rebuilt.json").write_text(squad(qa(number)))
    for place in (folder, tmp_path):
        assert load_squad("squad1", place).splits["train"][0].id == "q1"
        assert load_squad("squad2", place).splits["dev"][0].id == "q2"
    (folder / "train-v1.1.rebuilt.json").unlink()
    (folder / "dev-v1.1.rebuilt.json").unlink()
    with pytest.raises(UserError, match=r"no train file of v1\.1"):
        load_squad("squad1", folder)


def test_one_file_is_split_by_context(tmp_path):
    articles = [
        {"paragraphs": [{"context": f"{BARN} {n}", "qas": [qa(2 * n), qa(2 * n + 1)]}]}
        for n in range(200)
    ]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"data": articles}))
    task = load_squad("qa", path)
    train, dev = task.splits["train"], task.splits["dev"]
    assert len(train) + len(dev) == 400
    assert 10 <= len(dev) <= 80
    assert not {q.context for q in train} & {q.context for q in dev}
    assert "no dev file" in task.warnings[0]


def test_lone_surrogate_is_replaced(tmp_path):
    (question,) = load(tmp_path, squad(qa(), context=BARN + "\ud83d")).splits["train"]
    question.context.encode()
