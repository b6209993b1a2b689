"""Tags that mark spans of words: which scheme they follow, the spans that they mean, span F1."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

Scheme = Literal["IOB1", "IOB2", "BIOES", "BILOU"]
"""IOB1: B- only between two spans of one type; IOB2 (BIO): B- starts every span; BIOES, also
called IOBES: E- ends a span and S- is a span of one word; BILOU: the same with L- and U-."""

Span = tuple[str, int, int]
"""The type, the first word, and the word after the last."""

OUTSIDE = "O"
UNTYPED = "_"
"""The type of bare tags, as `B`."""

LETTERS = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
"""What each letter means in BIOES; no scheme uses one of them in two ways."""

ALPHABETS = {
    "IOB1": ("B", "I"),
    "IOB2": ("B", "I"),
    "BIOES": ("B", "I", "E", "S"),
    "BILOU": ("B", "I", "L", "U"),
}


def parts(tag: str) -> tuple[str, str]:
    """The letter of a tag as BIOES has it, and the type of its span: `L-PER` -> (E, PER)."""
    letter, _, kind = tag.partition("-")
    if letter not in LETTERS:
        return OUTSIDE, ""  # a tag that marks no span
    return LETTERS[letter], kind or UNTYPED


def joined(letter: str, kind: str) -> str:
    """The tag of a letter and a type."""
    return letter if kind == UNTYPED else f"{letter}-{kind}"


def spans(tags: Sequence[str]) -> set[Span]:
    """The spans of one sentence, read as conlleval and seqeval do: forgiving, in every scheme.

    What breaks its scheme still counts: a span starts where the type changes, whatever the letter.
    """
    found: set[Span] = set()
    open_kind, start, before = "", 0, OUTSIDE
    for place, tag in enumerate(tags):
        letter, kind = parts(tag)
        goes_on = before in "BI" and letter in "IE" and kind == open_kind
        if not goes_on:
            if before != OUTSIDE:
                found.add((open_kind, start, place))
            open_kind, start = kind, place
        before = letter
    if before != OUTSIDE:
        found.add((open_kind, start, len(tags)))
    return found


def find_scheme(sentences: Iterable[Sequence[str]]) -> Scheme | None:
    """The scheme that all the tags together follow, or come nearest to; None for other tags."""
    sentences = list(sentences)
    letters: set[str] = set()
    for tag in {tag for tags in sentences for tag in tags} - {OUTSIDE}:
        letter, _, kind = tag.partition("-")
        if letter not in LETTERS or ("-" in tag and not kind):
            return None
        letters.add(letter)
    if not letters or not letters & {"B", "I", "S", "U"}:
        return None
    if letters & {"L", "U"}:
        return "BILOU"
    if letters & {"E", "S"}:
        return "BIOES"
    one, two = (
        sum(1 for tags in sentences for _ in breaches(tags, scheme)) for scheme in ("IOB1", "IOB2")
    )
    return "IOB1" if one < two else "IOB2"


def breaches(tags: Sequence[str], scheme: str) -> Iterator[tuple[int, str]]:
    """The words of a sentence where its tags break the scheme, each with the reason."""
    before, last = OUTSIDE, ""
    for place, tag in enumerate(tags):
        letter, kind = parts(tag)
        inside = before in "BI" and kind == last
        if tag != OUTSIDE and tag.partition("-")[0] not in ALPHABETS[scheme]:
            yield place, f"'{tag}' is no tag of it"
        if scheme == "IOB1":
            if letter == "B" and not inside:
                yield place, f"'{tag}' follows no span of its type"
        elif scheme == "IOB2":
            if letter == "I" and not inside:
                yield place, f"'{tag}' continues a span that has not begun"
        elif letter in "IE" and not inside:
            yield place, f"'{tag}' continues a span that has not begun"
        elif letter in "OBS" and before in "BI":
            yield place, f"'{tag}' follows a span that has not ended"
        before, last = letter, kind
    if scheme in ("BIOES", "BILOU") and before in "BI":
        yield len(tags) - 1, f"the span of '{tags[-1]}' does not end before the sentence does"


def to_scheme(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The same spans in another scheme."""
    out = [OUTSIDE] * len(tags)
    end_letter, single = {"BIOES": ("E", "S"), "BILOU": ("L", "U")}.get(scheme, ("I", "B"))
    previous: tuple[str, int] = ("", 0)
    for kind, start, end in sorted(spans(tags), key=lambda span: span[1]):
        first = "I" if scheme == "IOB1" and previous != (kind, start) else "B"
        out[start:end] = [joined("I", kind)] * (end - start)
        out[end - 1] = joined(end_letter, kind)
        out[start] = joined(first if end - start > 1 or first == "I" else single, kind)
        previous = (kind, end)
    return tuple(out)


def to_bioes(tags: Sequence[str]) -> tuple[str, ...]:
    """The same spans in BIOES, in which the original trains."""
    return to_scheme(tags, "BIOES")


def score_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 over the spans of all sentences; 0 where there is none to count."""
    found = given = right = 0
    for ours, theirs in zip(predicted, gold, strict=True):
        guess, truth = spans(ours), spans(theirs)
        found, given, right = found + len(guess), given + len(truth), right + len(guess & truth)
    return {
        "precision": right / found if found else 0.0,
        "recall": right / given if given else 0.0,
        "f1": 2 * right / (found + given) if found + given else 0.0,
    }
