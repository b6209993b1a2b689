"""Tagged sentences -> rows of tokens, and predictions back to the words."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.errors import UserError
from electra.tasks.examples import IGNORED, Features, Tagged, Task
from electra.tasks.spans import score_spans
from electra.text.tokenizer import Vocabulary, special_tokens_as_text

CONTEXT = 4
"""A row that continues a sentence repeats words of the row before, up to this part of its room."""

Rows = Iterator[tuple[int, int, int]]
"""For each row: its first word, the first word that is judged in it, the word after its last."""


def encode_words(
    examples: Sequence[Tagged],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    length: int,
    labels: Sequence[str],
) -> Features:
    """Rows in which the first token of each word carries its tag.

    A sentence that is too long becomes several rows; each of its words is judged in one of them.
    `spans` has (word, word + 1) at the first token of a word that is judged here, else (-1, -1).
    """
    room = max(length - 2, 1)
    pieces, cut_words = word_pieces(examples, tokenizer, vocab, room)
    cut = [n for n, each in enumerate(examples) if not cut_words.isdisjoint(each.words)]
    number = {label: place for place, label in enumerate(labels)}
    known = all(each.tags is not None for each in examples)
    ids: list[npt.NDArray[np.int32]] = []
    target: list[npt.NDArray[np.int64]] = []
    places: list[npt.NDArray[np.int32]] = []
    owner: list[int] = []
    for place, example in enumerate(examples):
        words = [pieces[word] for word in example.words]
        # A tag that training never saw cannot be learnt; it still counts in the score.
        tags = [number.get(tag, IGNORED) for tag in example.tags or ()]
        for first, judged, end in rows_of([len(word) for word in words], room):
            row = [vocab.cls]
            row_target, row_words = [IGNORED], [-1]
            for at in range(first, end):
                rest = len(words[at]) - 1
                row += words[at]
                row_target += [tags[at] if known and at >= judged else IGNORED, *[IGNORED] * rest]
                row_words += [at if at >= judged else -1, *[-1] * rest]
            ids.append(np.array([*row, vocab.sep], dtype=np.int32))
            target.append(np.array([*row_target, IGNORED], dtype=np.int64))
            places.append(word_places(row_words))
            owner.append(place)
    return Features(
        ids=ids,
        first=np.array([len(row) for row in ids], dtype=np.int32),
        target=target if known else None,
        example=np.array(owner, dtype=np.int64),
        spans=places,
        cut=len(cut),
        first_cut=cut[0] if cut else -1,
    )


def word_places(words: list[int]) -> npt.NDArray[np.int32]:
    """(word, word + 1) for each token but the last, which is [SEP]."""
    start = np.array([*words, -1], dtype=np.int32)
    return np.stack([start, np.where(start < 0, -1, start + 1)], axis=1).astype(np.int32)


def word_pieces(
    examples: Sequence[Tagged], tokenizer: Tokenizer, vocab: Vocabulary, room: int
) -> tuple[dict[str, list[int]], set[str]]:
    """The tokens of every word, each tokenised alone and once, and the words that had to be cut."""
    distinct = list(dict.fromkeys(word for each in examples for word in each.words))
    with special_tokens_as_text(tokenizer):
        encoded = tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
    # A word of which the tokenizer leaves nothing, as a soft hyphen, still needs its place.
    nothing = [vocab.mask if vocab.unk is None else vocab.unk]
    pieces: dict[str, list[int]] = {}
    cut = set()
    for word, encoding in zip(distinct, encoded, strict=True):
        ids = encoding.ids or nothing
        if len(ids) > room:
            cut.add(word)
        pieces[word] = ids[:room]
    return pieces, cut


def rows_of(sizes: Sequence[int], room: int) -> Rows:
    """Cut a sentence at word boundaries into rows that hold `room` tokens."""
    judged = 0
    while True:
        # No more context than leaves room for the next word, so that every row brings one.
        spare = min(room // CONTEXT, room - sizes[judged]) if judged else 0
        first, held = judged, 0
        while first and held + sizes[first - 1] <= spare:
            first -= 1
            held += sizes[first]
        end = judged
        while end < len(sizes) and held + sizes[end] <= room:
            held += sizes[end]
            end += 1
        yield first, judged, end
        judged = end
        if end == len(sizes):
            return


def decode_tags(
    features: Features,
    examples: Sequence[Tagged],
    predictions: Sequence[npt.NDArray[np.integer]],
    labels: Sequence[str],
) -> list[list[str]]:
    """A tag for every word, from the number of a label for every token of every row.

    The rows of predictions may be longer than those of the features, as padding makes them.
    """
    decoded = [[""] * len(each.words) for each in examples]
    for row, (owner, places) in enumerate(zip(features.example, features.spans, strict=True)):
        (tokens,) = np.nonzero(places[:, 0] >= 0)
        chosen = predictions[row][tokens].tolist()
        for word, label in zip(places[tokens, 0].tolist(), chosen, strict=True):
            decoded[owner][word] = labels[label]
    return decoded


def score_tags(
    task: Task, examples: Sequence[Tagged], predicted: Sequence[Sequence[str]]
) -> dict[str, float]:
    """The part of the words with the right tag; for tags of spans also span F1."""
    gold = [each.tags for each in examples if each.tags is not None]
    if len(gold) < len(examples):
        raise UserError(f"The tags of the task '{task.name}' are hidden here: nothing to score.")
    pairs = [
        (tag, guess)
        for tags, guesses in zip(gold, predicted, strict=True)
        for tag, guess in zip(tags, guesses, strict=True)
    ]
    right = sum(tag == guess for tag, guess in pairs)
    scores = {"accuracy": right / len(pairs) if pairs else 0.0}
    return scores | score_spans(gold, predicted) if task.metric == "f1" else scores
