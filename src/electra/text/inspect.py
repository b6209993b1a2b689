"""Measure how well a tokenizer fits a text, and warn about what it loses."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from electra.text.plain_text import read_texts
from electra.text.tokenizer import SPECIAL_NAMES, find_special, model_kind

SAMPLE_BYTES = 10_000_000
BATCH = 1000
MAX_EXAMPLES = 5
MAX_EXAMPLE_CHARS = 30
# Scripts without spaces between words, by the first word of their Unicode character names.
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")

MANY_UNKNOWN = 0.01
MANY_ACCENTS = 0.002
MANY_CAPITALS = 0.005
MANY_UNSPACED = 0.2
MANY_CHANGED = 0.01
FEW_USED = 0.5
MIN_TOKENS_PER_ENTRY = 20  # sample size from which unused vocabulary entries mean something


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Metrics of one tokenizer on one text."""

    kind: str
    vocabulary_size: int
    text_bytes: int
    words: int
    """Separated by white space."""
    tokens: int
    unknown_rate: float
    """The share of tokens that are unknown."""
    tokens_per_word: float
    tokens_per_character: float
    """White space is not counted."""
    continuation_rate: float
    """The share of tokens that continue a word."""
    changed_rate: float
    """The share of words that differ after encoding and decoding, apart from case and spaces."""
    examples: tuple[tuple[str, str], ...]
    """Frequent words that differ after encoding and decoding."""
    accents_lost_rate: float
    """The share of letters that lose an accent or another mark."""
    used_rate: float
    """The share of the vocabulary that occurs in the text."""
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Counts:
    """Running counts over the text."""

    text_bytes: int
    words: Counter[str]
    letters: Counter[str]
    used: set[int]
    tokens: int = 0
    unknown: int = 0
    continuations: int = 0


def inspect_tokenizer(
    tokenizer: Tokenizer,
    inputs: Sequence[str | Path],
    *,
    names: Mapping[str, str] | None = None,
    text_field: str = "text",
    limit: int = SAMPLE_BYTES,
) -> Report:
    """Encode the first `limit` bytes of the inputs and report metrics and warnings."""
    special = find_special(tokenizer, names)
    counts = Counts(0, Counter(), Counter(), set())
    for lines in sample_lines(inputs, text_field, limit):
        count_lines(tokenizer, lines, special.get("unk"), counts)
    changed = changed_words(tokenizer, counts.words)
    words = max(1, counts.words.total())
    characters = sum(len(word) * count for word, count in counts.words.items())
    lost = lost_accents(tokenizer, counts.letters)
    tokens = max(1, counts.tokens)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    report = Report(
        kind=model_kind(tokenizer),
        vocabulary_size=size,
        text_bytes=counts.text_bytes,
        words=counts.words.total(),
        tokens=counts.tokens,
        unknown_rate=counts.unknown / tokens,
        tokens_per_word=counts.tokens / words,
        tokens_per_character=counts.tokens / max(1, characters),
        continuation_rate=counts.continuations / tokens,
        changed_rate=sum(counts.words[word] for word, _ in changed) / words,
        examples=tuple((shorten(a), shorten(b)) for a, b in changed[:MAX_EXAMPLES]),
        accents_lost_rate=lost.total() / max(1, counts.letters.total()),
        used_rate=len(counts.used) / size,
        warnings=(),
    )
    found = find_warnings(tokenizer, report, counts.letters, special)
    return replace(report, warnings=tuple(found))


def sample_lines(inputs: Sequence[str | Path], text_field: str, limit: int) -> Iterator[list[str]]:
    """Yield the first lines of the text, one list per document."""
    left = limit
    for chunk in read_texts(inputs, text_field=text_field, size=1_000_000):
        for document in chunk:
            yield document[:left].split("\n")
            left -= len(document.encode())
            if left <= 0:
                return


def count_lines(
    tokenizer: Tokenizer, lines: list[str], unknown: int | None, counts: Counts
) -> None:
    """Encode lines and update the counts."""
    for encoding in tokenizer.encode_batch(lines, add_special_tokens=False):
        ids, words = encoding.ids, encoding.word_ids
        counts.tokens += len(ids)
        counts.used.update(ids)
        if unknown is not None:
            counts.unknown += ids.count(unknown)
        counts.continuations += sum(a == b for a, b in pairwise(words) if a is not None)
    for line in lines:
        composed = unicodedata.normalize("NFC", line)
        counts.text_bytes += len(line.encode()) + 1
        counts.words.update(line.split())
        counts.letters.update(c for c in composed if c.isalpha())


