"""Task kinds: losses and outputs against slow references that loop over single rows."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from electra.finetune.infer import infer
from electra.finetune.kinds import KINDS, TaskKind, make_kind
from electra.finetune.kinds.classify import Classify
from electra.finetune.predict import predict
from electra.finetune.rows import RowBatch, rows_to_device
from electra.finetune.run import finetune, resolve_settings
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import TaskCard
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import (
    ClassificationHead,
    SpanHead,
    TaskModel,
    TokenClassificationHead,
    TransformersClassificationHead,
    TransformersSpanHead,
)
from electra.tasks.examples import IGNORE_INDEX, Features, Task
from electra.tasks.load import load_task

CPU = torch.device("cpu")
SIZES = EncoderConfig(
    layers=2, hidden=32, heads=2, embedding=16, max_positions=32, vocab_size=40, init_std=0.2
)
LENGTHS = (7, 12, 9, 12, 5, 10)
FIRST = (3, 5, 4, 2, 2, 6)


def make(name: str, head: str = "paper", outputs: int = 3, **card) -> TaskKind:
    """A kind with `outputs` labels; for questions, 0 means that all have an answer."""
    labels = [str(i) for i in range(outputs)]
    return make_kind(
        TaskCard(
            name="made", kind=name, labels=labels, head=head, has_unanswerable=outputs > 0, **card
        )
    )


def loss(model: TaskModel, batch: RowBatch, kind: str, weight: float = 0.5) -> Tensor:
    hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
    config = FinetuneConfig(answerability_weight=weight)
    return make(kind).loss(model.head, hidden, batch, config)


def outputs(model: TaskModel, batch: RowBatch, kind: str, beam: int = 1) -> dict[str, Tensor]:
    hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
    return make(kind, beam_size=beam).outputs(model.head, hidden, batch)


def task_model(kind: str, head: str = "paper", outputs: int = 3) -> TaskModel:
    torch.manual_seed(0)
    encoder = Encoder(SIZES)
    model = TaskModel(encoder, make(kind, head, outputs).build_head(encoder)).eval()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p)  # biases must matter too
    return model


def features(target, rows_per_example: int = 1) -> Features:
    rng = np.random.default_rng(0)
    return Features(
        input_ids=[rng.integers(5, 40, n).astype(np.int32) for n in LENGTHS],
        segment_start=np.array(FIRST, np.int32),
        labels=target,
        example_index=np.repeat(np.arange(len(LENGTHS) // rows_per_example), rows_per_example),
        rows_per_example=rows_per_example,
    )


def batch_of(rows: Features) -> RowBatch:
    """All rows at once, padded far beyond the longest."""
    return rows_to_device(rows, 0, 16, CPU).gather(torch.arange(len(rows.input_ids)), 16)


def alone(model: TaskModel, rows: Features, row: int) -> Tensor:
    """The vectors of one row, computed on its own and without padding."""
    ids = torch.from_numpy(rows.input_ids[row]).long()[None]
    segments = (torch.arange(ids.shape[1]) >= int(rows.segment_start[row])).long()[None]
    return model.encoder(ids, segments)[0]


def log_softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    total = math.log(sum(math.exp(s - top) for s in scores)) + top
    return [s - total for s in scores]


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_classify_loss(head):
    model, rows = task_model("classify", head), features(np.array([0, 2, 1, 1, 0, 2]))
    total = 0.0
    for row, label in enumerate(rows.labels):
        hidden = alone(model, rows, row)
        scores = model.head(hidden[None], torch.ones(1, len(hidden), dtype=torch.bool))[0]
        total -= log_softmax(scores.tolist())[label]
    assert loss(model, batch_of(rows), "classify").item() == pytest.approx(total, rel=1e-4)


@torch.no_grad()
def test_regress_loss():
    values = np.array([0.0, 1.0, 0.5, -0.5, 0.25, 2.0], np.float32)
    model, rows = task_model("regress"), features(values)
    weight, bias = model.head.output.weight[0], model.head.output.bias[0]
    found = [(alone(model, rows, row)[0] @ weight + bias).item() for row in range(6)]
    total = sum((f - float(v)) ** 2 for f, v in zip(found, values, strict=True))
    assert loss(model, batch_of(rows), "regress").item() == pytest.approx(total, rel=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_choice_loss(head):
    model, rows = task_model("choice", head), features(np.array([2, 0]), rows_per_example=3)
    total = 0.0
    for example, right in enumerate(rows.labels):
        scores = []
        for option in range(3):
            hidden = alone(model, rows, 3 * example + option)
            attention_mask = torch.ones(1, len(hidden), dtype=torch.bool)
            scores.append(model.head(hidden[None], attention_mask).item())
        total -= log_softmax(scores)[right]
    found = loss(model, batch_of(rows), "choice")
    assert found.item() == pytest.approx(total, rel=1e-4)


@torch.no_grad()
def test_tag_loss_ignores_tokens_without_a_tag():
    rng = np.random.default_rng(1)
    target = [rng.integers(0, 3, n).astype(np.int64) for n in LENGTHS]
    for tags in target:
        tags[[0, 2, -1]] = IGNORE_INDEX
    model, rows = task_model("tag"), features(target)
    total = 0.0
    for row, tags in enumerate(target):
        for vector, tag in zip(alone(model, rows, row), tags.tolist(), strict=True):
            if tag != IGNORE_INDEX:
                total -= log_softmax(model.head.output(vector).tolist())[tag]
    assert loss(model, batch_of(rows), "tag").item() == pytest.approx(total, rel=1e-4)


# Rows 0 and 4 have no answer; row 4's context is [CLS] a [SEP] with two tokens, one of them [SEP].
SPANS = np.array([(0, 0, 1), (6, 8, 0), (4, 4, 0), (2, 10, 0), (0, 0, 1), (7, 8, 0)])


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
def test_span_loss(has_unanswerable):
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
def test_span_loss_of_the_transformers_head():
    model, rows = task_model("qa", "transformers"), features(SPANS)
    total = 0.0
    for row, (start, end, _) in enumerate(SPANS.tolist()):
        logits = model.head.output(alone(model, rows, row))
        for which, place in ((0, start), (1, end)):
            total -= logs({t: logits[t, which].item() for t in places(row)})[place] / 2
    found = loss(model, batch_of(rows), "qa", 0.5)  # its weight has nothing to weigh
    assert found.item() == pytest.approx(total, rel=1e-4)


def every_span(model: TaskModel, rows: Features, row: int) -> dict[tuple[int, int], float]:
    """Log probability of each start with each end, by brute force."""
    hidden, found = alone(model, rows, row), {}
    if isinstance(model.head, SpanHead):
        for start, first in logs(start_logits(model.head, hidden, row)).items():
            for end, last in logs(end_logits(model.head, hidden, row, start)).items():
                found[start, end] = first + last
        return found
    logits = model.head.output(hidden)
    starts, ends = (logs({t: logits[t, i].item() for t in places(row)}) for i in (0, 1))
    return {(s, e): starts[s] + ends[e] for s in starts for e in ends}


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_a_wide_beam_finds_every_span(head):
    model, rows = task_model("qa", head), features(None)
    found = outputs(model, batch_of(rows), "qa", beam=50)  # wider than the row: no error
    assert found["starts"].shape == (6, 16)
    assert found["ends"].shape == found["end_scores"].shape == (6, 16, 16)
    for row in range(6):
        wanted, seen = every_span(model, rows, row), {}
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
def test_a_narrow_beam_has_the_best_starts_and_ends(head):
    model, rows = task_model("qa", head), features(None)
    found = outputs(model, batch_of(rows), "qa", beam=2)
    for row in range(6):
        spans = every_span(model, rows, row)
        chance = {s: sum(math.exp(v) for (b, _), v in spans.items() if b == s) for s, _ in spans}
        starts = sorted(chance, key=lambda s: -chance[s])[:2]
        assert found["starts"][row].tolist() == starts
        for place, start in enumerate(starts):
            ends = sorted((e for s, e in spans if s == start), key=lambda e: -spans[start, e])[:2]
            assert found["ends"][row, place].tolist() == ends


@torch.no_grad()
def test_null_logit():
    model, rows = task_model("qa"), features(None)
    found = outputs(model, batch_of(rows), "qa", beam=1)["null"].tolist()
    wanted = [null_logit(model.head, alone(model, rows, row), row) for row in range(6)]
    assert found == pytest.approx(wanted, abs=1e-4)
    sure = task_model("qa", outputs=0)  # every question has its answer
    assert outputs(sure, batch_of(rows), "qa")["null"].tolist() == [0.0] * 6
    normalize_name = task_model("qa", "transformers")
    found = outputs(normalize_name, batch_of(rows), "qa")["null"].tolist()
    for row in range(6):
        logits = normalize_name.head.output(alone(normalize_name, rows, row))
        best = [max(logits[t, i].item() for t in places(row)[1:]) for i in (0, 1)]
        assert found[row] == pytest.approx(logits[0].sum().item() - sum(best), abs=1e-4)


def test_answer_mask():
    rows = features(None)
    allowed = batch_of(rows).answer_mask
    for row in range(6):
        assert allowed[row].nonzero()[:, 0].tolist() == places(row)


def test_gather_rows():
    each = rows_to_device(features(np.array([2, 0]), rows_per_example=3), 0, 16, CPU)
    assert each.target.tolist() == [2, 2, 2, 0, 0, 0]  # the options share the target
    tags = [np.arange(n, dtype=np.int64) for n in LENGTHS]
    rows = features(tags)
    batch = rows_to_device(rows, 9, 32, CPU).gather(torch.tensor([4, 1, 4]), 16)
    assert batch.ids.shape == batch.target.shape == (3, 16)
    assert batch.ids[0].tolist() == [*rows.input_ids[4].tolist(), *[9] * 11]
    assert batch.ids[1].tolist() == [*rows.input_ids[1].tolist(), *[9] * 4]
    assert torch.equal(batch.ids[0], batch.ids[2])
    assert batch.target[0].tolist() == [*range(5), *[IGNORE_INDEX] * 11]
    assert batch.attention_mask.sum(1).tolist() == [5, 12, 5]
    assert (batch.segments == 0).sum(1).tolist() == [2, 5, 2]
    spans = rows_to_device(features(SPANS), 0, 16, CPU).gather(torch.tensor([3]), 16)
    assert spans.target.tolist() == [[2, 10, 0]]
    assert rows_to_device(features(None), 0, 16, CPU).gather(torch.tensor([3]), 16).target is None


@pytest.mark.parametrize(
    ("kind", "head"), [("classify", "paper"), ("tag", "paper"), ("qa", "paper"), ("qa", "plain")]
)
def test_outputs_do_not_depend_on_the_batches(kind, head):
    """All rows at once, and one by one in rows of several padded lengths."""
    rng = np.random.default_rng(2)
    sizes = [8, 31, 12, 18, 30, 9]  # all have more places than the beam takes
    rows = Features(
        input_ids=[rng.integers(5, 40, n).astype(np.int32) for n in sizes],
        segment_start=np.array([3] * 6, np.int32),
        labels=None,
        example_index=np.arange(6),
    )
    model = task_model(kind, "paper" if head == "paper" else "transformers")
    given = {"pad_id": 0, "device": CPU, "dtype": torch.float32}
    (many,) = infer(model, rows, make(kind, beam_size=3), tokens=10_000, **given)
    (single,) = infer(model, rows, make(kind, beam_size=3), tokens=1, **given)
    for name, values in many.items():
        for row, size in enumerate(sizes):
            ours, theirs = values[row], single[name][row]
            if name == "tags":
                ours, theirs = ours[:size], theirs[:size]
            np.testing.assert_allclose(ours, theirs, atol=1e-4, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "head", "wanted", "drops"),
    [
        ("classify", "paper", ClassificationHead, {0.3}),
        ("classify", "transformers", TransformersClassificationHead, {0.3}),
        ("regress", "paper", ClassificationHead, {0.3}),
        ("regress", "transformers", TransformersClassificationHead, {0.3}),
        ("choice", "paper", ClassificationHead, {0.3}),
        # transformers drops the input of its classifier, but not that of its multiple choice
        ("choice", "transformers", TransformersClassificationHead, {0.0, 0.3}),
        ("tag", "paper", TokenClassificationHead, {0.0}),  # as in google-research/electra
        ("tag", "transformers", TokenClassificationHead, {0.3}),
        ("qa", "paper", SpanHead, set()),
        ("qa", "transformers", TransformersSpanHead, set()),
    ],
)
def test_each_kind_builds_its_head(kind, head, wanted, drops):
    encoder = Encoder(SIZES)
    built = make(kind, head, 5, dropout=0.3).build_head(encoder)
    assert type(built) is wanted
    attention_mask = torch.ones(3, 6, dtype=torch.bool)
    shape = {"classify": (3, 5), "tag": (3, 6, 5), "qa": (3, 6)}.get(kind, (3, 1))
    if wanted is TransformersSpanHead:
        shape = (3, 6, 2)
    assert built(torch.randn(3, 6, SIZES.hidden), attention_mask).shape == shape
    assert {m.p for m in built.modules() if isinstance(m, nn.Dropout)} == drops


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_that_are_not_numbers_mean_divergence(kind):
    model = task_model(kind)
    rows = features(None, rows_per_example=3 if kind == "choice" else 1)
    found = {name: t.detach().numpy() for name, t in outputs(model, batch_of(rows), kind).items()}
    assert not make(kind).diverged(found)
    for name, values in found.items():
        if values.dtype.kind == "f":
            broken = values.copy()
            broken.flat[0] = np.nan
            assert make(kind).diverged(found | {name: broken})
    if kind in ("classify", "regress", "choice"):
        assert make(kind).diverged({"scores": np.array([[0.0, np.inf]])})


class Count(Classify):
    """A made-up kind: its head has layers inside layers and a parameter of its own name."""

    def build_head(self, encoder):
        head = super().build_head(encoder)
        head.dropout = nn.Sequential(nn.Dropout(0.1), nn.Linear(32, 32), nn.GELU())
        return head


def test_a_new_kind_needs_one_class_and_one_entry(
    model_folder, reviews, quick, tmp_path, console, monkeypatch
):
    """Fine-tuning, the stored model and `predict` know kinds through `KINDS` alone."""
    monkeypatch.setitem(KINDS, "count", Count)
    task = replace(load_task("classify", reviews), kind="count", metric="accuracy")
    out, config = tmp_path / "out", replace(quick, epochs=2)
    (result,) = finetune(str(model_folder), task, out, [0], config, console)
    weights = load_file(out / "model" / "model.safetensors")
    assert weights["head.dropout.1.weight"].shape == (32, 32)
    text = (out / "predictions" / "seed-0" / "dev.jsonl").read_text()
    wanted = [json.loads(line)["probabilities"] for line in text.splitlines()]
    (tmp_path / "dev.txt").write_text("".join(f"{e.text}\n" for e in task.splits["dev"]))
    found = list(predict(str(out), tmp_path / "dev.txt", device="cpu"))
    for one, two in zip(found, wanted, strict=True):
        assert one["probabilities"] == pytest.approx(two, abs=1e-5)
    assert result["settings"]["dropout"] == 0.1


def test_tags_are_learned_without_dropout_of_the_head():
    """google-research/electra has none; `transformers` has the setting's."""
    task = Task(name="pos", kind="tag", labels=("A", "B"), splits={})
    for head, dropout in (("paper", 0.0), ("transformers", 0.2)):
        config = FinetuneConfig(head=head, dropout=0.2)
        assert resolve_settings(config, SIZES, task).dropout == dropout
