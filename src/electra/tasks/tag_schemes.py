"""Tag schemes for spans (IOB1, IOB2, BIOES, BILOU): detect, check, convert and score them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

Scheme = Literal["IOB1", "IOB2", "BIOES", "BILOU"]
"""IOB1 uses B- only between two spans of one type; IOB2 (BIO) starts every span with B-; BIOES
(IOBES) also ends spans with E- and marks single words with S-; BILOU is BIOES with L- and U-."""

Span = tuple[str, int, int]
"""The type, the first word, and the word after the last."""

OUTSIDE = "O"
UNTYPED = "_"
"""The type of a tag without one, such as `B`."""

PREFIXES = {"B": "B", "I": "I", "E": "E", "S": "S", "L": "E", "U": "S"}
"""Each prefix in BIOES; no two schemes use the same prefix differently."""

SCHEME_PREFIXES = {
    "IOB1": ("B", "I"),
    "IOB2": ("B", "I"),
    "BIOES": ("B", "I", "E", "S"),
    "BILOU": ("B", "I", "L", "U"),
}


def split_tag(tag: str) -> tuple[str, str]:
    """Split a tag into its BIOES prefix and its type: `L-PER` -> (E, PER)."""
    prefix, _, kind = tag.partition("-")
    if prefix not in PREFIXES:
        return OUTSIDE, ""  # not a span tag
    return PREFIXES[prefix], kind or UNTYPED


def join_tag(prefix: str, kind: str) -> str:
    """Join a prefix and a type into a tag."""
    return prefix if kind == UNTYPED else f"{prefix}-{kind}"


def find_spans(tags: Sequence[str]) -> set[Span]:
    """Find the spans of a sentence in any scheme, as leniently as conlleval and seqeval.

    Tags that violate their scheme still count: a change of type starts a span, whatever the prefix.
    """
    found: set[Span] = set()
    open_kind, start, previous = "", 0, OUTSIDE
    for index, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        continues = previous in "BI" and prefix in "IE" and kind == open_kind
        if not continues:
            if previous != OUTSIDE:
                found.add((open_kind, start, index))
            open_kind, start = kind, index
        previous = prefix
    if previous != OUTSIDE:
        found.add((open_kind, start, len(tags)))
    return found


def find_scheme(sentences: Iterable[Sequence[str]]) -> Scheme | None:
    """Find the scheme that the tags follow most closely; None if they do not mark spans."""
    sentences = list(sentences)
    prefixes: set[str] = set()
    for tag in {tag for tags in sentences for tag in tags} - {OUTSIDE}:
        prefix, _, kind = tag.partition("-")
        if prefix not in PREFIXES or ("-" in tag and not kind):
            return None
        prefixes.add(prefix)
    if not prefixes or not prefixes & {"B", "I", "S", "U"}:
        return None
    if prefixes & {"L", "U"}:
        return "BILOU"
    if prefixes & {"E", "S"}:
        return "BIOES"
    iob1, iob2 = (
        sum(1 for tags in sentences for _ in find_violations(tags, scheme))
        for scheme in ("IOB1", "IOB2")
    )
    return "IOB1" if iob1 < iob2 else "IOB2"


def find_violations(tags: Sequence[str], scheme: str) -> Iterator[tuple[int, str]]:
    """Find the words whose tags violate the scheme, each with the reason."""
    previous, previous_kind = OUTSIDE, ""
    for index, tag in enumerate(tags):
        prefix, kind = split_tag(tag)
        inside = previous in "BI" and kind == previous_kind
        if tag != OUTSIDE and tag.partition("-")[0] not in SCHEME_PREFIXES[scheme]:
            yield index, f"'{tag}' is not one of its tags"
        if scheme == "IOB1":
            if prefix == "B" and not inside:
                yield index, f"'{tag}' does not follow a span of its type"
        elif scheme == "IOB2":
            if prefix == "I" and not inside:
                yield index, f"'{tag}' continues a span that has not started"
        elif prefix in "IE" and not inside:
            yield index, f"'{tag}' continues a span that has not started"
        elif prefix in "OBS" and previous in "BI":
            yield index, f"'{tag}' follows a span that has not ended"
        previous, previous_kind = prefix, kind
    if scheme in ("BIOES", "BILOU") and previous in "BI":
        yield len(tags) - 1, f"the span of '{tags[-1]}' has not ended at the end of the sentence"


def to_scheme(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Convert tags to another scheme."""
    converted = [OUTSIDE] * len(tags)
    last, single = {"BIOES": ("E", "S"), "BILOU": ("L", "U")}.get(scheme, ("I", "B"))
    previous: tuple[str, int] = ("", 0)
    for kind, start, end in sorted(find_spans(tags), key=lambda span: span[1]):
        first = "I" if scheme == "IOB1" and previous != (kind, start) else "B"
        converted[start:end] = [join_tag("I", kind)] * (end - start)
        converted[end - 1] = join_tag(last, kind)
        converted[start] = join_tag(first if end - start > 1 or first == "I" else single, kind)
        previous = (kind, end)
    return tuple(converted)


def to_bioes(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert tags to BIOES, the scheme that google-research/electra trains in."""
    return to_scheme(tags, "BIOES")


def score_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Precision, recall and F1 over the spans of all sentences; 0 if there are none."""
    num_predicted = num_gold = correct = 0
    for predicted_tags, gold_tags in zip(predicted, gold, strict=True):
        found, expected = find_spans(predicted_tags), find_spans(gold_tags)
        num_predicted += len(found)
        num_gold += len(expected)
        correct += len(found & expected)
    return {
        "precision": correct / num_predicted if num_predicted else 0.0,
        "recall": correct / num_gold if num_gold else 0.0,
        "f1": 2 * correct / (num_predicted + num_gold) if num_predicted + num_gold else 0.0,
    }
