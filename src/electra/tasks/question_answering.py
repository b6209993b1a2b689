"""Turn questions into windows over their context, and span scores back into answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.tasks.examples import Features, Question
from electra.text.tokenizer import Vocabulary, special_tokens_as_text

BATCH = 1024  # texts tokenized or questions decoded at a time, to bound the memory
SPACES = np.array([point for point in range(0x3001) if chr(point).isspace()], dtype=np.uint32)

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanScores:
    """The model's outputs for every row: its best starts, and the best ends for each of them."""

    starts: npt.NDArray[Any]
    """Token positions in the row, (rows, beam)."""
    start_scores: npt.NDArray[Any]
    """Log probabilities, (rows, beam)."""
    ends: npt.NDArray[Any]
    """Positions of the last token, (rows, beam, beam)."""
    end_scores: npt.NDArray[Any]
    """Log probabilities, (rows, beam, beam)."""
    null: npt.NDArray[Any]
    """Logit for no answer, (rows,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The predicted answer to a question."""

    id: str
    text: str
    """The best answer, whatever `null` says; empty only if there is no valid span."""
    null: float
    """The lowest null logit of its windows, because one window with an answer is enough."""
    n_best: list[tuple[str, float, float]]
    """The best answers: text, score, and probability among these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A tokenized context."""

    ids: Ints
    offsets: Ints
    """Start and end character of each token, (tokens, 2)."""


