"""Encoding tagged sentences, and decoding tags."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.errors import UserError
from electra.tasks.examples import IGNORE_INDEX, Tagged, Task
from electra.tasks.token_classification import decode_tags, encode_words, score_tags, split_sentence
from electra.text.tokenizer import load_tokenizer, load_vocabulary

LABELS = ("O", "B-X", "E-X")


@pytest.fixture(scope="module")
def tokenizer_and_vocab(tokenizer_folder):
    return load_tokenizer(tokenizer_folder), load_vocabulary(tokenizer_folder)


def random_sentences(count: int, longest: int, seed: int = 0) -> list[Tagged]:
    rng = random.Random(seed)
    words = ["the", "farmer", "ploughed", "unheardof", "barley", ",", "loom", "zzyzx"]
    examples = []
    for number in range(count):
        size = rng.randint(1, longest)
        examples.append(
            Tagged(
                id=str(number),
                words=tuple(rng.choices(words, k=size)),
                tags=tuple(rng.choices(LABELS, k=size)),
            )
        )
    return examples


def test_special_token_names_are_words(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
    example = Tagged(id="0", words=("the", "[SEP]", "[MASK]"), tags=("O", "B-X", "E-X"))
    (row,) = encode_words([example], tokenizer, vocab, 32, LABELS).input_ids
    assert not {vocab.sep, vocab.mask} & set(row[1:-1].tolist())


def test_first_token_of_a_word_carries_its_tag(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
    example = Tagged(id="a", words=("the", "unheardof", "barn"), tags=("O", "B-X", "E-X"))
    features = encode_words([example], tokenizer, vocab, 64, LABELS)
    pieces = [tokenizer.encode(word, add_special_tokens=False).ids for word in example.words]
    assert len(pieces[1]) > 1
    (row,) = features.input_ids
    assert row.tolist() == [vocab.cls, *(i for piece in pieces for i in piece), vocab.sep]
    assert features.segment_start.tolist() == [len(row)]
    expected = [IGNORE_INDEX]
    for number, piece in enumerate(pieces):
        expected += [number] + [IGNORE_INDEX] * (len(piece) - 1)
    assert features.labels[0].tolist() == [*expected, IGNORE_INDEX]
    assert features.num_truncated == 0


@pytest.mark.parametrize("length", [8, 12, 33, 512])
def test_every_word_is_predicted_once(tokenizer_and_vocab, length):
    examples = random_sentences(40, 60)
    features = encode_words(examples, *tokenizer_and_vocab, length, LABELS)
    assert max(len(row) for row in features.input_ids) <= length
    assert (np.diff(features.example_index) >= 0).all()
    predicted = [[] for _ in examples]
    for index, labels, offsets in zip(
        features.example_index, features.labels, features.offsets, strict=True
    ):
        assert ((labels != IGNORE_INDEX) == (offsets[:, 0] >= 0)).all()
        for word, label in zip(offsets[labels >= 0, 0], labels[labels >= 0], strict=True):
            predicted[index].append((int(word), LABELS[label]))
    assert predicted == [list(enumerate(example.tags)) for example in examples]
    # perfect predictions decode to the given tags
    perfect = [np.maximum(labels, 0) for labels in features.labels]
    assert decode_tags(features, examples, perfect, LABELS) == [list(e.tags) for e in examples]


def test_rows_overlap(tokenizer_and_vocab):
    """A row repeats words of the previous row, which it does not predict again."""
    (example,) = [Tagged(id="a", words=("the",) * 40, tags=("O",) * 40)]
    features = encode_words([example], *tokenizer_and_vocab, 18, LABELS)
    begins = [int(np.flatnonzero(labels >= 0)[0]) for labels in features.labels]
    assert begins == [1, 5, 5]
    assert [int((t >= 0).sum()) for t in features.labels] == [16, 12, 12]


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), max_size=30), st.integers(9, 20))
def test_split_sentence_covers_all_words_in_order(sizes, available):
    end = 0
    for first, predicted, last in split_sentence(sizes, available):
        assert first <= predicted == end
        assert sum(sizes[first:last]) <= available
        assert last > predicted or not sizes
        end = last
    assert end == len(sizes)


def test_words_without_tokens_and_long_words(tokenizer_and_vocab):
    tokenizer, vocab = tokenizer_and_vocab
    long = "barley" + "q" * 80
    example = Tagged(id="a", words=("\u00ad", "the", "", "zq" * 40), tags=("O", "B-X", "O", "E-X"))
    features = encode_words(
        [example, Tagged(id="b", words=(long,), tags=("O",))], *tokenizer_and_vocab, 8, LABELS
    )
    assert features.input_ids[0][1] == vocab.unk
    assert max(len(row) for row in features.input_ids) <= 8
    assert sum(int((t >= 0).sum()) for t in features.labels) == 5
    whole = tokenizer.encode(long, add_special_tokens=False).ids
    assert features.input_ids[-1].tolist() == [vocab.cls, *whole[:6], vocab.sep]
    assert features.num_truncated == sum(
        any(len(tokenizer.encode(w, add_special_tokens=False).ids) > 6 for w in words)
        for words in (example.words, (long,))
    )
    assert features.num_truncated
    short = Tagged(id="c", words=("the",), tags=("O",))
    features = encode_words(
        [short, Tagged(id="b", words=(long,), tags=("O",))], *tokenizer_and_vocab, 8, LABELS
    )
    assert (features.num_truncated, features.first_truncated) == (1, 1)


def test_unknown_tags_count_but_are_not_learned(tokenizer_and_vocab):
    example = Tagged(id="a", words=("the", "barn"), tags=("O", "S-NEW"))
    features = encode_words([example], *tokenizer_and_vocab, 16, LABELS)
    assert (features.labels[0] >= 0).sum() == 1
    predicted = decode_tags(features, [example], [np.zeros(16, np.int64)], LABELS)
    assert predicted == [["O", "O"]]
    task = Task(name="t", kind="tag", splits={}, metric="f1")
    assert score_tags(task, [example], predicted) == {
        "accuracy": 0.5,
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
    }


def test_unknown_tags_are_decoded_but_not_scored(tokenizer_and_vocab):
    example = Tagged(id="a", words=("the", "unheardof", "barn") * 9)
    features = encode_words([example], *tokenizer_and_vocab, 16, LABELS)
    assert features.labels is None
    ones = np.ones((len(features.input_ids), 16), np.int16)
    assert decode_tags(features, [example], ones, LABELS) == [["B-X"] * 27]
    with pytest.raises(UserError, match="nothing to score"):
        score_tags(Task(name="t", kind="tag", splits={}), [example], [["B-X"] * 27])


def test_score_tags():
    examples = [Tagged(id="a", words=("a", "b", "c"), tags=("B-X", "E-X", "O"))]
    predicted = [["B-X", "E-X", "B-X"]]
    task = Task(name="t", kind="tag", splits={}, metric="f1")
    assert score_tags(task, examples, predicted) == pytest.approx(
        {"accuracy": 2 / 3, "precision": 0.5, "recall": 1.0, "f1": 2 / 3}
    )
    plain = Task(name="t", kind="tag", splits={}, metric="accuracy")
    assert score_tags(plain, examples, predicted) == {"accuracy": pytest.approx(2 / 3)}
