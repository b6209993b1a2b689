"""Texts and pairs of texts -> rows of tokens: [CLS] text [SEP], or [CLS] text [SEP] pair [SEP]."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.tasks.examples import Choice, Features, Sentence
from electra.text.tokenizer import Vocabulary, special_tokens_as_text

VocabInfo = npt.NDArray[np.int32]

BATCH = 10_000  # texts tokenized at a time: the library's results take far more room than the ids


def encode_sentences(
    examples: Sequence[Sentence],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    length: int,
    *,
    kind: Literal["classify", "regress"],
    swap: bool = False,
) -> Features:
    """The rows of sentences; with `swap` every pair is followed by itself the other way round."""
    first = tokenize(tokenizer, [example.text for example in examples])
    pairs = [number for number, example in enumerate(examples) if example.pair is not None]
    second: list[VocabInfo | None] = [None] * len(examples)
    found = tokenize(tokenizer, [str(examples[number].pair) for number in pairs])
    for number, ids in zip(pairs, found, strict=True):
        second[number] = ids
    sides: list[tuple[VocabInfo, VocabInfo | None]] = []
    example: list[int] = []
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        sides.append((a, b))
        example.append(number)
        if swap and b is not None:
            sides.append((b, a))
            example.append(number)
    labels = [e.label for e in examples]
    target: npt.NDArray[Any] | None = None
    if None not in labels:
        dtype = np.int64 if kind == "classify" else np.float32
        target = np.asarray(labels, dtype)[example]
    return features(sides, vocab, length, np.asarray(example, np.int64), target)


def encode_choices(
    examples: Sequence[Choice], tokenizer: Tokenizer, vocab: Vocabulary, length: int
) -> Features:
    """The rows of choices: one for each option, which is the second segment."""
    each = len(examples[0].options) if examples else 1
    if any(len(example.options) != each for example in examples):
        raise ValueError("all choices must have the same number of options")
    texts = tokenize(tokenizer, [example.text for example in examples])
    options = tokenize(tokenizer, [option for e in examples for option in e.options])
    number = np.repeat(np.arange(len(examples), dtype=np.int64), each)
    sides = [(texts[n], option) for n, option in zip(number, options, strict=True)]
    labels = [e.label for e in examples]
    target = None if None in labels else np.asarray(labels, np.int64)
    return features(sides, vocab, length, number, target, rows_each=each)


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[VocabInfo]:
    """The tokens of each text; a text that names a special token is text."""
    with special_tokens_as_text(tokenizer):
        return [
            np.asarray(encoding.ids, np.int32)
            for start in range(0, len(texts), BATCH)
            for encoding in tokenizer.encode_batch_fast(
                list(texts[start : start + BATCH]), add_special_tokens=False
            )
        ]


def features(
    sides: Sequence[tuple[VocabInfo, VocabInfo | None]],
    vocab: Vocabulary,
    length: int,
    example: npt.NDArray[np.int64],
    target: npt.NDArray[Any] | None,
    *,
    rows_each: int = 1,
) -> Features:
    """The rows of one or two sides each, cut to the length."""
    a = np.asarray([len(first) for first, _ in sides], np.int64)
    b = np.asarray([0 if second is None else len(second) for _, second in sides], np.int64)
    special = np.asarray([2 if second is None else 3 for _, second in sides], np.int64)
    if length < 3:
        raise ValueError(f"rows of {length} tokens have no room for [CLS] and [SEP]")
    keep_a, keep_b = cut_pairs(a, b, length - special)
    cls, sep = np.asarray([vocab.cls], np.int32), np.asarray([vocab.sep], np.int32)
    ids = [
        np.concatenate(
            (cls, first[:x], sep) if second is None else (cls, first[:x], sep, second[:y], sep)
        )
        for (first, second), x, y in zip(sides, keep_a.tolist(), keep_b.tolist(), strict=True)
    ]
    cut = np.unique(example[(keep_a < a) | (keep_b < b)])
    return Features(
        ids=ids,
        first=(keep_a + 2).astype(np.int32),
        target=target,
        example=example,
        rows_each=rows_each,
        cut=len(cut),
        first_cut=int(cut[0]) if len(cut) else -1,
    )


def cut_pairs(
    a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], room: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tokens that both sides keep when the longer side loses its last, again and again.

    At equal lengths the second side loses, as in the original.
    """
    excess = np.maximum(a + b - room, 0)
    alone = np.minimum(excess, np.abs(a - b))  # until both sides are equal
    rest = excess - alone  # then in turn, the second first
    lost_a = np.where(a > b, alone, 0) + rest // 2
    return a - lost_a, b - (excess - lost_a)
