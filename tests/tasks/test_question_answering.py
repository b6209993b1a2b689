"""Encoding questions as windows, and decoding answers."""

import random
from dataclasses import replace

import numpy as np
import pytest

from electra.tasks.examples import Answer, Question
from electra.tasks.question_answering import (
    SpanScores,
    best_texts,
    best_windows,
    decode_answers,
    encode_questions,
    sliding_windows,
)
from electra.text.tokenizer import load_tokenizer, load_vocabulary, train_tokenizer

WORDS = [
    "the",
    "farmer",
    "plough",
    "Barley",
    "unheardof",
    ",",
    "zzyzx",
    "Café",
    "🙂",
    "日本",
    "loom",
]
SIZES = {"wordpiece": 150, "bpe": 400, "unigram": 120}


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def tokenizer_and_vocab(request, corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("windows") / request.param
    train_tokenizer([corpus], out, vocab_size=SIZES[request.param], kind=request.param)
    return load_tokenizer(out), load_vocabulary(out)


@pytest.fixture(scope="module")
def wordpiece(tokenizer_folder):
    return load_tokenizer(tokenizer_folder), load_vocabulary(tokenizer_folder)


def random_questions(count: int, words: int, seed: int = 0, longest: int = 3) -> list[Question]:
    """Questions with answers of a few words."""
    rng = random.Random(seed)
    examples = []
    for number in range(count):
        picked = rng.choices(WORDS, k=rng.randint(longest, words))
        context = "".join(word + rng.choice((" ", "  ", "\n")) for word in picked)
        size = rng.randint(1, longest)
        at = rng.randrange(len(picked) - size + 1)
        start = 0
        for word in picked[:at]:
            start = context.index(word, start) + len(word)
        start = context.index(picked[at], start)
        end = start
        for word in picked[at : at + size]:
            end = context.index(word, end) + len(word)
        answer = Answer(text=context[start:end], start=start)
        examples.append(
            Question(
                id=str(number),
                question=" ".join(rng.choices(WORDS, k=3)),
                context=context,
                answers=(answer,),
            )
        )
    return examples


def perfect(features) -> SpanScores:
    """The outputs of a model that predicts every label correctly."""
    rows = len(features.input_ids)
    return SpanScores(
        starts=features.labels[:, :1].astype(np.int16),
        start_scores=np.zeros((rows, 1), np.float32),
        ends=features.labels[:, 1:2, None].astype(np.int16),
        end_scores=np.zeros((rows, 1, 1), np.float32),
        null=np.zeros(rows, np.float32),
    )


@pytest.mark.parametrize(("length", "words"), [(512, 3), (128, 1)])
def test_encode_then_decode_recovers_the_answers(tokenizer_and_vocab, length, words):
    """With every tokenizer, accents and emoji, one window or several."""
    examples = random_questions(120, 120, longest=words)
    features = encode_questions(examples, *tokenizer_and_vocab, length, training=False)
    assert max(len(row) for row in features.input_ids) <= length
    for prediction, example in zip(
        decode_answers(features, examples, perfect(features)), examples, strict=True
    ):
        assert prediction.id == example.id
        assert prediction.text == example.answers[0].text


def test_special_token_names_in_a_text_are_text(wordpiece):
    tokenizer, vocab = wordpiece
    texts = {"question": "what is [SEP]", "context": "the [MASK] was old [SEP] barley"}
    example = Question(id="a", answers=(Answer(text="barley", start=25),), **texts)
    features = encode_questions([example], tokenizer, vocab, 64, training=False)
    (row,) = features.input_ids
    assert row.tolist().count(vocab.sep) == 2
    assert vocab.mask not in row
    (prediction,) = decode_answers(features, [example], perfect(features))
    assert prediction.text == "barley"


def test_one_window(wordpiece):
    tokenizer, vocab = wordpiece
    example = Question(
        id="a",
        question="the farmer",
        context="the barley was old",
        answers=(Answer(text="barley was", start=4),),
    )
    features = encode_questions([example], tokenizer, vocab, 64, training=False)
    question = tokenizer.encode(example.question, add_special_tokens=False).ids
    context = tokenizer.encode(example.context, add_special_tokens=False)
    (row,) = features.input_ids
    assert row.tolist() == [vocab.cls, *question, vocab.sep, *context.ids, vocab.sep]
    head = len(question) + 2
    assert features.segment_start.tolist() == [head]
    first = next(i for i, (start, _) in enumerate(context.offsets) if start == 4)
    last = next(i for i, (_, end) in enumerate(context.offsets) if end == 14)
    assert features.labels.tolist() == [[head + first, head + last, 0]]
    assert features.offsets[0][:head].max() == -1
    assert features.offsets[0][-1].tolist() == [-1, -1]
    assert features.offsets[0][head:-1].tolist() == [list(position) for position in context.offsets]


def test_windows_cover_the_context_and_answers_start_in_the_best_one(wordpiece):
    tokenizer, vocab = wordpiece
    examples = random_questions(30, 200)
    features = encode_questions(examples, tokenizer, vocab, 60, doc_stride=16, training=False)
    assert len(features.input_ids) > 60
    assert (np.diff(features.example_index) >= 0).all()
    for number, example in enumerate(examples):
        context = tokenizer.encode(example.context, add_special_tokens=False)
        rows = np.flatnonzero(features.example_index == number)
        starts, joined = [], []
        for row in rows:
            offsets, head = features.offsets[row], features.segment_start[row]
            assert (offsets[head:-1, 1] >= 0).all()  # ends stay
            starts += offsets[offsets[:, 0] >= 0].tolist()
            joined += features.input_ids[row][head:-1].tolist()
        # every token can start an answer in exactly one window
        assert sorted(starts) == sorted(list(position) for position in context.offsets)
        assert set(joined) == set(context.ids)


def slow_best(total, windows):
    """A direct implementation of BERT's rule."""
    chosen = []
    for position in range(total):
        best, which = -1.0, -1
        for number, (start, size) in enumerate(windows):
            if start <= position < start + size:
                score = min(position - start, start + size - 1 - position) + 0.01 * size
                if score > best:
                    best, which = score, number
        chosen.append(which)
    return chosen


@pytest.mark.parametrize(
    ("total", "size", "stride"), [(300, 100, 32), (101, 100, 32), (530, 400, 128), (90, 20, 1)]
)
def test_best_windows_match_bert(total, size, stride):
    windows = list(sliding_windows(total, size, stride))
    assert best_windows(total, windows).tolist() == slow_best(total, windows)


def test_sliding_windows():
    assert list(sliding_windows(600, 400, 128)) == [(0, 400), (128, 400), (256, 344)]
    assert list(sliding_windows(400, 400, 128)) == [(0, 400)]
    assert list(sliding_windows(0, 400, 128)) == [(0, 0)]
    # windows shorter than the stride still overlap by half
    assert list(sliding_windows(100, 50, 128)) == [(0, 50), (25, 50), (50, 50)]


def test_labels(wordpiece):
    examples = random_questions(40, 150, seed=3)
    impossible = Question(id="none", question="the", context=examples[0].context, impossible=True)
    features = encode_questions([*examples, impossible], *wordpiece, 48, training=True)
    assert len(features.offsets) == 0
    found = features.labels[:, 1] > 0
    assert set(features.example_index[found]) == set(range(40))  # every answer is in some window
    assert (~found).sum() > 40  # windows without it are kept
    last = features.example_index == 40
    assert (features.labels[last] == [0, 0, 1]).all()
    assert (features.labels[~last, 2] == 0).all()


def test_windows_are_labelled_only_with_complete_answers(wordpiece):
    """A window has the exact tokens of the answer, or (0, 0) if one is missing."""
    tokenizer, _ = wordpiece
    examples = random_questions(60, 100, seed=4)
    features = encode_questions(examples, *wordpiece, 48, doc_stride=5, training=True)
    partly = 0
    for number, example in enumerate(examples):
        encoding = tokenizer.encode(example.context, add_special_tokens=False)
        (answer,) = example.answers
        low, high = answer.start, answer.start + len(answer.text)
        tokens = [i for i, (a, b) in enumerate(encoding.offsets) if b > low and a < high]
        rows = np.flatnonzero(features.example_index == number)
        head = int(features.segment_start[rows[0]])
        windows = sliding_windows(len(encoding.ids), 48 - head - 1, 5)
        for row, (start, size) in zip(rows, windows, strict=True):
            inside = [i for i in tokens if start <= i < start + size]
            partly += 0 < len(inside) < len(tokens)
            expected = [0, 0, 0]
            if inside == tokens:
                expected = [head + tokens[0] - start, head + tokens[-1] - start, 0]
            assert features.labels[row].tolist() == expected
    assert partly > 20


def test_answer_excludes_the_following_comma(wordpiece):
    example = Question(
        id="a",
        question="the",
        context="the (barley), old",
        answers=(Answer(text="barley", start=5),),
    )
    features = encode_questions([example], *wordpiece, 48, training=False)
    (prediction,) = decode_answers(features, [example], perfect(features))
    assert prediction.text == "barley"


def test_answers_without_a_position_are_not_labels(wordpiece):
    answers = (Answer(text="The Barn", start=-1), Answer(text="barley", start=4))
    example = Question(id="a", question="the", context="the barley", answers=answers)
    features = encode_questions([example], *wordpiece, 48, training=False)
    (prediction,) = decode_answers(features, [example], perfect(features))
    assert prediction.text == "barley"


def test_unknown_answers_and_long_questions(wordpiece):
    example = Question(id="a", question="the " * 50, context="the barley " * 40)
    features = encode_questions([example], *wordpiece, 64, max_question_length=20, training=False)
    assert features.labels is None
    assert features.num_truncated == 1
    assert set(features.segment_start) == {22}
    after = [replace(example, question="the"), example, example]
    features = encode_questions(after, *wordpiece, 64, max_question_length=20, training=False)
    assert (features.num_truncated, features.first_truncated) == (2, 1)
    features = encode_questions([example], *wordpiece, 40, training=False)
    assert set(features.segment_start) == {20}  # half of the row is left to the context
    empty = Question(id="b", question="the", context="")
    assert len(encode_questions([empty], *wordpiece, 40, training=False).input_ids) == 1


def test_an_answer_may_end_beyond_the_best_part_of_its_window(wordpiece):
    """The start has most context in one window, the end in the next."""
    context = " ".join(["the"] * 100)
    example = Question(id="a", question="the", context=context)
    features = encode_questions([example], *wordpiece, 54, doc_stride=25, training=False)
    offsets = features.offsets[0]
    edge = int(np.flatnonzero(offsets[:, 0] >= 0)[-1])
    assert edge + 2 < len(offsets) - 1
    scores = empty_scores(len(features.input_ids), 1)
    scores.starts[0], scores.ends[0] = edge, edge + 1
    (prediction,) = decode_answers(features, [example], scores)
    assert prediction.text == "the the"


def empty_scores(rows: int, beam: int) -> SpanScores:
    return SpanScores(
        starts=np.zeros((rows, beam), np.int64),
        start_scores=np.zeros((rows, beam)),
        ends=np.zeros((rows, beam, beam), np.int64),
        end_scores=np.zeros((rows, beam, beam)),
        null=np.zeros(rows),
    )


def slow_decode(features, examples, outputs, longest, n_best):
    """A direct implementation with loops."""
    answers = []
    for number, example in enumerate(examples):
        found = []
        for row in np.flatnonzero(features.example_index == number):
            offsets = features.offsets[row]
            for i, start in enumerate(outputs.starts[row]):
                for j, end in enumerate(outputs.ends[row, i]):
                    if start >= len(offsets) or end >= len(offsets) or end < start:
                        continue
                    if offsets[start, 0] < 0 or offsets[end, 1] < 0 or end - start + 1 > longest:
                        continue
                    text = example.context[offsets[start, 0] : offsets[end, 1]]
                    score = outputs.start_scores[row, i] + outputs.end_scores[row, i, j]
                    found.append((float(score), text))
        best = {}
        for score, text in sorted(found, key=lambda pair: -pair[0]):
            if text not in best and len(best) < n_best:
                best[text] = score
        answers.append(best)
    return answers


def test_decoding_matches_a_simple_implementation(wordpiece):
    rng = np.random.default_rng(0)
    examples = random_questions(60, 120, seed=5)
    features = encode_questions(examples, *wordpiece, 48, doc_stride=12, training=False)
    rows, beam = len(features.input_ids), 6
    starts = rng.integers(0, 52, (rows, beam)).astype(np.int16)
    outputs = SpanScores(
        starts=starts,
        start_scores=rng.normal(size=(rows, beam)),
        ends=(starts[:, :, None] + rng.integers(-2, 9, (rows, beam, beam)))
        .clip(0)
        .astype(np.int16),
        end_scores=rng.normal(size=(rows, beam, beam)),
        null=rng.normal(size=rows).astype(np.float32),
    )
    predictions = decode_answers(features, examples, outputs, max_answer_length=5, n_best=7)
    expected = slow_decode(features, examples, outputs, 5, 7)
    for number, (prediction, best) in enumerate(zip(predictions, expected, strict=True)):
        assert {text: score for text, score, _ in prediction.n_best} == pytest.approx(best)
        assert prediction.text == next(iter(best), "")
        assert prediction.null == pytest.approx(
            outputs.null[features.example_index == number].min()
        )
        if best:
            chances = np.exp(list(best.values()))
            assert [p for *_, p in prediction.n_best] == pytest.approx(chances / chances.sum())


def test_no_valid_span_gives_an_empty_answer(wordpiece):
    example = random_questions(1, 20)[0]
    features = encode_questions([example], *wordpiece, 128, training=False)
    (prediction,) = decode_answers(features, [example], empty_scores(len(features.input_ids), 3))
    assert (prediction.text, prediction.n_best) == ("", [])
    last = len(features.input_ids[0]) - 1
    scores = empty_scores(len(features.input_ids), 1)
    for start, end in ((1, last - 1), (last, last), (last - 1, last), (last - 1, 999)):
        scores.starts[:], scores.ends[:] = start, end
        (prediction,) = decode_answers(features, [example], scores)
        assert prediction.text == "", (start, end)
    scores.starts[:] = scores.ends[:] = last - 1  # a word of the context
    assert decode_answers(features, [example], scores)[0].text
    for forbidden in (scores.start_scores, scores.end_scores):
        forbidden[:] = -np.inf
        assert decode_answers(features, [example], scores)[0].n_best == []
        forbidden[:] = 0


def test_empty_spans_are_not_answers():
    scores, offsets = np.array([3.0, 2.0, 1.0]), np.array([[2, 2], [0, 3], [4, 5]])
    found = best_texts("the farm", scores, offsets, 5)
    assert [text for text, *_ in found] == ["the", "f"]
    assert sum(chance for *_, chance in found) == pytest.approx(1)


def test_contexts_are_tokenized_once(wordpiece):
    tokenizer, vocab = wordpiece
    example = random_questions(1, 20)[0]

    class Counting:
        texts = 0
        encode_special_tokens = False

        def encode_batch(self, texts, **options):
            self.texts += len(texts)
            return tokenizer.encode_batch(texts, **options)

        def encode_batch_fast(self, texts, **options):
            return tokenizer.encode_batch_fast(texts, **options)

    counting = Counting()
    features = encode_questions([example] * 50, counting, vocab, 64, training=True)
    assert counting.texts == 1
    assert len(np.unique(features.example_index)) == 50
