"""From examples to rows, from outputs to answers, and from answers to scores, kind by kind."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.finetune.infer import Arrays
from electra.hub.heads import TaskCard
from electra.tasks.examples import Example, Features, Kind, Task
from electra.tasks.metrics import is_constant, score_sentences
from electra.tasks.question_answering import SpanScores, decode_answers, encode_questions
from electra.tasks.squad_metrics import THRESHOLD, score_answers
from electra.tasks.text_classification import encode_choices, encode_sentences
from electra.tasks.token_classification import decode_tags, encode_words, score_tags
from electra.text.tokenizer import Vocabulary

Record = dict[str, Any]
"""The answer to one example, as it is written to a file."""

NULL_THRESHOLD = {"paper": THRESHOLD, "transformers": 0.0}
"""Above which logit there is no answer, before one is found on dev: the original's, and the even
odds of start and end at [CLS]."""


def encode(
    card: TaskCard,
    examples: Sequence[Any],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    *,
    training: bool = False,
    swap: bool = False,
) -> Features:
    """Rows of tokens; `swap` has pairs both ways round."""
    if card.kind == "tag":
        return encode_words(examples, tokenizer, vocab, card.length, card.labels)
    if card.kind == "choice":
        return encode_choices(examples, tokenizer, vocab, card.length)
    if card.kind == "qa":
        return encode_questions(
            examples,
            tokenizer,
            vocab,
            card.length,
            doc_stride=card.stride,
            max_question_length=card.longest_question,
            training=training,
        )
    kind: Any = card.kind
    return encode_sentences(examples, tokenizer, vocab, card.length, kind=kind, swap=swap)


def answers(
    card: TaskCard, features: Features, examples: Sequence[Example], found: Arrays
) -> list[Record]:
    """One record per example, from the outputs of all rows."""
    ids = [example.id for example in examples]
    if card.kind == "tag":
        tags = [row[: len(ids)] for row, ids in zip(found["tags"], features.input_ids, strict=True)]
        read = decode_tags(features, cast(Any, examples), tags, card.labels)
        return [{"id": i, "tags": list(tags)} for i, tags in zip(ids, read, strict=True)]
    if card.kind == "qa":
        spans = decode_answers(
            features,
            cast(Any, examples),
            SpanScores(**found),
            max_answer_length=card.longest_answer,
            n_best=card.beam,
        )
        return [
            {
                "id": p.id,
                "answer": p.text,
                "null": p.null,
                "n_best": [
                    {"text": text, "score": score, "probability": chance}
                    for text, score, chance in p.n_best
                ],
            }
            for p in spans
        ]
    scores = found["scores"].astype(np.float64)
    if card.kind == "regress":
        return [{"id": i, "value": float(v)} for i, v in zip(ids, scores[:, 0], strict=True)]
    if card.kind == "choice":
        chances = softmax(scores.reshape(-1, features.rows_per_example))
        names = [str(i) for i in range(features.rows_per_example)]
    else:
        chances, names = softmax(scores), card.labels
    return [
        {
            "id": i,
            "label": names[int(row.argmax())],
            "probabilities": dict(zip(names, (float(c) for c in row), strict=True)),
        }
        for i, row in zip(ids, chances, strict=True)
    ]


def score(
    task: Task, card: TaskCard, examples: Sequence[Any], records: Sequence[Record]
) -> dict[str, float]:
    """The metrics of some answers."""
    if task.kind == "tag":
        return score_tags(task, examples, [record["tags"] for record in records])
    if task.kind == "qa":
        texts = {record["id"]: record["answer"] for record in records}
        if not card.maybe_none:
            return score_answers(examples, texts)
        null = {record["id"]: record["null"] for record in records}
        return score_answers(examples, texts, null, threshold=NULL_THRESHOLD[card.head])
    return score_sentences(task, examples, plain_answers(task, records))


def failed(task: Task, records: Sequence[Record], metrics: dict[str, float]) -> bool:
    """Whether a seed learned nothing: one and the same answer to everything, or none that fits."""
    if task.kind == "tag":
        said = {tag for record in records for tag in record["tags"]}
        return len(said) < 2 or not metrics[task.metric] > 0
    if task.kind == "qa":  # where some have no answer, never to answer is a score, too
        dev = task.splits["dev"]
        nothing = sum(example.impossible for example in dev) / len(dev)
        return not metrics.get("best_f1", metrics["f1"]) > nothing
    return is_constant(task, plain_answers(task, records))


def plain_answers(task: Task, records: Sequence[Record]) -> npt.NDArray[Any]:
    """Numbers of labels or options, or values."""
    if task.kind == "regress":
        return np.array([record["value"] for record in records])
    if task.kind == "choice":
        return np.array([int(record["label"]) for record in records])
    number = {label: i for i, label in enumerate(task.labels)}
    return np.array([number[record["label"]] for record in records])


def may_be_none(task: Task) -> bool:
    """Whether some questions have no answer."""
    return task.kind == "qa" and any(e.impossible for e in task.splits["train"])


def labelled(kind: Kind, examples: Sequence[Any]) -> bool:
    """Whether a split can be scored."""
    if kind == "tag":
        return all(example.tags is not None for example in examples)
    if kind == "qa":
        return all(example.answers or example.impossible for example in examples)
    return all(example.label is not None for example in examples)


def softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Probabilities of each row."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))
