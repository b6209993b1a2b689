"""Turn tagged sentences into features, and predictions back into a tag per word."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.errors import UserError
from electra.tasks.examples import IGNORE_INDEX, Features, Tagged, Task
from electra.tasks.tag_schemes import score_spans
from electra.text.tokenizer import Vocabulary, special_tokens_as_text

OVERLAP = 4
"""A row that continues a sentence repeats words of the previous row, up to 1/OVERLAP of its
tokens."""

WordRanges = Iterator[tuple[int, int, int]]
"""For each row: its first word, the first word that it predicts, and the end of its words."""


def encode_words(
    examples: Sequence[Tagged],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    max_length: int,
    labels: Sequence[str],
) -> Features:
    """Encode sentences; the first token of each word carries its tag.

    A sentence that is too long becomes several rows; each word is predicted in one of them.
    """
    available = max(max_length - 2, 1)  # without [CLS] and [SEP]
    pieces, truncated_words = tokenize_words(examples, tokenizer, vocab, available)
    truncated = [i for i, each in enumerate(examples) if not truncated_words.isdisjoint(each.words)]
    label_index = {label: index for index, label in enumerate(labels)}
    labelled = all(each.tags is not None for each in examples)
    input_ids: list[npt.NDArray[np.int32]] = []
    row_labels: list[npt.NDArray[np.int64]] = []
    offsets: list[npt.NDArray[np.int32]] = []
    example_index: list[int] = []
    for index, example in enumerate(examples):
        words = [pieces[word] for word in example.words]
        # A tag that training never saw cannot be learned; it still counts in the score.
        tags = [label_index.get(tag, IGNORE_INDEX) for tag in example.tags or ()]
        for first, predicted, end in split_sentence([len(word) for word in words], available):
            ids, targets, word_index = [vocab.cls], [IGNORE_INDEX], [-1]
            for at in range(first, end):
                rest = len(words[at]) - 1
                ids += words[at]
                tag = tags[at] if labelled and at >= predicted else IGNORE_INDEX
                targets += [tag, *[IGNORE_INDEX] * rest]
                word_index += [at if at >= predicted else -1, *[-1] * rest]
            input_ids.append(np.array([*ids, vocab.sep], dtype=np.int32))
            row_labels.append(np.array([*targets, IGNORE_INDEX], dtype=np.int64))
            offsets.append(word_offsets([*word_index, -1]))
            example_index.append(index)
    return Features(
        input_ids=input_ids,
        segment_start=np.array([len(row) for row in input_ids], dtype=np.int32),
        labels=row_labels if labelled else None,
        example_index=np.array(example_index, dtype=np.int64),
        offsets=offsets,
        num_truncated=len(truncated),
        first_truncated=truncated[0] if truncated else -1,
    )


def word_offsets(word_index: list[int]) -> npt.NDArray[np.int32]:
    """(word, word + 1) for each token, (-1, -1) where the word is -1."""
    start = np.array(word_index, dtype=np.int32)
    return np.stack([start, np.where(start < 0, -1, start + 1)], axis=1).astype(np.int32)


def tokenize_words(
    examples: Sequence[Tagged], tokenizer: Tokenizer, vocab: Vocabulary, available: int
) -> tuple[dict[str, list[int]], set[str]]:
    """Tokenize each distinct word once; also return the words that were truncated."""
    distinct = list(dict.fromkeys(word for each in examples for word in each.words))
    with special_tokens_as_text(tokenizer):
        encoded = tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
    # A word without tokens, such as a soft hyphen, still needs one to carry its tag.
    placeholder = [vocab.mask if vocab.unk is None else vocab.unk]
    pieces: dict[str, list[int]] = {}
    truncated = set()
    for word, encoding in zip(distinct, encoded, strict=True):
        ids = encoding.ids or placeholder
        if len(ids) > available:
            truncated.add(word)
        pieces[word] = ids[:available]
    return pieces, truncated


def split_sentence(sizes: Sequence[int], available: int) -> WordRanges:
    """Split a sentence of words with these token counts into rows of `available` tokens."""
    predicted = 0
    while True:
        # Leave space for the next word, so that every row predicts at least one.
        overlap = min(available // OVERLAP, available - sizes[predicted]) if predicted else 0
        first, used = predicted, 0
        while first and used + sizes[first - 1] <= overlap:
            first -= 1
            used += sizes[first]
        end = predicted
        while end < len(sizes) and used + sizes[end] <= available:
            used += sizes[end]
            end += 1
        yield first, predicted, end
        predicted = end
        if end == len(sizes):
            return


def decode_tags(
    features: Features,
    examples: Sequence[Tagged],
    predictions: Sequence[npt.NDArray[np.integer]],
    labels: Sequence[str],
) -> list[list[str]]:
    """Turn a label index per token into a tag per word; prediction rows may be padded."""
    decoded = [[""] * len(each.words) for each in examples]
    rows = zip(features.example_index, features.offsets, predictions, strict=True)
    for example, offsets, predicted in rows:
        (tokens,) = np.nonzero(offsets[:, 0] >= 0)
        chosen = predicted[tokens].tolist()
        for word, label in zip(offsets[tokens, 0].tolist(), chosen, strict=True):
            decoded[example][word] = labels[label]
    return decoded


def score_tags(
    task: Task, examples: Sequence[Tagged], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Accuracy over words, and for span tags also precision, recall and F1 over spans."""
    gold = [each.tags for each in examples if each.tags is not None]
    if len(gold) < len(examples):
        raise UserError(f"The task '{task.name}' has no tags here: there is nothing to score.")
    pairs = [
        pair
        for tags, guesses in zip(gold, predicted, strict=True)
        for pair in zip(tags, guesses, strict=True)
    ]
    correct = sum(tag == guess for tag, guess in pairs)
    scores = {"accuracy": correct / len(pairs) if pairs else 0.0}
    return scores | score_spans(gold, predicted) if task.metric == "f1" else scores
