"""Build, save and load fine-tuned models."""

from dataclasses import replace
from pathlib import Path

from electra.errors import UserError, nearest
from electra.finetune.kinds import KINDS, make_kind
from electra.hub.folders import build_encoder
from electra.hub.heads import TaskCard, read_card, read_task_weights, write_task_model
from electra.models.encoder import Encoder
from electra.models.heads import TaskModel


def new_task_model(card: TaskCard, encoder: Encoder) -> TaskModel:
    """An encoder with a new head for the card's kind of task."""
    return TaskModel(encoder, make_kind(card).build_head(encoder))


def save_task_model(model: TaskModel, folder: Path, card: TaskCard, pad_id: int) -> None:
    """Write weights, `config.json` and `task.json`; the caller writes the tokenizer."""
    kind = make_kind(card)
    # so that training goes on in transformers with the dropout that the head had here
    card = replace(card, dropout=kind.head_dropout(card.head, card.dropout))
    write_task_model(model, folder, card, kind.layout(), pad_id)


def load_task_model(folder: Path) -> tuple[TaskModel, TaskCard]:
    """A fine-tuned model and its card."""
    card = read_card(folder)
    if card.kind not in KINDS:
        raise UserError(
            f"{folder} has the unknown task kind '{card.kind}': {nearest(card.kind, list(KINDS))}"
        )
    model = new_task_model(card, build_encoder(folder))
    read_task_weights(model, folder, card, make_kind(card).layout())
    return model.eval(), card
