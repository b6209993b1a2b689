"""What int8 costs and brings: predictions and speed of two graphs on the user's data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra.errors import UserError
from electra.export.folders import Source
from electra.export.onnx import OnnxNetwork
from electra.finetune.kinds import make_kind
from electra.finetune.kinds.base import Record
from electra.finetune.predict import load_predictor
from electra.hub.folders import load_encoder
from electra.hub.heads import read_card
from electra.hub.inference import Loaded, encode, load_network
from electra.models.heads import TaskModel
from electra.tasks.examples import Task
from electra.tasks.predict_inputs import plain_lines
from electra.tasks.table import read_text

CPU = torch.device("cpu")
TIMED_TEXTS, ROUNDS = 200, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """fp32 and int8 side by side."""

    examples: int
    metric: str
    """The main metric of the task; empty without labels."""
    scores: list[float]
    """The metric of fp32 and of int8; empty without labels."""
    speeds: list[float]
    """Texts per second of fp32 and of int8 in onnxruntime, without tokenization."""
    agreement: str
    """How far the predictions, or the embeddings of an encoder, agree, as a sentence."""


class Passed(nn.Module):
    """A head that returns its input: the graph contains the real one."""

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return hidden


def read_data(source: Source, data: Path) -> list[Any]:
    """Read the examples of the task, or for a pre-trained model one text per line."""
    if source.is_task:
        return make_kind(read_card(source.folder)).read(data, labelled=True)
    texts = [line for _, line in plain_lines(read_text(data))]
    if not texts:
        raise UserError(f"{data} has no text: give a file with one text per line.")
    return texts


def compare(source: Source, fp32: Path, int8: Path, examples: Sequence[Any]) -> Comparison:
    """Run both graphs on the same examples, which `read_data` has read."""
    run = compare_tasks if source.is_task else compare_encoders
    return run(source, fp32, int8, examples)


def compare_tasks(source: Source, fp32: Path, int8: Path, examples: Sequence[Any]) -> Comparison:
    """Predict with both graphs, and score the predictions if the examples are labelled."""
    predictor = load_predictor(source.folder, CPU, torch.float32)
    kind, card = predictor.kind, predictor.card
    labelled = all(kind.is_labelled(example) for example in examples)
    task = Task(
        name=card.name,
        kind=card.kind,  # type: ignore[arg-type]
        splits={},
        labels=tuple(card.labels),
        metric=card.metric,
    )

    networks = [OnnxNetwork(path, "logits") for path in (fp32, int8)]

    def predict(network: OnnxNetwork, some: Sequence[Any]) -> list[Record]:
        # The graph contains the head.
        inside = TaskModel(network, Passed())  # type: ignore[arg-type]
        return list(replace(predictor, network=inside).predict(some))

    records = [predict(network, examples) for network in networks]
    return Comparison(
        examples=len(examples),
        metric=card.metric if labelled else "",
        scores=[kind.score(task, examples, found)[card.metric] for found in records]
        if labelled
        else [],
        speeds=measure_speeds(networks, predict, examples),
        agreement=describe_agreement(*records),
    )


def describe_agreement(ours: Sequence[Record], theirs: Sequence[Record]) -> str:
    """Say how far the predictions of two graphs agree."""
    both = list(zip(ours, theirs, strict=True))
    if "value" in ours[0]:
        mean = sum(abs(a["value"] - b["value"]) for a, b in both) / len(both)
        return f"The values of int8 and fp32 differ by {mean:.3g} on average."
    answer = "tags" if "tags" in ours[0] else "label"
    same = sum(a[answer] == b[answer] for a, b in both) / len(both)
    return f"int8 and fp32 give the same {answer} for {same:.1%} of the examples."


def compare_encoders(source: Source, fp32: Path, int8: Path, texts: Sequence[str]) -> Comparison:
    """Embed texts with both graphs."""
    loaded: Loaded[Any] = load_network(load_encoder, source.folder, CPU)
    networks = [OnnxNetwork(path, "last_hidden_state") for path in (fp32, int8)]

    def embed(network: OnnxNetwork, some: Sequence[str]) -> Tensor:
        states = encode(replace(loaded, network=network), some)
        return torch.stack([state.mean(0) for state in states])

    ours, theirs = (embed(network, texts) for network in networks)
    cosine = torch.nn.functional.cosine_similarity(ours, theirs).mean()
    return Comparison(
        examples=len(texts),
        metric="",
        scores=[],
        speeds=measure_speeds(networks, embed, texts),
        agreement=f"The mean cosine of the embeddings of int8 and fp32 is {cosine:.4f}.",
    )


def measure_speeds(
    networks: Sequence[OnnxNetwork], run: Callable[[OnnxNetwork, Any], object], texts: Sequence[Any]
) -> list[float]:
    """Return texts per second: the best of several rounds, in which the networks alternate."""
    some = texts[:TIMED_TEXTS]
    best = [float("inf")] * len(networks)
    for _ in range(ROUNDS):
        for number, network in enumerate(networks):
            network.seconds = 0.0
            run(network, some)
            best[number] = min(best[number], network.seconds)
    return [len(some) / seconds for seconds in best]
