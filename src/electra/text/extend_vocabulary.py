"""Add pieces to a tokenizer that are learned from new text; old pieces keep their ids.

The words of the text are split by the tokenizer as it is. Then the most frequent pair of
neighbouring pieces is merged into a new piece, again and again, as in the training of BPE and
WordPiece. So each new piece consists of old ones.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from electra.errors import UserError
from electra.text.plain_text import read_texts
from electra.text.tokenizer import find_special, model_kind

MIN_COUNT = 2
"""How often a new piece must occur in the text."""


@dataclass(frozen=True, slots=True)
class ExtendedTokenizer:
    """A tokenizer with new pieces at the end of its vocabulary."""

    tokenizer: Tokenizer
    first: int
    """The id of the first new piece."""
    pieces: dict[str, tuple[int, ...]]
    """The new pieces in the order of their ids, each with the ids of its old pieces."""


def extend_tokenizer(
    tokenizer: Tokenizer,
    inputs: Sequence[str | Path],
    count: int,
    *,
    text_field: str = "text",
    progress: Callable[[int], None] | None = None,
) -> ExtendedTokenizer:
    """Learn up to `count` new pieces from text; raise a `UserError` if there are none."""
    kind = model_kind(tokenizer)
    if kind not in ("WordPiece", "BPE"):
        raise UserError(
            f"A {kind} vocabulary cannot be extended, only WordPiece and BPE can: leave out "
            "--extend-vocabulary."
        )
    content: dict[str, Any] = json.loads(tokenizer.to_str())
    prefix = content["model"].get("continuing_subword_prefix") or ""
    chunks = read_texts(inputs, text_field=text_field, on_bytes=progress)
    words = count_words(tokenizer, (document for chunk in chunks for document in chunk))
    merges = Merges(prefix, tokenizer.get_vocab(with_added_tokens=True))
    merges.add_words(tokenizer, words)
    # WordPiece takes the longest piece that fits, so pieces inside of longer ones are not needed.
    drop_unused = kind == "WordPiece"
    pieces = merges.learn(count, drop_unused=drop_unused)
    if not pieces:
        raise UserError(
            "The text has no new pieces: its words are single pieces already, or occur only once. "
            "Give more text, or leave out --extend-vocabulary."
        )
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    first = max(vocab.values()) + 1
    # Added tokens too: outside of the model's vocabulary they would get ids after the new pieces.
    content["model"]["vocab"] = vocab | {piece: first + i for i, piece in enumerate(pieces)}
    if kind == "BPE":
        as_text = any(isinstance(merge, str) for merge in content["model"]["merges"])
        learned = [f"{a} {b}" if as_text else [a, b] for a, b in merges.done]
        content["model"]["merges"] += learned
    extended = Tokenizer.from_str(json.dumps(content))
    after = extended.get_vocab(with_added_tokens=True)
    assert all(after[token] == token_id for token, token_id in vocab.items())
    return ExtendedTokenizer(extended, first, pieces)


def count_words(tokenizer: Tokenizer, documents: Iterable[str]) -> Counter[str]:
    """Count the words of the text, normalized and split as the tokenizer does."""
    raw: Counter[str] = Counter()
    for document in documents:
        raw.update(document.split())
    normalizer, pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    words: Counter[str] = Counter()
    for word, count in raw.items():
        text = f" {word}"  # as inside a line: byte-level BPE and SentencePiece mark the space
        text = normalizer.normalize_str(text) if normalizer else text
        parts = pre_tokenizer.pre_tokenize_str(text) if pre_tokenizer else [(text, None)]
        for part, _ in parts:
            words[part] += count
    return words


Pair = tuple[str, str]


@dataclass(slots=True)
class Merges:
    """Words as pieces, how often each pair of pieces occurs, and the merges of pairs so far."""

    prefix: str
    """Marks pieces inside of a word."""
    vocab: dict[str, int]
    words: list[list[str]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    pairs: Counter[Pair] = field(default_factory=Counter)
    places: dict[Pair, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The words in which a pair occurs, or did before another merge."""
    uses: Counter[str] = field(default_factory=Counter)
    pieces: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The new pieces, with the ids of the old ones that they consist of."""
    used: set[str] = field(default_factory=set)
    """The new pieces that words still consist of."""
    done: list[Pair] = field(default_factory=list)

    def add_words(self, tokenizer: Tokenizer, words: Counter[str]) -> None:
        """Split words into the tokenizer's pieces; words with an unknown piece are left out."""
        unknown = find_special(tokenizer).get("unk")
        for word, count in sorted(words.items()):
            tokens = tokenizer.model.tokenize(word)
            if len(tokens) > 1 and all(token.id != unknown for token in tokens):
                self.words.append([token.value for token in tokens])
                self.counts.append(count)
                self._count(len(self.words) - 1, 1)

    def learn(self, limit: int, *, drop_unused: bool) -> dict[str, tuple[int, ...]]:
        """Merge pairs until there are `limit` new pieces; return them with their old pieces."""
        queue = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(queue)
        kept = self.used if drop_unused else self.pieces
        while queue and len(kept) < limit:
            negative, pair = heapq.heappop(queue)
            count = self.pairs[pair]
            if count < MIN_COUNT:
                continue
            if -negative != count:  # it has changed since it was queued
                heapq.heappush(queue, (-count, pair))
                continue
            for changed in self._merge(pair):
                heapq.heappush(queue, (-self.pairs[changed], changed))
        return {piece: ids for piece, ids in self.pieces.items() if piece in kept}

    def _merge(self, pair: Pair) -> set[Pair]:
        """Merge a pair wherever it occurs; return the pairs that became more frequent."""
        a, b = pair
        piece = a + b.removeprefix(self.prefix)
        self.done.append(pair)
        if piece not in self.vocab:
            self.pieces.setdefault(piece, (*self._old_ids(a), *self._old_ids(b)))
        changed = set()
        for number in sorted(self.places.pop(pair)):
            self._count(number, -1)
            self.words[number] = merged(self.words[number], pair, piece)
            self._count(number, 1)
            changed |= set(pairwise(self.words[number]))
        return {p for p in changed if piece in p}

    def _old_ids(self, piece: str) -> tuple[int, ...]:
        return self.pieces[piece] if piece in self.pieces else (self.vocab[piece],)

    def _count(self, number: int, sign: int) -> None:
        """Add a word's pieces and pairs to the counts, or take them away."""
        pieces, count = self.words[number], sign * self.counts[number]
        for piece in pieces:
            self.uses[piece] += count
            if piece in self.pieces:
                (self.used.add if self.uses[piece] else self.used.discard)(piece)
        for pair in pairwise(pieces):
            self.pairs[pair] += count
            if sign > 0:
                self.places[pair].add(number)


def merged(pieces: list[str], pair: Pair, piece: str) -> list[str]:
    """Return the pieces of a word with each occurrence of a pair replaced, from the left."""
    found: list[str] = []
    i = 0
    while i < len(pieces):
        if tuple(pieces[i : i + 2]) == pair:
            found.append(piece)
            i += 2
        else:
            found.append(pieces[i])
            i += 1
    return found
