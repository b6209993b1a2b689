"""Metrics of classification and regression: accuracy, F1, Matthews, Pearson, Spearman."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.tasks.examples import Choice, Sentence, Task

Floats = npt.NDArray[np.float64]


def score_sentences(
    task: Task,
    examples: Sequence[Sentence] | Sequence[Choice],
    predictions: npt.ArrayLike,
) -> dict[str, float]:
    """All metrics of a task, as fractions; a prediction is a label index or a value."""
    gold: list[Any] = [example.label for example in examples]
    if not gold or None in gold:
        raise ValueError("scoring needs at least one example, all with labels")
    if task.kind == "regress":
        true, predicted = floats(gold), floats(predictions)
        mse = float(np.mean((true - check_shape(true, predicted)) ** 2))
        return {
            "spearman": spearman(true, predicted),
            "pearson": pearson(true, predicted),
            "mse": mse,
        }
    scores = {"accuracy": accuracy(gold, predictions)}
    if task.kind == "classify":
        scores["matthews"] = matthews(gold, predictions)
        if len(task.labels) == 2:
            scores["f1"] = f1(gold, predictions)
        else:
            scores["f1_macro"] = f1_macro(gold, predictions)
    return scores


def is_constant(task: Task, predictions: npt.ArrayLike) -> bool:
    """Whether all predictions are equal or some are not finite: the model has learned nothing."""
    values = floats(predictions)
    if not np.isfinite(values).all():
        return True
    if len(values) < 2:
        return False
    # Even with the same vector for every text, values differ in their last digits.
    noise = 1e-5 * max(1.0, float(np.abs(values).max())) if task.kind == "regress" else 0.0
    return bool(np.ptp(values) <= noise)


def accuracy(gold: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """The fraction of correct predictions."""
    true = np.asarray(gold)
    return float(np.mean(true == check_shape(true, np.asarray(predictions))))


def f1(gold: npt.ArrayLike, predictions: npt.ArrayLike, positive: int = 1) -> float:
    """F1 of one class; 0 if it neither occurs nor is predicted."""
    true = np.asarray(gold) == positive
    predicted = check_shape(true, np.asarray(predictions) == positive)
    both, either = int((true & predicted).sum()), int(true.sum()) + int(predicted.sum())
    return 2 * both / either if either else 0.0


def f1_macro(gold: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """The mean F1 of the classes that occur or are predicted."""
    classes = np.union1d(np.asarray(gold), np.asarray(predictions))
    return float(np.mean([f1(gold, predictions, int(c)) for c in classes]))


def matthews(gold: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Matthews correlation of two or more classes; 0 if either side is constant."""
    true, predicted = np.asarray(gold), np.asarray(predictions)
    both = np.concatenate([true, check_shape(true, predicted)])
    classes, index = np.unique(both, return_inverse=True)
    confusion = np.zeros((len(classes), len(classes)), np.float64)
    np.add.at(confusion, (index[: len(true)], index[len(true) :]), 1)
    rows, columns, total = confusion.sum(1), confusion.sum(0), float(len(true))
    covariance = float(np.trace(confusion)) * total - float(rows @ columns)
    variance = (total**2 - float(rows @ rows)) * (total**2 - float(columns @ columns))
    return covariance / float(np.sqrt(variance)) if variance else 0.0


def pearson(gold: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Pearson correlation; 0 if either side is constant or a prediction is not finite."""
    true, predicted = floats(gold), floats(predictions)
    if not np.isfinite(check_shape(true, predicted)).all():
        return 0.0
    if not np.ptp(true) or not np.ptp(predicted):
        return 0.0
    # Scale first, so that squares of very large or small values stay in range.
    true, predicted = (x / np.abs(x).max() for x in (true, predicted))
    true, predicted = true - true.mean(), predicted - predicted.mean()
    true, predicted = true / np.linalg.norm(true), predicted / np.linalg.norm(predicted)
    return float(np.clip(true @ predicted, -1.0, 1.0))


def spearman(gold: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Spearman correlation; 0 if either side is constant or a prediction is not finite."""
    true, predicted = floats(gold), floats(predictions)
    if not np.isfinite(check_shape(true, predicted)).all():
        return 0.0
    return pearson(ranks(true), ranks(predicted))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share their mean rank."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts + 1) / 2)[index].astype(np.float64)


def floats(values: npt.ArrayLike) -> Floats:
    """Values as an array of float64."""
    return np.asarray(values, np.float64)


def check_shape(gold: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the predictions; raise unless there is one per label."""
    if gold.shape != predictions.shape or gold.ndim != 1:
        raise ValueError(f"labels {gold.shape} and predictions {predictions.shape} differ in shape")
    return predictions