def changed_words(tokenizer: Tokenizer, words: Counter[str]) -> list[tuple[str, str]]:
    """Return words that change, with what they become, frequent ones first."""
    changed: list[tuple[str, str]] = []
    ordered = [word for word, _ in words.most_common()]
    for start in range(0, len(ordered), BATCH):
        batch = ordered[start : start + BATCH]
        encoded = tokenizer.encode_batch(batch, add_special_tokens=False)
        decoded = tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)
        changed += [
            (a, b.strip())
            for a, b in zip(batch, decoded, strict=True)
            if canonical(a) != canonical(b)
        ]
    return changed


def shorten(text: str) -> str:
    """Return the start of a long text; a sentence without spaces counts as a word."""
    return text if len(text) <= MAX_EXAMPLE_CHARS else text[: MAX_EXAMPLE_CHARS - 1] + "…"


def canonical(text: str) -> str:
    """Remove differences that do not matter: case, spaces and the form of accents."""
    return "".join(unicodedata.normalize("NFC", text).casefold().split())


def find_warnings(
    tokenizer: Tokenizer, report: Report, letters: Counter[str], special: Mapping[str, int]
) -> Iterator[str]:
    """Yield what the user should know before training, each one sentence."""
    for role in SPECIAL_NAMES:
        if role not in special and not (role == "unk" and report.kind != "WordPiece"):
            yield (
                f"missing special token {SPECIAL_NAMES[role][0]}: training needs it; "
                "add it to the tokenizer or train another."
            )
    yield from letter_warnings(tokenizer, report, letters)
    yield from unknown_warnings(report.unknown_rate)
    if (
        report.used_rate < FEW_USED
        and report.tokens > MIN_TOKENS_PER_ENTRY * report.vocabulary_size
    ):
        yield (
            f"vocabulary too large: the text uses only {report.used_rate:.0%} of it; "
            "a smaller --vocab-size trains faster."
        )


def unknown_warnings(unknown_rate: float) -> Iterator[str]:
    """Yield a warning if many tokens are unknown."""
    if unknown_rate > MANY_UNKNOWN:
        yield (
            f"high unknown rate: {unknown_rate:.1%} of the tokens are unknown; "
            "train the tokenizer on text like this, or with --kind bpe."
        )


def letter_warnings(tokenizer: Tokenizer, report: Report, letters: Counter[str]) -> Iterator[str]:
    """Yield warnings about accents, case and scripts."""
    total = max(1, letters.total())
    plain = normalized_letters(tokenizer, letters)
    lost = lost_accents(tokenizer, letters)
    if report.accents_lost_rate > MANY_ACCENTS:
        most = ", ".join(f"{c}→{plain[c]}" for c, _ in lost.most_common(5))
        yield (
            f"accents lost: {report.accents_lost_rate:.1%} of the letters lose their accent "
            f"({most}); if accents distinguish words in this language, train with --keep-accents."
        )
    capitals = sum(n for c, n in letters.items() if c.isupper() and not plain[c].isupper())
    if capitals / total > MANY_CAPITALS:
        yield (
            f"case lost: {capitals / total:.1%} of the letters are upper case and become lower "
            "case; if case matters for your tasks (for example names), train with --cased."
        )
    unspaced = sum(n for c, n in letters.items() if script(c) in UNSPACED)
    if report.kind == "WordPiece" and unspaced / total > MANY_UNSPACED:
        yield (
            f"text without spaces: {unspaced / total:.0%} of the letters belong to scripts without "
            "spaces between words, which WordPiece needs; train with --kind unigram --keep-accents."
        )
    if report.changed_rate > MANY_CHANGED and not lost:
        pairs = ", ".join(f"{a}→{b}" for a, b in report.examples)
        yield f"text changes: {report.changed_rate:.1%} of the words change ({pairs})."


def normalized_letters(tokenizer: Tokenizer, letters: Counter[str]) -> dict[str, str]:
    """Return what the tokenizer makes of each letter."""
    normalizer = tokenizer.normalizer
    return {c: normalizer.normalize_str(c).strip() if normalizer else c for c in letters}


def lost_accents(tokenizer: Tokenizer, letters: Counter[str]) -> Counter[str]:
    """Return the letters that lose an accent, with their counts."""
    plain = normalized_letters(tokenizer, letters)
    return Counter({c: n for c, n in letters.items() if accented(c) and not accented(plain[c])})


def accented(text: str) -> bool:
    """Whether the decomposed text contains a combining mark."""
    return any(unicodedata.category(c) == "Mn" for c in unicodedata.normalize("NFD", text))


def script(character: str) -> str:
    """Return the first word of a character's Unicode name, which is usually its script."""
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
