"""The interface of a task kind."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.finetune.rows import RowBatch
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import HeadLayout, TaskCard
from electra.models.encoder import Encoder
from electra.models.heads import HeadKind
from electra.tasks.examples import Features, Task
from electra.tasks.predict_inputs import read_inputs
from electra.text.tokenizer import Vocabulary

Record = dict[str, Any]
"""The prediction for one example, as it is written to a file."""
Arrays = dict[str, npt.NDArray[Any]]
"""The outputs of a head for all rows of a split, by name."""
Scale = tuple[float, float]
"""The smallest and largest training value of a regression."""


class TaskKind(ABC):
    """How one kind of task is tokenized, learned, decoded and scored.

    An instance belongs to one task, whose settings are in its `card`.
    """

    layouts: ClassVar[Mapping[HeadKind, HeadLayout]] = {}
    """Heads that a transformers class loads; the others are stored under our names."""

    def __init__(self, card: TaskCard) -> None:
        self.card = card

    @abstractmethod
    def featurize(
        self, examples: Sequence[Any], tokenizer: Tokenizer, vocab: Vocabulary
    ) -> Features:
        """Turn examples into rows of tokens."""

    def featurize_train(self, task: Task, tokenizer: Tokenizer, vocab: Vocabulary) -> Features:
        """The rows to train on, where they differ from those of other splits."""
        return self.featurize(task.splits["train"], tokenizer, vocab)

    @abstractmethod
    def build_head(self, encoder: Encoder) -> nn.Module:
        """A new head with random weights."""

    @abstractmethod
    def loss(
        self, head: nn.Module, hidden: Tensor, batch: RowBatch, config: FinetuneConfig
    ) -> Tensor:
        """The loss, summed over the batch."""

    @abstractmethod
    def outputs(self, head: nn.Module, hidden: Tensor, batch: RowBatch) -> dict[str, Tensor]:
        """Everything that `decode` needs, one row per row of the batch."""

    @abstractmethod
    def decode(self, features: Features, examples: Sequence[Any], outputs: Arrays) -> list[Record]:
        """One record per example, from the outputs of all rows."""

    @abstractmethod
    def score(
        self, task: Task, examples: Sequence[Any], records: Sequence[Record]
    ) -> dict[str, float]:
        """All metrics of some predictions, by name."""

    @abstractmethod
    def failed(self, task: Task, records: Sequence[Record], metrics: Mapping[str, float]) -> bool:
        """Whether a seed learned nothing, judged by its predictions for dev."""

    @abstractmethod
    def is_labelled(self, example: Any) -> bool:
        """Whether an example can be scored."""

    def read(self, source: Path, *, labelled: bool = False) -> list[Any]:
        """Read the examples of a file for `electra predict`, with their labels if wanted."""
        card = self.card
        return read_inputs(
            source,
            name=card.name,
            kind=cast(Any, card.kind),
            columns=card.columns,
            labels=card.labels,
            pairs=card.pairs,
            labelled=labelled,
        )

    @property
    def truncation(self) -> str:
        """Which examples are truncated, for a warning: "3 examples ... were truncated"."""
        return f"longer than {self.card.max_length} tokens"

    @classmethod
    def card_fields(cls, task: Task) -> dict[str, Any]:
        """Fields of the card that depend on the examples."""
        return {}

    @classmethod
    def head_dropout(cls, head: HeadKind, dropout: float) -> float:
        """The dropout that the head really has, given the setting."""
        return dropout

    def normalize_targets(self, features: Features) -> tuple[Features, Scale]:
        """The training targets as the network learns them, and how to undo that."""
        return features, (0.0, 1.0)

    def denormalize_(self, head: nn.Module, scale: Scale) -> None:
        """Change the head so that it predicts in the units of the labels."""
        return

    def diverged(self, outputs: Arrays) -> bool:
        """Whether the outputs show that the network computes no numbers any more."""
        return any(np.isnan(array).any() for array in outputs.values())

    def finalize(self, example: Any, record: Record) -> Record:
        """The record that `electra predict` writes."""
        return record

    def layout(self) -> HeadLayout:
        """How the head is stored."""
        return self.layouts.get(self.card.head, HeadLayout())


def truncation_message(kind: TaskKind, truncated: int, total: int, first: str) -> str:
    """How many examples were too long, and the id of the first."""
    return (
        f"{truncated:,} of {total:,} examples {kind.truncation} were truncated; the first is "
        f"'{first}'."
    )
