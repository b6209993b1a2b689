"""A text as HTML, each token coloured by how likely it was replaced."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from electra.hub.corruption import CorruptedToken
from electra.hub.inference import PredictedToken

STYLE = Path(__file__).with_name("heat_map.css").read_text(encoding="utf-8")
CLOSING = set(".,;:!?)]}%’”")
"""Tokens that stand without a space before them."""
WORD_STARTS = ("Ġ", "▁")
"""How byte-level BPE and Unigram mark the first token of a word; WordPiece marks the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedToken:
    """A token, the probability that it was replaced, and what is known about its origin."""

    token: str
    text: str
    """The token as it is shown."""
    begins_word: bool
    suspicion: float
    original: str | None = None
    """The token that it replaces; None if nothing was replaced."""
    original_text: str = ""
    """That token as it is shown."""
    original_begins_word: bool = False
    masked: bool = False
    proposals: tuple[PredictedToken, ...] = ()


def judged(
    tokenizer: Tokenizer, tokens: Sequence[CorruptedToken], suspicions: Sequence[float]
) -> list[JudgedToken]:
    """Join the tokens of a text and the discriminator's verdicts on them."""
    shown = spell(tokenizer, [token.token for token in tokens])
    before = spell(tokenizer, [token.original for token in tokens])
    return [
        JudgedToken(
            token=token.token,
            text=text,
            begins_word=begins_word,
            suspicion=suspicion,
            original=token.original if token.replaced else None,
            original_text=original_text if token.replaced else "",
            original_begins_word=original_begins_word and token.replaced,
            masked=token.masked,
            proposals=token.proposals,
        )
        for token, suspicion, (text, begins_word), (original_text, original_begins_word) in zip(
            tokens, suspicions, shown, before, strict=True
        )
    ]


def spell(tokenizer: Tokenizer, tokens: Sequence[str]) -> list[tuple[str, bool]]:
    """Return for each token its text without marks, and whether a word begins with it."""
    marks_starts = marks_word_starts(tokenizer)
    found = []
    for token in tokens:
        if marks_starts:
            ids = [i for i in (tokenizer.token_to_id(token),) if i is not None]
            text = tokenizer.decode(ids, skip_special_tokens=False)
            found.append((text.strip() or token, token.startswith(WORD_STARTS)))
        else:
            found.append((token.removeprefix("##") or token, not token.startswith("##")))
    if found:
        found[0] = (found[0][0], True)
    return found


def marks_word_starts(tokenizer: Tokenizer) -> bool:
    """Return whether the tokenizer marks the first token of a word, not the others."""
    return type(tokenizer.model).__name__ != "WordPiece"


def heat_map(tokens: Sequence[JudgedToken], chosen: int | None = None, clicks: bool = True) -> str:
    """Return the tokens with the discriminator's suspicion as a colour and in per cent."""
    parts = []
    for number, token in enumerate(tokens):
        note = f"{token.suspicion:.0%} suspicious"
        if token.original is not None:
            before = token.original_text
            note += f", replaces “{before}”" if before else ", added by hand"
        kinds = ["token"]
        if not token.begins_word or token.text in CLOSING:
            kinds.append("joined")
        if token.original is not None:
            kinds.append("replaced")
        if number == chosen:
            kinds.append("chosen")
        origin = f"<s>{html.escape(token.original_text)}</s>" if token.original_text else ""
        tag = "button" if clicks else "span"
        button = f'type="button" data-index="{number}" ' if clicks else ""
        parts.append(
            f'<{tag} {button}class="{" ".join(kinds)}" '
            f'style="--p:{token.suspicion:.3f}" title="{html.escape(note)}">'
            f"<b>{html.escape(token.text)}</b><small>{token.suspicion:.0%}</small>{origin}</{tag}>"
        )
    return f'<div class="tokens">{"".join(parts)}</div>' if parts else ""


def legend() -> str:
    """Return what the colours and lines of a heat map mean."""
    return (
        '<p class="legend"><span>original</span><i class="scale"></i><span>replaced</span>'
        '<span class="token replaced sample"><b>word</b></span>'
        "<span>was replaced; the original token is struck out</span></p>"
    )
