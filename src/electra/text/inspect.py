"""How well a tokenizer fits a text, and warnings in plain words of what it would lose."""

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from tokenizers import Tokenizer

from electra.text.read import read_chunks
from electra.text.tokenizer import NAMES, find_special, model_kind

SAMPLE = 10_000_000  # bytes of text that are looked at
BATCH = 1000
EXAMPLES = 5
# Scripts written without spaces between words, by the first word of their characters' names.
UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")

MANY_UNKNOWN = 0.01
MANY_ACCENTS = 0.002
MANY_CAPITALS = 0.005
MANY_UNSPACED = 0.2
MANY_CHANGED = 0.01
FEW_USED = 0.5
ENOUGH_TOKENS = 20  # tokens per entry of the vocabulary, before unused ones mean anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The figures of one tokenizer on one text."""

    kind: str
    vocabulary_size: int
    text_bytes: int
    words: int
    """Separated by blanks."""
    tokens: int
    unknown_rate: float
    """The share of tokens that are the unknown one."""
    pieces_per_word: float
    continuation_rate: float
    """The share of tokens that go on a word."""
    changed_rate: float
    """The share of words that come back different, case and blanks aside."""
    examples: tuple[tuple[str, str], ...]
    """Frequent words that come back different."""
    used_rate: float
    """The share of the vocabulary that the text uses."""
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Counts:
    """What is counted while the text passes."""

    text_bytes: int
    words: Counter[str]
    letters: Counter[str]
    used: set[int]
    tokens: int = 0
    unknown: int = 0
    going_on: int = 0


def inspect_tokenizer(
    tokenizer: Tokenizer,
    inputs: Sequence[str | Path],
    *,
    names: Mapping[str, str] | None = None,
    text_field: str = "text",
    limit: int = SAMPLE,
) -> Report:
    """Encode the first `limit` bytes of the inputs and tell what comes of them."""
    special = find_special(tokenizer, names)
    counts = Counts(0, Counter(), Counter(), set())
    for lines in sample(inputs, text_field, limit):
        count_lines(tokenizer, lines, special.get("unk"), counts)
    changed = changed_words(tokenizer, counts.words)
    words = max(1, counts.words.total())
    tokens = max(1, counts.tokens)
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    figures = Report(
        kind=model_kind(tokenizer),
        vocabulary_size=size,
        text_bytes=counts.text_bytes,
        words=counts.words.total(),
        tokens=counts.tokens,
        unknown_rate=counts.unknown / tokens,
        pieces_per_word=counts.tokens / words,
        continuation_rate=counts.going_on / tokens,
        changed_rate=sum(counts.words[word] for word, _ in changed) / words,
        examples=tuple(changed[:EXAMPLES]),
        used_rate=len(counts.used) / size,
        warnings=(),
    )
    found = warnings(tokenizer, figures, counts.letters, special)
    return replace(figures, warnings=tuple(found))


def sample(inputs: Sequence[str | Path], text_field: str, limit: int) -> Iterator[list[str]]:
    """The first lines of the text, in lists."""
    left = limit
    for chunk in read_chunks(inputs, text_field=text_field, size=1_000_000):
        for document in chunk:
            yield document[:left].split("\n")
            left -= len(document.encode())
            if left <= 0:
                return


def count_lines(
    tokenizer: Tokenizer, lines: list[str], unknown: int | None, counts: Counts
) -> None:
    """Encode some lines and count what is in them."""
    for encoding in tokenizer.encode_batch(lines, add_special_tokens=False):
        ids, words = encoding.ids, encoding.word_ids
        counts.tokens += len(ids)
        counts.used.update(ids)
        if unknown is not None:
            counts.unknown += ids.count(unknown)
        counts.going_on += sum(a == b for a, b in pairwise(words) if a is not None)
    for line in lines:
        composed = unicodedata.normalize("NFC", line)
        counts.text_bytes += len(line.encode()) + 1
        counts.words.update(line.split())
        counts.letters.update(c for c in composed if c.isalpha())


