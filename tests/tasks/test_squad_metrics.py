"""SQuAD metrics, by hand and on published predictions."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.errors import UserError
from electra.tasks.examples import Answer, Question
from electra.tasks.squad import read_question_examples
from electra.tasks.squad_metrics import THRESHOLD, best_threshold, normalize_answer, score_answers

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "tasks" / "squad.tar.xz"


def question(number, *texts, impossible=False):
    return Question(
        id=f"q{number}",
        question="?",
        context="",
        answers=tuple(Answer(text=text, start=0) for text in texts),
        impossible=impossible,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The Barn, the  mill!", ["barn", "mill"]),
        ("a an the", []),
        ("theatre anthem", ["theatre", "anthem"]),
        ("U.S.", ["us"]),
        ("A-frame", ["aframe"]),
        ("twenty–five", ["twenty–five"]),  # only ASCII punctuation, as the official script
        ("the\u00a0barn", ["barn"]),
    ],
)
def test_normalize_answer(text, words):
    assert normalize_answer(text) == words


@pytest.mark.parametrize(
    ("answer", "exact", "f1"),
    [
        ("the old barn", 1, 1),
        ("Old barn.", 1, 1),
        ("barn", 0, 2 / 3),
        ("old old barn", 0, 4 / 5),  # words count as often as they occur
        ("mill", 0, 0),
        ("", 0, 0),
    ],
)
def test_scores_of_one_answer(answer, exact, f1):
    scores = score_answers([question(1, "old barn")], {"q1": answer})
    assert scores == pytest.approx({"exact_match": exact, "f1": f1})


def test_best_gold_answer_counts():
    examples = [question(1, "barn", "the old red barn"), question(2, "mill")]
    scores = score_answers(examples, {"q1": "old barn", "q2": "a mill"})
    assert scores == pytest.approx({"exact_match": 0.5, "f1": (0.8 + 1) / 2})


def test_missing_questions_score_0():
    examples = [question(1, "barn"), question(2, impossible=True)]
    assert score_answers(examples[:1], {})["f1"] == 0
    scores = score_answers(examples, {"q1": "barn"}, {"q1": -9.0})
    assert scores["f1"] == 0.5
    assert scores["best_f1"] == 0.5
    assert scores["no_answer_f1"] == 0
    with pytest.raises(UserError, match="nothing to score"):
        score_answers([question(1)], {})


def test_answer_of_articles_only():
    """Two empty answers agree in SQuAD 2.0, but score 0 in 1.1."""
    one = [question(1, "The", "barn")]
    assert score_answers(one, {"q1": "A"}) == {"exact_match": 1, "f1": 0}
    two = [*one, question(2, impossible=True)]
    assert score_answers(two, {"q1": "A", "q2": "the"})["f1"] == 0.5
    assert score_answers(two, {"q1": "barn", "q2": ""})["exact_match"] == 1


def test_answer_at_the_threshold_is_kept():
    examples = [question(1, "barn"), question(2, impossible=True)]
    answers = {"q1": "barn", "q2": "mill"}
    for null, right in ((THRESHOLD, 0.5), (np.nextafter(THRESHOLD, 0), 0.5)):
        found = score_answers(examples, answers, dict.fromkeys(answers, null))
        assert found["f1"] == right
        assert found["has_answer_f1"] == (null == THRESHOLD)


def test_subsets_and_thresholds():
    examples = [
        question(1, "barn"),
        question(2, "old mill"),
        question(3, impossible=True),
        question(4, impossible=True),
    ]
    answers = {"q1": "barn", "q2": "mill", "q3": "loom", "q4": ""}
    plain = score_answers(examples, answers)
    assert plain == pytest.approx(
        {
            "exact_match": 0.5,
            "f1": (1 + 2 / 3 + 0 + 1) / 4,
            "has_answer_exact_match": 0.5,
            "has_answer_f1": 5 / 6,
            "no_answer_exact_match": 0.5,
            "no_answer_f1": 0.5,
        }
    )
    null = {"q1": -5.0, "q2": -1.0, "q3": 2.0, "q4": -4.0}
    scores = score_answers(examples, answers, null)
    assert THRESHOLD == -2.75
    assert scores["exact_match"] == 3 / 4  # q2 is above: no answer, wrong; q3 too, right
    assert scores["has_answer_f1"] == 0.5
    assert scores["no_answer_f1"] == 1
    assert scores["best_exact_match"] == 0.75
    assert scores["best_f1"] == pytest.approx((1 + 2 / 3 + 1 + 1) / 4)
    assert scores["best_f1_threshold"] == 0.5  # halfway between -1 and 2
    again = score_answers(examples, answers, null, threshold=scores["best_f1_threshold"])
    assert again["f1"] == pytest.approx(scores["best_f1"])


cases = st.lists(
    st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(-3, 3), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(cases)
def test_best_threshold_is_optimal(rows):
    scores = np.array([row[0] for row in rows])
    null_logits = np.array([float(row[1]) for row in rows])
    answerable = np.array([row[2] for row in rows])

    def with_threshold(at):
        return np.where(null_logits > at, ~answerable, scores).mean()

    value, at = best_threshold(scores, null_logits, answerable)
    assert value == pytest.approx(with_threshold(at))
    assert value == pytest.approx(max(with_threshold(t) for t in (-9.0, *null_logits)))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    if not ARCHIVE.is_file():
        pytest.skip("needs shared/data/tasks/squad.tar.xz beside the repository")
    out = tmp_path_factory.mktemp("published")
    with tarfile.open(ARCHIVE) as content:
        for member in content:
            path = Path(member.name)
            if path.parent.name == "published_predictions" or path.name.startswith("dev-"):
                member.name = path.name
                content.extract(member, out, filter="data")
    return out


@pytest.mark.parametrize(
    ("version", "name", "exact", "f1"),
    [
        ("v1.1", "v1.1-bert-ensemble", 86.206, 92.196),
        ("v1.1", "v1.1-logistic-regression", 40.142, 50.982),
        ("v2.0", "v2.0-bert-single", 78.742, 81.775),
        ("v2.0", "v2.0-bidaf-sa-elmo", 65.704, 67.876),
    ],
)
def test_scores_of_published_predictions(archive, version, name, exact, f1):
    examples = read_question_examples(archive / f"dev-{version}.rebuilt.json")
    scores = score_answers(examples, json.loads((archive / f"{name}.json").read_text()))
    assert round(100 * scores["exact_match"], 3) == exact
    assert round(100 * scores["f1"], 3) == f1
