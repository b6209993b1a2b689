"""Metrics match scikit-learn and SciPy, and are finite where those are not."""

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from electra.tasks.examples import Choice, Sentence, Task
from electra.tasks.metrics import (
    accuracy,
    f1,
    f1_macro,
    is_constant,
    matthews,
    pearson,
    score_sentences,
    spearman,
)


def paired(values: st.SearchStrategy, least: int = 1) -> st.SearchStrategy:
    """Two lists of the same length."""
    return st.lists(st.tuples(values, values), min_size=least, max_size=40).map(
        lambda rows: tuple(np.asarray(side) for side in zip(*rows, strict=True))
    )


FEW = st.integers(-4, 4).map(lambda x: x / 2)  # many ties
REAL = st.floats(-1e6, 1e6).map(lambda x: round(x, 3))


def quietly(function, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


@given(gold_and_predicted=paired(st.integers(0, 5)))
def test_classification_metrics_match_scikit_learn(gold_and_predicted):
    gold, predicted = gold_and_predicted
    assert accuracy(gold, predicted) == pytest.approx(sk.accuracy_score(gold, predicted))
    macro = quietly(lambda: sk.f1_score(gold, predicted, average="macro", zero_division=0))
    assert f1_macro(gold, predicted) == pytest.approx(macro)
    assert matthews(gold, predicted) == pytest.approx(
        quietly(sk.matthews_corrcoef, gold, predicted)
    )


@given(gold_and_predicted=paired(st.integers(0, 1)))
def test_binary_f1_matches_scikit_learn(gold_and_predicted):
    gold, predicted = gold_and_predicted
    assert f1(gold, predicted) == pytest.approx(
        quietly(lambda: sk.f1_score(gold, predicted, zero_division=0))
    )
    assert matthews(gold, predicted) == pytest.approx(
        quietly(sk.matthews_corrcoef, gold, predicted)
    )


@given(gold_and_predicted=paired(FEW, 2) | paired(REAL, 2))
def test_correlations_match_scipy(gold_and_predicted):
    gold, predicted = gold_and_predicted
    for ours, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        expected = float(quietly(theirs, gold, predicted).statistic)
        assert ours(gold, predicted) == pytest.approx(
            0.0 if math.isnan(expected) else expected, abs=1e-6
        )


def test_ties_share_their_mean_rank():
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)


@pytest.mark.parametrize("predicted", [[3.0] * 4, [math.nan, 1, 2, 3], [math.inf, 1, 2, 3]])
def test_constant_or_infinite_predictions_have_correlation_0(predicted):
    assert pearson([1, 2, 3, 4], predicted) == 0.0
    assert spearman([1, 2, 3, 4], predicted) == 0.0
    assert spearman([2, 2, 2, 2], [1, 2, 3, 4]) == 0.0


def test_correlation_of_very_small_and_very_large_values():
    assert pearson([1e-200, 2e-200, 4e-200], [1e200, 2e200, 4e200]) == pytest.approx(1.0)


def test_matthews_does_not_overflow():
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, 400_000).astype(np.int32)
    predicted = np.where(rng.random(len(gold)) < 0.8, gold, 1 - gold)
    assert matthews(gold, predicted) == pytest.approx(sk.matthews_corrcoef(gold, predicted))


def sentences(labels) -> list[Sentence]:
    return [Sentence(id=str(i), text="x", label=label) for i, label in enumerate(labels)]


def task(kind: str, labels: tuple[str, ...] = ()) -> Task:
    return Task(name="t", kind=kind, splits={}, labels=labels)


def test_metrics_of_each_kind():
    two = score_sentences(task("classify", ("a", "b")), sentences([0, 1, 1, 1]), [0, 1, 1, 0])
    assert two == pytest.approx({"accuracy": 0.75, "matthews": 1 / math.sqrt(3), "f1": 0.8})
    three = score_sentences(task("classify", ("a", "b", "c")), sentences([0, 1, 2]), [0, 1, 1])
    assert three.keys() == {"accuracy", "matthews", "f1_macro"}
    assert three["f1_macro"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    values = score_sentences(task("regress"), sentences([1.0, 2.0, 4.0]), np.float32([2, 3, 5]))
    assert values == pytest.approx({"spearman": 1.0, "pearson": 1.0, "mse": 1.0})
    choices = [Choice(id="0", text="x", options=("a", "b"), label=1)] * 2
    assert score_sentences(task("choice"), choices, [1, 0]) == {"accuracy": 0.5}


def test_missing_labels_and_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="labels"):
        score_sentences(task("regress"), sentences([1.0, None]), [1, 2])
    with pytest.raises(ValueError, match="differ in shape"):
        score_sentences(task("classify", ("a", "b")), sentences([0, 1]), [1])
    with pytest.raises(ValueError, match="differ in shape"):  # logits instead of classes
        score_sentences(task("regress"), sentences([0, 1]), np.zeros((2, 1)))


def test_is_constant():
    classify, regress = task("classify", ("a", "b")), task("regress")
    assert is_constant(classify, [1, 1, 1])
    assert not is_constant(classify, [1, 1, 0])
    assert is_constant(regress, [2.5, 2.5])
    assert is_constant(regress, [2.5, 2.5000001, 2.4999999])
    assert is_constant(regress, [math.nan, 1.0, 2.0])
    assert not is_constant(regress, [2.5, 2.6])
    assert not is_constant(classify, [1])
