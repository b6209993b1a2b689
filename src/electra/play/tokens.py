"""Texts as tokens with the discriminator's verdicts: corrupt, detect, replace, join to words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from electra.api import Model
from electra.errors import UserError
from electra.hub.corruption import CorruptedToken
from electra.hub.heat_map import JudgedToken, judged

MAX_CHARS = 2000
"""Characters of a text; longer ones are refused."""
MAX_REPLACEMENT_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Consecutive tokens that are one word, judged by the most suspicious of them."""

    text: str
    suspicion: float
    replaced: bool
    original: str
    """What stood there before the replacement: a word, sometimes two."""


def check_text(text: str, limit: int = MAX_CHARS) -> str:
    """Return the text without outer spaces; an empty or too long one is an error."""
    text = text.strip()
    if not text:
        raise UserError("The text is empty: type a sentence.")
    if len(text) > limit:
        raise UserError(f"The text has {len(text):,} characters: use at most {limit:,}.")
    return text


def corrupt_and_detect(
    model: Model, text: str, mask_rate: float, temperature: float, seed: int
) -> list[JudgedToken]:
    """Replace tokens of a text by samples of the generator and judge the result."""
    tokens = model.corrupt(
        check_text(text), mask_rate=mask_rate, temperature=temperature, seed=seed
    )
    return judge(model, tokens)


def detect(model: Model, text: str) -> list[JudgedToken]:
    """Judge a text as it is."""
    found = model.tokenizer.encode(check_text(text), add_special_tokens=False).tokens
    return judge(model, [CorruptedToken(token=t, original=t, masked=False) for t in found])


def judge(model: Model, tokens: Sequence[CorruptedToken]) -> list[JudgedToken]:
    """Add the discriminator's verdicts."""
    suspicions = model.detect_tokens([token.token for token in tokens])
    return judged(model.tokenizer, tokens, suspicions)


def replace_token(
    model: Model, tokens: Sequence[JudgedToken], index: int, replacement: str
) -> list[JudgedToken]:
    """Replace one token by hand and judge the whole text again.

    The replacement is a token of the vocabulary or a word, which may become several tokens.
    """
    old = pick(tokens, index)
    written = check_text(replacement, MAX_REPLACEMENT_CHARS)
    is_token = model.tokenizer.token_to_id(written) is not None
    pieces = (
        [written] if is_token else model.tokenizer.encode(written, add_special_tokens=False).tokens
    )
    if not pieces:
        raise UserError("The replacement has no tokens: type a word.")
    before = old.original or old.token
    new = [
        CorruptedToken(
            token=piece,
            original=before if number == 0 else "",
            masked=old.masked and number == 0,
            proposals=old.proposals if number == 0 else (),
        )
        for number, piece in enumerate(pieces)
    ]
    return judge(model, [*_as_corrupted(tokens[:index]), *new, *_as_corrupted(tokens[index + 1 :])])


def pick(tokens: Sequence[JudgedToken], index: int) -> JudgedToken:
    """Return a token by its number, which comes from the page."""
    if not 0 <= index < len(tokens):
        raise UserError("There is no such token: choose one of the text.")
    return tokens[index]


def with_proposals(model: Model, tokens: Sequence[JudgedToken], index: int) -> JudgedToken:
    """Return a token with what the generator would put there; of a masked one, what it did."""
    token = pick(tokens, index)
    if token.proposals:
        return token
    proposals = model.propose([t.token for t in tokens], index)
    return replace(token, proposals=tuple(proposals))


def _as_corrupted(tokens: Iterable[JudgedToken]) -> list[CorruptedToken]:
    return [
        CorruptedToken(
            token=t.token,
            original=t.token if t.original is None else t.original,
            masked=t.masked,
            proposals=t.proposals,
        )
        for t in tokens
    ]


def join_words(tokens: Sequence[JudgedToken]) -> list[Word]:
    """Join the tokens of each word."""
    words: list[Word] = []
    for token in tokens:
        replaced = token.original is not None
        original = token.original_text if replaced else token.text
        if token.begins_word or not words:
            words.append(
                Word(
                    text=token.text,
                    suspicion=token.suspicion,
                    replaced=replaced,
                    original=original,
                )
            )
        else:
            last = words[-1]
            space = " " * token.original_begins_word  # two words have become one
            words[-1] = Word(
                text=last.text + token.text,
                suspicion=max(last.suspicion, token.suspicion),
                replaced=last.replaced or replaced,
                original=last.original + space + original,
            )
    return words