def encode_questions(
    examples: Sequence[Question],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    max_length: int,
    *,
    doc_stride: int = 128,
    max_question_length: int = 64,
    training: bool,
) -> Features:
    """Encode rows [CLS] question [SEP] window of the context [SEP].

    The label is the first answer that has a position in the context; windows without all of it get
    (0, 0). `training` omits the offsets, which only decoding needs.
    """
    # at least half of each row is left for the context
    question_length = min(max_question_length, max(1, (max_length - 3) // 2))
    with special_tokens_as_text(tokenizer):
        contexts = tokenize_contexts(examples, tokenizer)
        prefixes, truncated = encode_prefixes(examples, tokenizer, vocab, question_length)
    sep = np.array([vocab.sep], dtype=np.int32)
    input_ids: list[Ints] = []
    segment_start: list[int] = []
    example_index: list[int] = []
    labels: list[tuple[int, int, int]] = []
    offsets: list[Ints] = []
    for index, (example, prefix) in enumerate(zip(examples, prefixes, strict=True)):
        context = contexts[example.context]
        available = max_length - len(prefix) - 1
        windows = list(sliding_windows(len(context.ids), available, doc_stride))
        span = answer_tokens(example, context)
        for start, size in windows:
            input_ids.append(np.concatenate((prefix, context.ids[start : start + size], sep)))
            inside = span is not None and start <= span[0] and span[1] < start + size
            shift = len(prefix) - start
            first, last = (span[0] + shift, span[1] + shift) if span and inside else (0, 0)
            labels.append((first, last, int(example.impossible)))
        segment_start += [len(prefix)] * len(windows)
        example_index += [index] * len(windows)
        if not training:
            offsets += window_offsets(context, len(prefix), windows)
    unlabelled = any(not each.answers and not each.impossible for each in examples)
    return Features(
        input_ids=input_ids,
        segment_start=np.array(segment_start, dtype=np.int32),
        labels=None if unlabelled else np.array(labels, dtype=np.int64).reshape(-1, 3),
        example_index=np.array(example_index, dtype=np.int64),
        offsets=offsets,
        num_truncated=len(truncated),
        first_truncated=truncated[0] if truncated else -1,
    )


def tokenize_contexts(examples: Sequence[Question], tokenizer: Tokenizer) -> dict[str, Context]:
    """Tokenize each distinct context once, because many questions share one."""
    texts = list(dict.fromkeys(each.context for each in examples))
    contexts: dict[str, Context] = {}
    for begin in range(0, len(texts), BATCH):
        batch = texts[begin : begin + BATCH]
        for text, encoding in zip(
            batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True
        ):
            offsets = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            contexts[text] = Context(
                ids=np.array(encoding.ids, dtype=np.int32), offsets=strip_spaces(text, offsets)
            )
    return contexts


def strip_spaces(text: str, offsets: Ints) -> Ints:
    """Exclude the space before a word, which some tokenizers count as part of its token."""
    space = np.isin(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), SPACES)
    space = np.append(space, False)
    if not space[offsets[:, 0]].any():
        return offsets
    position = np.where(space, len(space), np.arange(len(space)))
    next_letter = np.minimum.accumulate(position[::-1])[::-1]
    starts = np.minimum(next_letter[offsets[:, 0]], offsets[:, 1])
    return np.stack([starts, offsets[:, 1]], axis=1).astype(np.int32)


def encode_prefixes(
    examples: Sequence[Question], tokenizer: Tokenizer, vocab: Vocabulary, question_length: int
) -> tuple[list[Ints], list[int]]:
    """Encode [CLS] question [SEP]; also return the indices of truncated questions."""
    prefixes: list[Ints] = []
    truncated: list[int] = []
    for begin in range(0, len(examples), BATCH):
        texts = [each.question for each in examples[begin : begin + BATCH]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            if len(encoding.ids) > question_length:
                truncated.append(len(prefixes))
            ids = [vocab.cls, *encoding.ids[:question_length], vocab.sep]
            prefixes.append(np.array(ids, dtype=np.int32))
    return prefixes, truncated


def sliding_windows(total: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """Start and size of overlapping windows that together cover `total` tokens."""
    # differs from google-research/electra: windows overlap by at least half. With short rows its
    # windows do not overlap, and an answer on the border would be in none.
    step = max(1, min(stride, size // 2))
    start = 0
    while True:
        width = min(total - start, size)
        yield start, width
        if start + width >= total:
            return
        start += step


def answer_tokens(example: Question, context: Context) -> tuple[int, int] | None:
    """The first and last token of the context that overlap the answer."""
    answer = next((each for each in example.answers if each.start >= 0), None)
    if answer is None:
        return None
    starts, ends = context.offsets[:, 0], context.offsets[:, 1]
    overlapping = (ends > answer.start) & (starts < answer.start + len(answer.text))
    tokens = np.flatnonzero(overlapping)
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def window_offsets(context: Context, prefix: int, windows: list[tuple[int, int]]) -> list[Ints]:
    """The offsets of each row; an answer may start only in the window with most context around it.

    The end of every token is kept, so that an answer may end beyond that part of the window.
    """
    best = best_windows(len(context.ids), windows) if len(windows) > 1 else None
    rows = []
    for index, (start, size) in enumerate(windows):
        row = np.full((prefix + size + 1, 2), -1, dtype=np.int32)
        row[prefix:-1] = context.offsets[start : start + size]
        if best is not None:
            row[prefix:-1, 0][best[start : start + size] != index] = -1
        rows.append(row)
    return rows


def best_windows(total: int, windows: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """For each token, the window with the largest minimum of left and right context, as in BERT."""
    start, size = np.array(windows).T[:, :, None]  # (windows, 1) each
    position = np.arange(total)
    left, right = position - start, start + size - 1 - position
    score = np.where((left >= 0) & (right >= 0), np.minimum(left, right) + 0.01 * size, -1.0)
    return score.argmax(0)


def decode_answers(
    features: Features,
    examples: Sequence[Question],
    outputs: SpanScores,
    *,
    max_answer_length: int = 30,
    n_best: int = 20,
) -> list[Prediction]:
    """Find the best spans of each question over all its windows, as texts of the context."""
    null = np.full(len(examples), np.inf)
    np.minimum.at(null, features.example_index, outputs.null.astype(np.float64))
    bounds = np.searchsorted(features.example_index, np.arange(len(examples) + 1))
    predictions = []
    for begin in range(0, len(examples), BATCH):
        batch = range(begin, min(begin + BATCH, len(examples)))
        rows = slice(int(bounds[batch.start]), int(bounds[batch.stop]))
        example_index, scores, spans = find_candidates(features, outputs, rows, max_answer_length)
        edges = np.searchsorted(example_index, np.arange(batch.start, batch.stop + 1))
        for index, low, high in zip(batch, edges[:-1], edges[1:], strict=True):
            example = examples[index]
            found = best_texts(example.context, scores[low:high], spans[low:high], n_best)
            predictions.append(
                Prediction(
                    id=example.id,
                    text=found[0][0] if found else "",
                    null=float(null[index]),
                    n_best=found,
                )
            )
    return predictions


def find_candidates(
    features: Features, outputs: SpanScores, rows: slice, max_answer_length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Find the valid spans of some rows: example, score, and start and end character.

    They are sorted by example, best first.
    """
    row_offsets = features.offsets[rows]
    longest = max(len(each) for each in row_offsets)
    offsets = np.full((len(row_offsets), longest + 1, 2), -1, dtype=np.int64)
    for index, each in enumerate(row_offsets):
        offsets[index, : len(each)] = each
    # positions beyond the row are looked up in the last column, which is never a valid offset
    starts = np.minimum(outputs.starts[rows].astype(np.int64), longest)  # (rows, beam)
    ends = np.minimum(outputs.ends[rows].astype(np.int64), longest)  # (rows, beam, beam)
    row = np.arange(len(row_offsets))
    first = offsets[row[:, None], starts, 0][:, :, None]
    last = offsets[row[:, None, None], ends, 1]
    length = outputs.ends[rows].astype(np.int64) - outputs.starts[rows].astype(np.int64)[:, :, None]
    score = outputs.start_scores[rows].astype(np.float64)[:, :, None] + outputs.end_scores[rows]
    valid = (first >= 0) & (last >= 0) & (length >= 0) & (length < max_answer_length)
    valid &= np.isfinite(score)
    chosen = np.nonzero(valid)
    example_index, score = features.example_index[rows][chosen[0]], score[chosen]
    spans = np.stack([np.broadcast_to(first, valid.shape)[chosen], last[chosen]], axis=1)
    order = np.lexsort((-score, example_index))
    return example_index[order], score[order], spans[order]


def best_texts(
    context: str, scores: npt.NDArray[np.float64], spans: npt.NDArray[np.int64], n_best: int
) -> list[tuple[str, float, float]]:
    """The best distinct texts, with their softmax probabilities."""
    found: dict[str, float] = {}
    for score, (start, end) in zip(scores, spans, strict=True):
        if len(found) == n_best:
            break
        found.setdefault(context[start:end], float(score))
    found.pop("", None)
    if not found:
        return []
    weights = np.exp(np.array(list(found.values())) - max(found.values()))
    probabilities = (weights / weights.sum()).tolist()
    return [(text, score, p) for (text, score), p in zip(found.items(), probabilities, strict=True)]
