"""Scores of texts with one label or value: accuracy, F1, Matthews, Pearson, Spearman."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.tasks.examples import Choice, Sentence, Task

Numbers = npt.NDArray[np.float64]


def score_sentences(
    task: Task,
    examples: Sequence[Sentence] | Sequence[Choice],
    predictions: npt.ArrayLike,
) -> dict[str, float]:
    """All scores that make sense for a task, as fractions; a prediction is a class or a value."""
    gold: list[Any] = [example.label for example in examples]
    if not gold or None in gold:
        raise ValueError("only examples with labels can be scored, and at least one")
    if task.kind == "regress":
        true, guess = floats(gold), floats(predictions)
        error = float(np.mean((true - same(true, guess)) ** 2))
        return {"spearman": spearman(true, guess), "pearson": pearson(true, guess), "mse": error}
    scores = {"accuracy": accuracy(gold, predictions)}
    if task.kind == "classify":
        scores["matthews"] = matthews(gold, predictions)
        if len(task.labels) == 2:
            scores["f1"] = f1(gold, predictions)
        else:
            scores["f1_macro"] = f1_macro(gold, predictions)
    return scores


def stuck(task: Task, predictions: npt.ArrayLike) -> bool:
    """Whether a model says the same of every example, or no number: it has learned nothing."""
    values = floats(predictions)
    if not np.isfinite(values).all():
        return True
    if len(values) < 2:
        return False
    # The same vector for every text still gives values that differ in their last digits.
    noise = 1e-5 * max(1.0, float(np.abs(values).max())) if task.kind == "regress" else 0.0
    return bool(np.ptp(values) <= noise)


def accuracy(gold: npt.ArrayLike, guess: npt.ArrayLike) -> float:
    """The fraction of guesses that are right."""
    true = np.asarray(gold)
    return float(np.mean(true == same(true, np.asarray(guess))))


def f1(gold: npt.ArrayLike, guess: npt.ArrayLike, positive: int = 1) -> float:
    """The harmonic mean of precision and recall of one class; 0 where nothing is positive."""
    true = np.asarray(gold) == positive
    said = same(true, np.asarray(guess) == positive)
    both, either = int((true & said).sum()), int(true.sum()) + int(said.sum())
    return 2 * both / either if either else 0.0


def f1_macro(gold: npt.ArrayLike, guess: npt.ArrayLike) -> float:
    """The mean of F1 over the classes that occur in the labels or the guesses."""
    classes = np.union1d(np.asarray(gold), np.asarray(guess))
    return float(np.mean([f1(gold, guess, int(c)) for c in classes]))


def matthews(gold: npt.ArrayLike, guess: npt.ArrayLike) -> float:
    """Matthews' correlation, for two classes or more; 0 where one side is constant."""
    true, said = np.asarray(gold), np.asarray(guess)
    classes, places = np.unique(np.concatenate([true, same(true, said)]), return_inverse=True)
    counts = np.zeros((len(classes), len(classes)), np.float64)
    np.add.at(counts, (places[: len(true)], places[len(true) :]), 1)
    rows, columns, total = counts.sum(1), counts.sum(0), float(len(true))
    covariance = float(np.trace(counts)) * total - float(rows @ columns)
    spread = (total**2 - float(rows @ rows)) * (total**2 - float(columns @ columns))
    return covariance / float(np.sqrt(spread)) if spread else 0.0


def pearson(gold: npt.ArrayLike, guess: npt.ArrayLike) -> float:
    """Pearson's correlation; 0 where one side is constant or no number."""
    true, said = floats(gold), floats(guess)
    if not np.isfinite(same(true, said)).all() or not np.ptp(true) or not np.ptp(said):
        return 0.0
    # Scaled first, so that squares of very large or small values stay in range.
    true, said = (x - x.mean() for x in (true / np.abs(true).max(), said / np.abs(said).max()))
    true, said = true / np.linalg.norm(true), said / np.linalg.norm(said)
    return float(np.clip(true @ said, -1.0, 1.0))


def spearman(gold: npt.ArrayLike, guess: npt.ArrayLike) -> float:
    """Spearman's correlation, that of the ranks; 0 where one side is constant or no number."""
    true, said = floats(gold), floats(guess)
    if not np.isfinite(same(true, said)).all():
        return 0.0
    return pearson(ranks(true), ranks(said))


def ranks(values: Numbers) -> Numbers:
    """The ranks from 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts + 1) / 2)[places].astype(np.float64)


def floats(values: npt.ArrayLike) -> Numbers:
    """Values as a flat array."""
    return np.asarray(values, np.float64)


def same(gold: npt.NDArray[Any], guess: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The guesses, refused where there are more or fewer than labels."""
    if gold.shape != guess.shape or gold.ndim != 1:
        raise ValueError(f"{gold.shape} labels and {guess.shape} predictions do not fit")
    return guess
