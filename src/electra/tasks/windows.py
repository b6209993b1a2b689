"""Questions -> rows with a window of their context, and scores of spans back to answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.tasks.examples import Features, Question
from electra.text.tokenizer import Vocabulary, special_tokens_as_text

BATCH = 1024  # texts tokenised, or questions decoded, at a time: bounds the memory
SPACES = np.array([point for point in range(0x3001) if chr(point).isspace()], dtype=np.uint32)

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanScores:
    """What a model says of every row: its best starts, and the best ends for each of them."""

    starts: npt.NDArray[Any]
    """Numbers of tokens in the row, (rows, beam)."""
    start_scores: npt.NDArray[Any]
    """Logarithms of probabilities, (rows, beam)."""
    ends: npt.NDArray[Any]
    """The last token, (rows, beam, beam)."""
    end_scores: npt.NDArray[Any]
    null: npt.NDArray[Any]
    """How much speaks for no answer, a logit, (rows,)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answer to a question."""

    id: str
    text: str
    """The best one, whatever `null` says; empty only when no span is left."""
    null: float
    """The least of its windows: an answer in one of them is enough."""
    n_best: list[tuple[str, float, float]]
    """Text, score and probability among these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """A tokenised text: ids, and where in the text each token starts and ends."""

    ids: Ints
    places: Ints
    """In characters, (tokens, 2)."""


