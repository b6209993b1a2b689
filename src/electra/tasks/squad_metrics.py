"""SQuAD's metrics, 1.1 and 2.0: exact match and F1 over words, as fractions.

Words are split at white space, and English articles are dropped. In a language written without
spaces, such as Japanese, F1 is close to exact match.
"""

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from electra.errors import UserError
from electra.tasks.examples import Question

THRESHOLD = -2.75
"""Default threshold of the null logit, above which there is no answer (google-research/electra)."""

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Floats = npt.NDArray[np.float64]


def normalize_answer(text: str) -> list[str]:
    """Split an answer into words: lower case, no punctuation, no articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def word_f1(gold: list[str], predicted: list[str], *, unanswerable: bool) -> float:
    """F1 of two bags of words; two empty ones agree only if questions may be unanswerable."""
    if not gold or not predicted:
        return float(unanswerable and gold == predicted)
    common = (Counter(gold) & Counter(predicted)).total()
    return 2 * common / (len(gold) + len(predicted))


def score_answer(example: Question, answer: str, *, unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 with the best gold answer.

    `unanswerable` says whether the dataset has unanswerable questions, as SQuAD 2.0 does.
    """
    gold = [normalize_answer(each.text) for each in example.answers]
    if unanswerable:
        gold = [words for words in gold if words] or [[]]
    predicted = normalize_answer(answer)
    exact = max((float(words == predicted) for words in gold), default=0.0)
    f1 = (word_f1(words, predicted, unanswerable=unanswerable) for words in gold)
    return exact, max(f1, default=0.0)


def score_answers(
    examples: Sequence[Question],
    answers: Mapping[str, str],
    null: Mapping[str, float] | None = None,
    *,
    threshold: float = THRESHOLD,
) -> dict[str, float]:
    """Exact match and F1 of answers by question id; a missing question scores 0.

    The correct answer to an unanswerable question is the empty text. With `null`, the null logits,
    answers above the threshold count as empty, and `best_…` are the scores with the best threshold
    for these examples.
    """
    if any(not each.answers and not each.impossible for each in examples) or not examples:
        raise UserError("The answers to these questions are unknown: there is nothing to score.")
    unanswerable = any(each.impossible for each in examples)
    exact, f1 = np.zeros(len(examples)), np.zeros(len(examples))
    for index, example in enumerate(examples):
        if example.id in answers:
            exact[index], f1[index] = score_answer(
                example, answers[example.id], unanswerable=unanswerable
            )
    if not unanswerable:
        return {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    answerable = np.array([not each.impossible for each in examples])
    best: dict[str, float] = {}
    if null is not None:
        predicted = np.array([each.id in answers for each in examples])
        logits = np.array([null[each.id] if each.id in answers else np.inf for each in examples])
        for name, scores in (("exact_match", exact), ("f1", f1)):
            value, at = best_threshold(scores, logits, answerable)
            best |= {f"best_{name}": value, f"best_{name}_threshold": at}
        exact, f1 = (
            np.where((logits > threshold) & predicted, ~answerable, scores)
            for scores in (exact, f1)
        )
    return {
        "exact_match": float(exact.mean()),
        "f1": float(f1.mean()),
        **subset_scores("has_answer", exact[answerable], f1[answerable]),
        **subset_scores("no_answer", exact[~answerable], f1[~answerable]),
        **best,
    }


def subset_scores(name: str, exact: Floats, f1: Floats) -> dict[str, float]:
    """The scores of some of the questions, if there are any."""
    if not len(exact):
        return {}
    return {f"{name}_exact_match": float(exact.mean()), f"{name}_f1": float(f1.mean())}


def best_threshold(
    scores: Floats, null_logits: Floats, answerable: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """The best score that a threshold on the null logits can give, and that threshold.

    `scores` are those of the predicted answers; a missing prediction has an infinite logit.
    """
    order = np.argsort(null_logits, kind="stable")
    ordered, unanswerable = null_logits[order], ~answerable[order]
    predicted = np.isfinite(ordered)
    # total[i]: the summed score if the i questions with the lowest null logits get their answer
    gain = np.where(predicted, scores[order] - unanswerable, 0.0)
    total = np.concatenate(([0.0], np.cumsum(gain))) + (unanswerable & predicted).sum()
    # a threshold cannot separate questions with equal logits
    separable = np.append(ordered[1:] != ordered[:-1], True)
    best = int(np.where(np.append(True, separable & predicted), total, -1.0).argmax())
    if best == 0:  # no question gets its answer
        at = min(ordered[0], 0.0) - 1.0
    elif best == len(ordered) or not np.isfinite(ordered[best]):
        at = max(ordered[best - 1], 0.0) + 1.0
    else:  # halfway between two questions, so that new ones fall on either side
        at = (ordered[best - 1] + ordered[best]) / 2
    return float(total[best]) / len(scores), float(at)
