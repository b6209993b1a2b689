"""SQuAD's metrics, 1.1 and 2.0: exact match and F1 over words, as fractions.

They split at white space and drop English articles: in a language that is written without blanks,
as Japanese, F1 is close to exact match.
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
"""No answer is given where more speaks for none than this; the original's value."""

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)

Floats = npt.NDArray[np.float64]


def normal_words(text: str) -> list[str]:
    """The words of an answer that are compared: lower case, no punctuation, no articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def word_f1(gold: list[str], given: list[str], *, none_is_an_answer: bool) -> float:
    """F1 of two bags of words."""
    if not gold or not given:  # two empty ones agree in 2.0 only
        return float(none_is_an_answer and gold == given)
    same = (Counter(gold) & Counter(given)).total()
    return 2 * same / (len(gold) + len(given))


def score_answer(example: Question, answer: str, *, none_is_an_answer: bool) -> tuple[float, float]:
    """Exact match and F1 with the gold answer that is nearest."""
    gold = [normal_words(each.text) for each in example.answers]
    if none_is_an_answer:
        gold = [words for words in gold if words] or [[]]
    given = normal_words(answer)
    exact = max((float(words == given) for words in gold), default=0.0)
    f1 = (word_f1(words, given, none_is_an_answer=none_is_an_answer) for words in gold)
    return exact, max(f1, default=0.0)


def score_answers(
    examples: Sequence[Question],
    answers: Mapping[str, str],
    null: Mapping[str, float] | None = None,
    *,
    threshold: float = THRESHOLD,
) -> dict[str, float]:
    """Exact match and F1 of answers by question id; a question that is missing counts 0.

    Where some questions are impossible, the empty text is the answer to them. With `null`, which
    tells how much speaks for no answer, what is above the threshold counts as empty too, and
    `best_…` are the scores with the threshold that suits these very examples best.
    """
    if any(not each.answers and not each.impossible for each in examples) or not examples:
        raise UserError("The answers to these questions are hidden: there is nothing to score.")
    two = any(each.impossible for each in examples)
    exact, f1 = np.zeros(len(examples)), np.zeros(len(examples))
    for place, example in enumerate(examples):
        if example.id in answers:
            exact[place], f1[place] = score_answer(
                example, answers[example.id], none_is_an_answer=two
            )
    if not two:
        return {"exact_match": float(exact.mean()), "f1": float(f1.mean())}
    possible = np.array([not each.impossible for each in examples])
    best: dict[str, float] = {}
    if null is not None:
        there = np.array([each.id in answers for each in examples])
        odds = np.array([null[each.id] if each.id in answers else np.inf for each in examples])
        for name, scores in (("exact_match", exact), ("f1", f1)):
            value, at = best_threshold(scores, odds, possible)
            best |= {f"best_{name}": value, f"best_{name}_threshold": at}
        exact, f1 = (
            np.where((odds > threshold) & there, ~possible, scores) for scores in (exact, f1)
        )
    return {
        "exact_match": float(exact.mean()),
        "f1": float(f1.mean()),
        **parts("has_answer", exact[possible], f1[possible]),
        **parts("no_answer", exact[~possible], f1[~possible]),
        **best,
    }


def parts(name: str, exact: Floats, f1: Floats) -> dict[str, float]:
    """The scores of some of the questions, if there are any."""
    if not len(exact):
        return {}
    return {f"{name}_exact_match": float(exact.mean()), f"{name}_f1": float(f1.mean())}


def best_threshold(
    scores: Floats, odds: Floats, possible: npt.NDArray[np.bool_]
) -> tuple[float, float]:
    """The best score that a threshold on the odds of no answer can give, and that threshold.

    From none to all, questions get their answer in the order of the odds; equal odds go together.
    """
    order = np.argsort(odds, kind="stable")
    ordered, none = odds[order], ~possible[order]
    there = np.isfinite(ordered)  # a missing question has no answer that could be left out
    gain = np.where(there, scores[order] - none, 0.0)
    total = np.concatenate(([0.0], np.cumsum(gain))) + (none & there).sum()
    ends = np.append(ordered[1:] != ordered[:-1], True)
    best = int(np.where(np.append(True, ends & there), total, -1.0).argmax())
    if best == 0:  # no question gets its answer
        at = min(ordered[0], 0.0) - 1.0
    elif best == len(ordered) or not np.isfinite(ordered[best]):
        at = max(ordered[best - 1], 0.0) + 1.0
    else:  # between two questions, not on one of them: others will fall on either side
        at = (ordered[best - 1] + ordered[best]) / 2
    return float(total[best]) / len(scores), float(at)