def encode_questions(
    examples: Sequence[Question],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    length: int,
    *,
    stride: int = 128,
    longest_question: int = 64,
    training: bool,
) -> Features:
    """Rows [CLS] question [SEP] window of the context [SEP]; `stride` lies between two windows.

    The answer is the first one that has a place; a window that lacks a part of it has (0, 0).
    In `spans`, which `training` leaves out, a token's end stays where only its start is
    another window's, so that an answer may reach over the border.
    """
    limit = min(longest_question, max(1, (length - 3) // 2))  # leaves room for the context
    with special_tokens_as_text(tokenizer):
        contexts = tokenise_contexts(examples, tokenizer)
        heads, cut = question_heads(examples, tokenizer, vocab, limit)
    sep = np.array([vocab.sep], dtype=np.int32)
    ids: list[Ints] = []
    first: list[int] = []
    owner: list[int] = []
    target: list[tuple[int, int, int]] = []
    spans: list[Ints] = []
    for number, (example, head) in enumerate(zip(examples, heads, strict=True)):
        context = contexts[example.context]
        room = length - len(head) - 1
        windows = list(cut_windows(len(context.ids), room, stride))
        span = answer_tokens(example, context)
        for start, size in windows:
            ids.append(np.concatenate((head, context.ids[start : start + size], sep)))
            inside = span is not None and start <= span[0] and span[1] < start + size
            shift = len(head) - start
            low, high = (span[0] + shift, span[1] + shift) if span and inside else (0, 0)
            target.append((low, high, int(example.impossible)))
        first += [len(head)] * len(windows)
        owner += [number] * len(windows)
        if not training:
            spans += window_spans(context, len(head), windows)
    hidden = any(not each.answers and not each.impossible for each in examples)
    return Features(
        ids=ids,
        first=np.array(first, dtype=np.int32),
        target=None if hidden else np.array(target, dtype=np.int64).reshape(-1, 3),
        example=np.array(owner, dtype=np.int64),
        spans=spans,
        cut=len(cut),
        first_cut=cut[0] if cut else -1,
    )


def tokenise_contexts(examples: Sequence[Question], tokenizer: Tokenizer) -> dict[str, Context]:
    """Every distinct context once: many questions share one."""
    texts = list(dict.fromkeys(each.context for each in examples))
    found: dict[str, Context] = {}
    for at in range(0, len(texts), BATCH):
        batch = texts[at : at + BATCH]
        for text, encoding in zip(
            batch, tokenizer.encode_batch(batch, add_special_tokens=False), strict=True
        ):
            places = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
            found[text] = Context(
                ids=np.array(encoding.ids, dtype=np.int32), places=without_spaces(text, places)
            )
    return found


def without_spaces(text: str, places: Ints) -> Ints:
    """Places of tokens without the blank before the word, which some tokenizers count in."""
    space = np.isin(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), SPACES)
    space = np.append(space, False)
    if not space[places[:, 0]].any():
        return places
    at = np.where(space, len(space), np.arange(len(space)))
    next_letter = np.minimum.accumulate(at[::-1])[::-1]
    starts = np.minimum(next_letter[places[:, 0]], places[:, 1])
    return np.stack([starts, places[:, 1]], axis=1).astype(np.int32)


def question_heads(
    examples: Sequence[Question], tokenizer: Tokenizer, vocab: Vocabulary, limit: int
) -> tuple[list[Ints], list[int]]:
    """[CLS] question [SEP] of every example, and the numbers of those that were cut."""
    heads: list[Ints] = []
    cut: list[int] = []
    for at in range(0, len(examples), BATCH):
        texts = [each.question for each in examples[at : at + BATCH]]
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            if len(encoding.ids) > limit:
                cut.append(len(heads))
            heads.append(np.array([vocab.cls, *encoding.ids[:limit], vocab.sep], dtype=np.int32))
    return heads, cut


def cut_windows(total: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Start and size of windows that together hold every token, each half of the next at least."""
    # differs from the original: in short rows its windows would not overlap, and an answer on the
    # border would be in none.
    step = max(1, min(stride, room // 2))
    start = 0
    while True:
        size = min(total - start, room)
        yield start, size
        if start + size >= total:
            return
        start += step


def answer_tokens(example: Question, context: Context) -> tuple[int, int] | None:
    """First and last token of the context that the answer touches."""
    answer = next((each for each in example.answers if each.start >= 0), None)
    if answer is None:
        return None
    starts, ends = context.places[:, 0], context.places[:, 1]
    covering = (ends > answer.start) & (starts < answer.start + len(answer.text))
    tokens = np.flatnonzero(covering)
    return (int(tokens[0]), int(tokens[-1])) if len(tokens) else None


def window_spans(context: Context, head: int, windows: list[tuple[int, int]]) -> list[Ints]:
    """The places of each row's tokens; a start only in the window with most context around it."""
    best = best_windows(len(context.ids), windows) if len(windows) > 1 else None
    spans = []
    for number, (start, size) in enumerate(windows):
        row = np.full((head + size + 1, 2), -1, dtype=np.int32)
        row[head:-1] = context.places[start : start + size]
        if best is not None:
            row[head:-1, 0][best[start : start + size] != number] = -1
        spans.append(row)
    return spans


def best_windows(total: int, windows: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """For each token the window in which the smaller of its two sides is largest, as in BERT."""
    start, size = np.array(windows).T[:, :, None]  # (windows, 1) each
    place = np.arange(total)
    left, right = place - start, start + size - 1 - place
    score = np.where((left >= 0) & (right >= 0), np.minimum(left, right) + 0.01 * size, -1.0)
    return score.argmax(0)


def decode_answers(
    features: Features,
    examples: Sequence[Question],
    outputs: SpanScores,
    *,
    longest_answer: int = 30,
    n_best: int = 20,
) -> list[Prediction]:
    """The best spans of each question over all its windows, as texts of the context."""
    null = np.full(len(examples), np.inf)
    np.minimum.at(null, features.example, outputs.null.astype(np.float64))
    bounds = np.searchsorted(features.example, np.arange(len(examples) + 1))
    predictions = []
    for at in range(0, len(examples), BATCH):
        batch = range(at, min(at + BATCH, len(examples)))
        rows = slice(int(bounds[batch.start]), int(bounds[batch.stop]))
        owner, score, place = candidates(features, outputs, rows, longest_answer)
        edges = np.searchsorted(owner, np.arange(batch.start, batch.stop + 1))
        for number, low, high in zip(batch, edges[:-1], edges[1:], strict=True):
            example = examples[number]
            found = best_texts(example.context, score[low:high], place[low:high], n_best)
            predictions.append(
                Prediction(
                    id=example.id,
                    text=found[0][0] if found else "",
                    null=float(null[number]),
                    n_best=found,
                )
            )
    return predictions


def candidates(
    features: Features, outputs: SpanScores, rows: slice, longest_answer: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The spans of some rows that may be answers: example, score, place in characters.

    They are sorted by example, the best first.
    """
    spans = features.spans[rows]
    sizes = np.array([len(span) for span in spans])
    places = np.full((len(spans), int(sizes.max()) + 1, 2), -1, dtype=np.int64)
    for number, span in enumerate(spans):
        places[number, : len(span)] = span
    past = places.shape[1] - 1  # what lies beyond the row is looked up there, and is no place
    starts = outputs.starts[rows].astype(np.int64)  # (rows, beam)
    ends = outputs.ends[rows].astype(np.int64)  # (rows, beam, beam)
    row = np.arange(len(spans))
    begin = places[row[:, None], np.minimum(starts, past), 0][:, :, None]
    finish = places[row[:, None, None], np.minimum(ends, past), 1]
    extra = ends - starts[:, :, None]
    score = outputs.start_scores[rows].astype(np.float64)[:, :, None] + outputs.end_scores[rows]
    valid = (begin >= 0) & (finish >= 0) & (extra >= 0) & (extra < longest_answer)
    valid &= np.isfinite(score)
    which = np.nonzero(valid)
    owner, score = features.example[rows][which[0]], score[which]
    place = np.stack([np.broadcast_to(begin, valid.shape)[which], finish[which]], axis=1)
    order = np.lexsort((-score, owner))
    return owner[order], score[order], place[order]


def best_texts(
    context: str, scores: npt.NDArray[np.float64], places: npt.NDArray[np.int64], n_best: int
) -> list[tuple[str, float, float]]:
    """The best different texts, with their probabilities among themselves."""
    found: dict[str, float] = {}
    for score, (begin, finish) in zip(scores, places, strict=True):
        if len(found) == n_best:
            break
        found.setdefault(context[begin:finish], float(score))
    found.pop("", None)
    if not found:
        return []
    powers = np.exp(np.array(list(found.values())) - max(found.values()))
    chances = powers / powers.sum()
    return [
        (text, score, float(c)) for (text, score), c in zip(found.items(), chances, strict=True)
    ]
