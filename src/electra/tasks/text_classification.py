"""Turn texts, pairs and choices into features: [CLS] text [SEP] or [CLS] text [SEP] pair [SEP]."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.tasks.examples import Choice, Features, Sentence
from electra.text.tokenizer import Vocabulary, special_tokens_as_text

TokenIds = npt.NDArray[np.int32]

BATCH = 10_000  # texts tokenized at a time, because encodings take far more memory than ids


def encode_sentences(
    examples: Sequence[Sentence],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    max_length: int,
    *,
    kind: Literal["classify", "regress"],
    swap: bool = False,
) -> Features:
    """Encode sentences; `swap` adds a second row for each pair, in the other order."""
    texts = tokenize(tokenizer, [example.text for example in examples])
    with_pair = [index for index, example in enumerate(examples) if example.pair is not None]
    pairs: list[TokenIds | None] = [None] * len(examples)
    found = tokenize(tokenizer, [str(examples[index].pair) for index in with_pair])
    for index, ids in zip(with_pair, found, strict=True):
        pairs[index] = ids
    segments: list[tuple[TokenIds, TokenIds | None]] = []
    example_index: list[int] = []
    for index, (text, pair) in enumerate(zip(texts, pairs, strict=True)):
        segments.append((text, pair))
        example_index.append(index)
        if swap and pair is not None:
            segments.append((pair, text))
            example_index.append(index)
    given = [example.label for example in examples]
    labels: npt.NDArray[Any] | None = None
    if None not in given:
        dtype = np.int64 if kind == "classify" else np.float32
        labels = np.asarray(given, dtype)[example_index]
    return build_features(segments, vocab, max_length, np.asarray(example_index, np.int64), labels)


def encode_choices(
    examples: Sequence[Choice], tokenizer: Tokenizer, vocab: Vocabulary, max_length: int
) -> Features:
    """Encode choices: one row per option, with the option as the second segment."""
    num_options = len(examples[0].options) if examples else 1
    if any(len(example.options) != num_options for example in examples):
        raise ValueError("all choices must have the same number of options")
    texts = tokenize(tokenizer, [example.text for example in examples])
    options = tokenize(tokenizer, [option for e in examples for option in e.options])
    example_index = np.repeat(np.arange(len(examples), dtype=np.int64), num_options)
    segments = [(texts[i], option) for i, option in zip(example_index, options, strict=True)]
    given = [example.label for example in examples]
    labels = None if None in given else np.asarray(given, np.int64)
    return build_features(
        segments, vocab, max_length, example_index, labels, rows_per_example=num_options
    )


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenIds]:
    """Tokenize texts; the name of a special token in a text is ordinary text."""
    with special_tokens_as_text(tokenizer):
        return [
            np.asarray(encoding.ids, np.int32)
            for start in range(0, len(texts), BATCH)
            for encoding in tokenizer.encode_batch_fast(
                list(texts[start : start + BATCH]), add_special_tokens=False
            )
        ]


def build_features(
    segments: Sequence[tuple[TokenIds, TokenIds | None]],
    vocab: Vocabulary,
    max_length: int,
    example_index: npt.NDArray[np.int64],
    labels: npt.NDArray[Any] | None,
    *,
    rows_per_example: int = 1,
) -> Features:
    """Join one or two segments per row and truncate them to `max_length`."""
    a = np.asarray([len(first) for first, _ in segments], np.int64)
    b = np.asarray([0 if second is None else len(second) for _, second in segments], np.int64)
    special = np.asarray([2 if second is None else 3 for _, second in segments], np.int64)
    if max_length < 3:
        raise ValueError(f"max_length={max_length} leaves no space for [CLS] and [SEP]")
    keep_a, keep_b = truncate_pairs(a, b, max_length - special)
    cls, sep = np.asarray([vocab.cls], np.int32), np.asarray([vocab.sep], np.int32)
    input_ids = [
        np.concatenate(
            (cls, first[:x], sep) if second is None else (cls, first[:x], sep, second[:y], sep)
        )
        for (first, second), x, y in zip(segments, keep_a.tolist(), keep_b.tolist(), strict=True)
    ]
    truncated = np.unique(example_index[(keep_a < a) | (keep_b < b)])
    return Features(
        input_ids=input_ids,
        segment_start=(keep_a + 2).astype(np.int32),
        labels=labels,
        example_index=example_index,
        rows_per_example=rows_per_example,
        num_truncated=len(truncated),
        first_truncated=int(truncated[0]) if len(truncated) else -1,
    )


def truncate_pairs(
    a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], available: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How many tokens to keep of each segment, given their lengths and the available tokens.

    The longer segment loses its last token until both fit; at equal lengths the second one loses,
    as in google-research/electra.
    """
    excess = np.maximum(a + b - available, 0)
    from_longer = np.minimum(excess, np.abs(a - b))  # until both are equally long
    rest = excess - from_longer  # then alternately, the second segment first
    lost_a = np.where(a > b, from_longer, 0) + rest // 2
    return a - lost_a, b - (excess - lost_a)