def changed_words(tokenizer: Tokenizer, words: Counter[str]) -> list[tuple[str, str]]:
    """Words, frequent ones first, that are not the same after encoding and decoding."""
    changed: list[tuple[str, str]] = []
    ordered = [word for word, _ in words.most_common()]
    for start in range(0, len(ordered), BATCH):
        some = ordered[start : start + BATCH]
        encoded = tokenizer.encode_batch(some, add_special_tokens=False)
        back = tokenizer.decode_batch([e.ids for e in encoded], skip_special_tokens=False)
        changed += [(a, b.strip()) for a, b in zip(some, back, strict=True) if bare(a) != bare(b)]
    return changed


def bare(text: str) -> str:
    """The text without what does not count as a change: case, blanks, the form of accents."""
    return "".join(unicodedata.normalize("NFC", text).casefold().split())


def warnings(
    tokenizer: Tokenizer, report: Report, letters: Counter[str], special: Mapping[str, int]
) -> Iterator[str]:
    """What the user should know before training, each in a sentence."""
    for role in NAMES:
        if role not in special and not (role == "unk" and report.kind != "WordPiece"):
            yield (
                f"missing special token {NAMES[role][0]}: training needs it; "
                "add it to the tokenizer or train another."
            )
    yield from letter_warnings(tokenizer, report, letters)
    yield from unknown_warnings(report.unknown_rate)
    if report.used_rate < FEW_USED and report.tokens > ENOUGH_TOKENS * report.vocabulary_size:
        yield (
            f"vocabulary too large: the text uses {report.used_rate:.0%} of it; "
            "a smaller --vocab-size trains faster."
        )


def unknown_warnings(unknown_rate: float) -> Iterator[str]:
    """A warning if many tokens are unknown."""
    if unknown_rate > MANY_UNKNOWN:
        yield (
            f"high unknown rate: {unknown_rate:.1%} of the tokens are unknown; "
            "train the tokenizer on text of this kind, or use --kind bpe."
        )


def letter_warnings(tokenizer: Tokenizer, report: Report, letters: Counter[str]) -> Iterator[str]:
    """Warnings of accents, case and scripts, judged by the letters of the text."""
    total = max(1, letters.total())
    normalizer = tokenizer.normalizer
    plain = {c: normalizer.normalize_str(c).strip() if normalizer else c for c in letters}
    lost = Counter({c: n for c, n in letters.items() if accented(c) and not accented(plain[c])})
    if lost.total() / total > MANY_ACCENTS:
        most = ", ".join(f"{c}→{plain[c]}" for c, _ in lost.most_common(5))
        yield (
            f"accents lost: {lost.total() / total:.1%} of the letters lose their accent ({most}); "
            "if words of this language differ by it, train with --keep-accents."
        )
    capitals = sum(n for c, n in letters.items() if c.isupper() and not plain[c].isupper())
    if capitals / total > MANY_CAPITALS:
        yield (
            f"case lost: {capitals / total:.1%} of the letters are upper case and become lower "
            "case; if that matters for your tasks (names), train with --cased."
        )
    unspaced = sum(n for c, n in letters.items() if script(c) in UNSPACED)
    if report.kind == "WordPiece" and unspaced / total > MANY_UNSPACED:
        yield (
            f"text without spaces: {unspaced / total:.0%} of the letters are of scripts that do "
            "not separate words, which WordPiece relies on; use --kind unigram or bpe."
        )
    if report.changed_rate > MANY_CHANGED and not lost:
        pairs = ", ".join(f"{a}→{b}" for a, b in report.examples)
        yield f"text changes: {report.changed_rate:.1%} of the words come back different ({pairs})."


def accented(text: str) -> bool:
    """Whether a mark is part of the text once it is decomposed."""
    return any(unicodedata.category(c) == "Mn" for c in unicodedata.normalize("NFD", text))


def script(character: str) -> str:
    """The first word of a character's name, which is mostly its script."""
    return unicodedata.name(character, "").partition(" ")[0].partition("-")[0]
