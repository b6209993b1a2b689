"""Fine-tuned models as folders: transformers' own classes load those whose head they have."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from electra.errors import UserError
from electra.hub.folders import (
    copy_weights,
    named_encoder,
    named_linear,
    read_config,
    read_weights,
    transformers_config,
    write_model,
)
from electra.models.encoder import Encoder
from electra.models.heads import HeadKind, Pool, TaskModel, build_head

CARD = "task.json"
OURS = "ElectraModel"
"""The class for heads that transformers does not have: it loads the encoder."""
NAMES: dict[tuple[str, str], tuple[str, dict[str, str]]] = {
    # (kind, head): the class, and its name for each of our layers
    ("classify", "transformers"): (
        "ElectraForSequenceClassification",
        {"dense": "classifier.dense", "output": "classifier.out_proj"},
    ),
    ("choice", "transformers"): (
        "ElectraForMultipleChoice",
        {"dense": "sequence_summary.summary", "output": "classifier"},
    ),
    ("tag", "transformers"): ("ElectraForTokenClassification", {"output": "classifier"}),
    ("qa", "transformers"): ("ElectraForQuestionAnswering", {"output": "qa_outputs"}),
}
NAMES["regress", "transformers"] = NAMES["classify", "transformers"]
NAMES["tag", "paper"] = NAMES["tag", "transformers"]  # the same head


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCard:
    """What must be known to use a fine-tuned model; `task.json` beside its weights."""

    name: str
    kind: str
    labels: list[str] = field(default_factory=list)
    metric: str = "accuracy"
    head: HeadKind = "paper"
    pool: Pool = "first"
    dropout: float = 0.1
    length: int = 128
    columns: dict[str, str] = field(default_factory=dict)
    """Of the files it was trained on, where the user named them."""
    pairs: bool = False
    """Whether it reads two texts."""
    without_stops: bool = False
    """Whether final full stops are taken away before it reads a text."""
    maybe_none: bool = False
    """Questions: whether there may be no answer, which is said above `null_threshold`."""
    null_threshold: float = 0.0
    stride: int = 128
    longest_question: int = 64
    longest_answer: int = 30
    beam: int = 20

    @property
    def outputs(self) -> int:
        """Of the head: see `build_head`."""
        return int(self.maybe_none) if self.kind == "qa" else max(1, len(self.labels))


def save_task_model(model: TaskModel, folder: Path, card: TaskCard, pad_id: int) -> None:
    """Write weights, configuration and card; the tokenizer is the caller's."""
    config = model.encoder.config
    kind = NAMES.get((card.kind, card.head), (OURS, {}))[0]
    settings = transformers_config(config, kind, pad_id)
    settings["classifier_dropout"] = settings["summary_last_dropout"] = card.dropout
    if card.kind in ("classify", "tag"):
        settings["id2label"] = {str(i): label for i, label in enumerate(card.labels)}
        settings["label2id"] = {label: i for i, label in enumerate(card.labels)}
    elif card.kind == "regress":
        settings |= {"id2label": {"0": "value"}, "label2id": {"value": 0}}
        settings["problem_type"] = "regression"
    write_model(folder, _tensors(model, card), settings, config.vocab_size)
    text = json.dumps(asdict(card), indent=2, ensure_ascii=False)
    (folder / CARD).write_text(text + "\n", encoding="utf-8")


def new_model(card: TaskCard, encoder: Encoder) -> TaskModel:
    """An encoder with a new head of the kind that the card describes."""
    head = build_head(
        card.kind,
        encoder,
        card.outputs,
        head=card.head,
        pool=card.pool,
        dropout=card.dropout,
    )
    return TaskModel(encoder, head)


def load_task_model(folder: Path) -> tuple[TaskModel, TaskCard]:
    """A fine-tuned model and its card."""
    card = read_card(folder)
    model = new_model(card, Encoder(read_config(folder)))
    wanted = dict(_tensors(model, card))
    copy_weights(folder, read_weights(folder), wanted, f"a model for {card.name}")
    return model.eval(), card


def read_card(folder: Path) -> TaskCard:
    """The card of a fine-tuned model."""
    path = folder / CARD
    if not path.is_file():
        raise UserError(
            f"{folder} is not a fine-tuned model: there is no {CARD} in it; "
            "electra finetune makes one."
        )
    try:
        older: dict[str, Any] = {"without_stops": False}  # where a card does not say it
        values = older | json.loads(path.read_text(encoding="utf-8"))
        return TaskCard(**{f.name: values[f.name] for f in fields(TaskCard)})
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is damaged: fine-tune the model again.") from None


def _tensors(model: TaskModel, card: TaskCard) -> Iterator[tuple[str, Tensor]]:
    """Each tensor under the name that transformers has for it, or our own."""
    yield from named_encoder(model.encoder)
    names = NAMES.get((card.kind, card.head), (OURS, {}))[1]
    for ours, module in model.head.named_children():
        if hasattr(module, "weight"):
            yield from named_linear(names.get(ours, f"head.{ours}"), module)
