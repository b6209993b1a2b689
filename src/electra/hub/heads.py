"""Fine-tuned models as folders; the transformers classes load those whose head they have."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from electra.errors import UserError
from electra.hub.folders import (
    copy_weights,
    named_encoder,
    read_weights,
    transformers_config,
    write_model,
)
from electra.json_types import check_fields, parse_json
from electra.models.heads import HeadKind, Pool, TaskModel

CARD = "task.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCard:
    """Everything needed to use a fine-tuned model; stored as `task.json` beside its weights."""

    name: str
    kind: str
    """A key of `electra.finetune.kinds.KINDS`."""
    labels: list[str] = field(default_factory=list)
    metric: str = "accuracy"
    head: HeadKind = "paper"
    pool: Pool = "first"
    dropout: float = 0.1
    max_length: int = 128
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of the training files, where the user named them."""
    pairs: bool = False
    """Whether an example has two texts."""
    without_stops: bool = False
    """Whether final full stops are removed from the texts."""
    has_unanswerable: bool = False
    """Questions: whether some have no answer; predicted above `null_threshold`."""
    null_threshold: float = 0.0
    doc_stride: int = 128
    max_question_length: int = 64
    max_answer_length: int = 30
    beam_size: int = 20

    RENAMED_KEYS: ClassVar[Mapping[str, str]] = {
        "length": "max_length",
        "maybe_none": "has_unanswerable",
        "stride": "doc_stride",
        "longest_question": "max_question_length",
        "longest_answer": "max_answer_length",
        "beam": "beam_size",
    }
    """Names in the `task.json` of earlier versions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadLayout:
    """How a head is stored: the transformers class that loads it and its layer names there."""

    architecture: str = "ElectraModel"
    """The default loads the encoder alone."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """Our layer name -> the name in transformers; other layers are stored as `head.NAME`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """More keys for `config.json`, such as the labels."""


def write_task_model(
    model: TaskModel, folder: Path, card: TaskCard, layout: HeadLayout, pad_id: int
) -> None:
    """Write weights, `config.json` and `task.json`; the caller writes the tokenizer."""
    config = model.encoder.config
    settings = transformers_config(config, layout.architecture, pad_id)
    settings["classifier_dropout"] = settings["summary_last_dropout"] = card.dropout
    write_model(folder, _tensors(model, layout), settings | dict(layout.config), config.vocab_size)
    text = json.dumps(asdict(card), indent=2, ensure_ascii=False)
    (folder / CARD).write_text(text + "\n", encoding="utf-8")


def read_task_weights(model: TaskModel, folder: Path, card: TaskCard, layout: HeadLayout) -> None:
    """Copy the weights of a folder into a model; refuse weights that are not finite."""
    weights = read_weights(folder)
    copy_weights(folder, weights, dict(_tensors(model, layout)), f"a model for {card.name}")
    broken = next((name for name, t in weights.items() if not torch.isfinite(t).all()), None)
    if broken is not None:
        raise UserError(
            f"{folder / 'model.safetensors'}: {broken} holds NaN or infinity, because training "
            "diverged: fine-tune again with a lower lr."
        )


def read_card(folder: Path) -> TaskCard:
    """The card of a fine-tuned model."""
    path = folder / CARD
    if not path.is_file():
        raise UserError(
            f"{folder} is not a fine-tuned model: there is no {CARD} in it; "
            "electra finetune makes one."
        )
    try:
        stored = parse_json(path.read_text(encoding="utf-8"))
        renamed = {TaskCard.RENAMED_KEYS.get(key, key): value for key, value in stored.items()}
        values = {"without_stops": False} | renamed  # missing in the oldest cards
        check_fields(TaskCard, values)
        if not 0 <= values["dropout"] < 1 or values["max_length"] < 1:
            raise ValueError("out of range")
        return TaskCard(**{f.name: values[f.name] for f in fields(TaskCard)})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is damaged: fine-tune the model again.") from None


def _tensors(model: TaskModel, layout: HeadLayout) -> Iterator[tuple[str, Tensor]]:
    """Each tensor under the name that transformers has for it, or our own."""
    yield from named_encoder(model.encoder)
    for name, parameter in model.head.named_parameters():
        layer, _, part = name.rpartition(".")
        yield f"{layout.layers.get(layer) or f'head.{layer}'.rstrip('.')}.{part}", parameter
