"""`qa`: losses and beam search against loops over single rows, and failed seeds."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.finetune.kinds import make_kind
from electra.hub.heads import TaskCard
from electra.models.heads import SpanHead
from electra.tasks.examples import Answer, Question, Task
from electra.tasks.question_answering import sliding_windows
from electra.text.tokenizer import load_tokenizer, load_vocabulary

# Rows 0 and 4 have no answer; row 4's context is [CLS] a [SEP] with two tokens, one of them [SEP].
SPANS = np.array([(0, 0, 1), (6, 8, 0), (4, 4, 0), (2, 10, 0), (0, 0, 1), (7, 8, 0)])


# The six rows of the fixture `features`: their lengths and the starts of their second segments.
LENGTHS = (7, 12, 9, 12, 5, 10)


FIRST = (3, 5, 4, 2, 2, 6)


def log_softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    total = math.log(sum(math.exp(s - top) for s in scores)) + top
    return [s - total for s in scores]


def places(row: int) -> list[int]:
    """By hand: [CLS], then the second segment but for its [SEP]."""
    return [0, *range(FIRST[row], LENGTHS[row] - 1)]


def start_logits(head: SpanHead, hidden: Tensor, row: int) -> dict[int, float]:
    return {t: (head.start.weight[0] @ hidden[t] + head.start.bias[0]).item() for t in places(row)}


def end_logits(head: SpanHead, hidden: Tensor, row: int, start: int) -> dict[int, float]:
    found = {}
    for t in places(row):
        inner = head.end_hidden.weight @ torch.cat([hidden[start], hidden[t]])
        x = F.gelu(inner + head.end_hidden.bias)
        found[t] = (head.end.weight[0] @ x + head.end.bias[0]).item()
    return found


def null_logit(head: SpanHead, hidden: Tensor, row: int) -> float:
    starts = start_logits(head, hidden, row)
    chances = [math.exp(c) for c in log_softmax(list(starts.values()))]
    mean = sum(c * hidden[t] for c, t in zip(chances, starts, strict=True))
    inner = head.null_hidden.weight @ torch.cat([mean, hidden[0]])
    x = F.gelu(inner + head.null_hidden.bias)
    return (head.null.weight[0] @ x + head.null.bias[0]).item()


def logs(scores: dict[int, float]) -> dict[int, float]:
    return dict(zip(scores, log_softmax(list(scores.values())), strict=True))


@torch.no_grad()
@pytest.mark.parametrize("has_unanswerable", [True, False])
def test_span_loss(has_unanswerable, loss, task_model, features, batch_of, alone):
    model, rows = task_model("qa", outputs=int(has_unanswerable)), features(SPANS)
    total = 0.0
    for row, (start, end, impossible) in enumerate(SPANS.tolist()):
        hidden = alone(model, rows, row)
        total -= logs(start_logits(model.head, hidden, row))[start] / 2
        total -= logs(end_logits(model.head, hidden, row, start))[end] / 2  # given the true start
        if has_unanswerable:
            none = 1 / (1 + math.exp(-null_logit(model.head, hidden, row)))
            total -= 0.5 * math.log(none if impossible else 1 - none)
    found = loss(model, batch_of(rows), "qa", 0.5)
    assert found.item() == pytest.approx(total, rel=1e-4)


@torch.no_grad()
def test_span_loss_of_the_transformers_head(loss, task_model, features, batch_of, alone):
    model, rows = task_model("qa", "transformers"), features(SPANS)
    total = 0.0
    for row, (start, end, _) in enumerate(SPANS.tolist()):
        logits = model.head.output(alone(model, rows, row))
        for which, place in ((0, start), (1, end)):
            total -= logs({t: logits[t, which].item() for t in places(row)})[place] / 2
    found = loss(model, batch_of(rows), "qa", 0.5)  # its weight has nothing to weigh
    assert found.item() == pytest.approx(total, rel=1e-4)


def every_span(head: nn.Module, hidden: Tensor, row: int) -> dict[tuple[int, int], float]:
    """Log probability of each start with each end, by brute force."""
    found = {}
    if isinstance(head, SpanHead):
        for start, first in logs(start_logits(head, hidden, row)).items():
            for end, last in logs(end_logits(head, hidden, row, start)).items():
                found[start, end] = first + last
        return found
    logits = head.output(hidden)
    starts, ends = (logs({t: logits[t, i].item() for t in places(row)}) for i in (0, 1))
    return {(s, e): starts[s] + ends[e] for s in starts for e in ends}


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_a_wide_beam_finds_every_span(head, outputs, task_model, features, batch_of, alone):
    model, rows = task_model("qa", head), features(None)
    found = outputs(model, batch_of(rows), "qa", beam=50)  # wider than the row: no error
    assert found["starts"].shape == (6, 16)
    assert found["ends"].shape == found["end_scores"].shape == (6, 16, 16)
    for row in range(6):
        wanted, seen = every_span(model.head, alone(model, rows, row), row), {}
        for i in range(16):
            for j in range(16):
                score = (found["start_scores"][row, i] + found["end_scores"][row, i, j]).item()
                if math.isfinite(score):
                    span = (found["starts"][row, i].item(), found["ends"][row, i, j].item())
                    assert span not in seen
                    seen[span] = score
        assert seen == pytest.approx(wanted, abs=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_a_narrow_beam_has_the_best_starts_and_ends(
    head, outputs, task_model, features, batch_of, alone
):
    model, rows = task_model("qa", head), features(None)
    found = outputs(model, batch_of(rows), "qa", beam=2)
    for row in range(6):
        spans = every_span(model.head, alone(model, rows, row), row)
        chance = {s: sum(math.exp(v) for (b, _), v in spans.items() if b == s) for s, _ in spans}
        starts = sorted(chance, key=lambda s: -chance[s])[:2]
        assert found["starts"][row].tolist() == starts
        for place, start in enumerate(starts):
            ends = sorted((e for s, e in spans if s == start), key=lambda e: -spans[start, e])[:2]
            assert found["ends"][row, place].tolist() == ends


@torch.no_grad()
def test_null_logit(outputs, task_model, features, batch_of, alone):
    model, rows = task_model("qa"), features(None)
    found = outputs(model, batch_of(rows), "qa", beam=1)["null"].tolist()
    wanted = [null_logit(model.head, alone(model, rows, row), row) for row in range(6)]
    assert found == pytest.approx(wanted, abs=1e-4)
    sure = task_model("qa", outputs=0)  # every question has its answer
    assert outputs(sure, batch_of(rows), "qa")["null"].tolist() == [0.0] * 6
    transformers = task_model("qa", "transformers")
    found = outputs(transformers, batch_of(rows), "qa")["null"].tolist()
    for row in range(6):
        logits = transformers.head.output(alone(transformers, rows, row))
        best = [max(logits[t, i].item() for t in places(row)[1:]) for i in (0, 1)]
        assert found[row] == pytest.approx(logits[0].sum().item() - sum(best), abs=1e-4)


def qa(impossible: bool, number: int) -> Question:
    answers = () if impossible else (Answer(text="bread", start=0),)
    return Question(
        id=str(number),
        question="what",
        context="bread and cargo",
        answers=answers,
        impossible=impossible,
    )


def test_never_answering_is_a_failure():
    """Half of the questions have no answer, so an empty prediction is right half of the time."""
    questions = [qa(number % 2 == 0, number) for number in range(6)]
    task = Task(name="squad2", kind="qa", metric="f1", splits={"dev": questions})
    card = TaskCard(name="squad2", kind="qa", has_unanswerable=True)
    records = [{"id": q.id, "answer": "cargo", "null": 9.0} for q in questions]
    metrics = make_kind(card).score(task, questions, records)
    assert metrics["f1"] == 0.5
    assert make_kind(card).failed(task, records, metrics)


def test_a_bad_threshold_alone_is_no_failure():
    questions = [qa(number % 2 == 0, number) for number in range(6)]
    task = Task(name="squad2", kind="qa", metric="f1", splits={"dev": questions})
    card = TaskCard(name="squad2", kind="qa", has_unanswerable=True)
    records = [
        {"id": q.id, "answer": q.answers[0].text if q.answers else "x", "null": 8.0 + q.impossible}
        for q in questions
    ]
    metrics = make_kind(card).score(task, questions, records)
    assert (metrics["f1"], metrics["best_f1"]) == (0.5, 1.0)
    assert not make_kind(card).failed(task, records, metrics)


def test_splits_may_share_question_ids():
    """In your own tables the id is a line number."""
    dev = [qa(number % 2 == 0, number) for number in range(6)]
    hidden = [replace(qa(False, number), answers=()) for number in range(6)]
    task = Task(name="qa", kind="qa", metric="f1", splits={"dev": dev, "test": hidden})
    card = TaskCard(name="qa", kind="qa", has_unanswerable=True)
    records = [{"id": q.id, "answer": "cargo", "null": 9.0} for q in dev]
    assert make_kind(card).failed(task, records, make_kind(card).score(task, dev, records))


def test_card_limits_questions_and_answers(tokenizer_folder):
    kit = load_tokenizer(tokenizer_folder), load_vocabulary(tokenizer_folder)
    question = replace(qa(False, 0), question="old old old", context="the " * 20)
    sizes = {"max_length": 16, "max_question_length": 2, "max_answer_length": 3, "doc_stride": 2}
    card = TaskCard(name="qa", kind="qa", **sizes)
    features = make_kind(card).featurize([question], *kit)
    assert set(features.segment_start) == {4}  # [CLS] old old [SEP]
    assert len(features.input_ids) == len(list(sliding_windows(20, 16 - 4 - 1, 2)))
    rows = len(features.input_ids)
    for extra, text in ((2, "the the the"), (3, "")):
        found = {"starts": np.full((rows, 1), 4), "ends": np.full((rows, 1, 1), 4 + extra)}
        found |= {"start_scores": np.zeros((rows, 1)), "end_scores": np.zeros((rows, 1, 1))}
        (record,) = make_kind(card).decode(features, [question], found | {"null": np.zeros(rows)})
        assert record["answer"] == text


def test_is_labelled():
    kind = make_kind(TaskCard(name="x", kind="qa"))
    assert kind.is_labelled(qa(True, 0))
    assert kind.is_labelled(qa(False, 1))
    assert not kind.is_labelled(replace(qa(False, 0), answers=()))
