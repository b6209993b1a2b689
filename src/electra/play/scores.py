"""Compare models on a text, rank sentences by plausibility, apply a fine-tuned model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from electra.errors import UserError
from electra.hub.heat_map import JudgedToken
from electra.play.models import Choice
from electra.play.tokens import check_text

MAX_SENTENCES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """A sentence and its score; higher is more plausible."""

    sentence: str
    score: float


def split_sentences(text: str) -> list[str]:
    """Return the lines that are not empty; too many are an error."""
    sentences = [line.strip() for line in check_text(text).splitlines() if line.strip()]
    if len(sentences) > MAX_SENTENCES:
        raise UserError(f"There are {len(sentences)} sentences: use at most {MAX_SENTENCES}.")
    return sentences


def rank(choice: Choice, text: str) -> list[Ranked]:
    """Rank sentences, one per line, the most plausible first.

    Electric gives a pseudo-log-likelihood. Of another discriminator the score is the log
    probability that no token was replaced. Both are per token, so that length does not decide.
    """
    sentences = split_sentences(text)
    model = choice.model
    if choice.scores:
        encoded = model.tokenizer.encode_batch(sentences, add_special_tokens=False)
        totals = zip(model.score(sentences), encoded, strict=True)
        found = [total / max(1, len(e.ids)) for total, e in totals]
    else:
        found = [
            sum(math.log1p(-min(t.replaced, 1 - 1e-7)) for t in tokens) / len(tokens)
            for tokens in model.detect(sentences)
        ]
    ranked = [Ranked(sentence=s, score=v) for s, v in zip(sentences, found, strict=True)]
    return sorted(ranked, key=lambda r: -r.score)


def summarise(tokens: Sequence[JudgedToken]) -> str:
    """Say in a sentence how suspicious a model finds a text."""
    mean = sum(token.suspicion for token in tokens) / len(tokens)
    worst = max(tokens, key=lambda token: token.suspicion)
    return (
        f"{len(tokens)} tokens, mean suspicion {mean:.1%}; most suspicious: "
        f"“{worst.text}” ({worst.suspicion:.1%})."
    )


def second_text(choice: Choice) -> str:
    """Return what the second text of a task is called, or nothing if there is none."""
    card = choice.model.task
    if card is None:
        return ""
    if card.kind == "qa":
        return "Context"
    return "Second text" if card.pairs or card.columns.get("pair") else ""


def apply_task(choice: Choice, text: str, second: str = "") -> dict[str, Any]:
    """Apply a fine-tuned model to one example; returns its record."""
    text = check_text(text)
    if choice.task in ("classify", "regress"):
        if second_text(choice):
            return choice.model.classify([(text, check_text(second))])[0]
        return choice.model.classify(text)
    if choice.task == "tag":
        words = text.split()
        return {"words": words, "tags": choice.model.tag([words])[0]}
    if choice.task == "qa":
        return choice.model.answer(text, check_text(second))
    raise UserError(f"The page has no form for models of the kind '{choice.task}'.")
