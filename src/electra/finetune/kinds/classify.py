"""One label for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from torch import Tensor, nn

from electra.finetune.kinds.base import Arrays, Record
from electra.finetune.kinds.text import TextKind, label_record, softmax
from electra.finetune.rows import RowBatch
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import HeadLayout
from electra.models.heads import HeadKind
from electra.tasks.examples import Features, Task

SEQUENCE_CLASSIFICATION = HeadLayout(
    architecture="ElectraForSequenceClassification",
    layers={"dense": "classifier.dense", "output": "classifier.out_proj"},
)


class Classify(TextKind):
    """One label per text or pair."""

    layouts: ClassVar[Mapping[HeadKind, HeadLayout]] = {"transformers": SEQUENCE_CLASSIFICATION}

    @property
    def num_outputs(self) -> int:
        return max(1, len(self.card.labels))

    def loss(
        self, head: nn.Module, hidden: Tensor, batch: RowBatch, config: FinetuneConfig
    ) -> Tensor:
        assert batch.target is not None
        logits = head(hidden, batch.attention_mask).float()
        return F.cross_entropy(logits, batch.target, reduction="sum")

    def decode(self, features: Features, examples: Sequence[Any], outputs: Arrays) -> list[Record]:
        probabilities = softmax(outputs["scores"].astype(np.float64))
        return [
            label_record(example.id, self.card.labels, row)
            for example, row in zip(examples, probabilities, strict=True)
        ]

    def predictions(self, task: Task, records: Sequence[Record]) -> npt.NDArray[Any]:
        index = {label: i for i, label in enumerate(task.labels)}
        return np.array([index[record["label"]] for record in records])

    def layout(self) -> HeadLayout:
        return replace(super().layout(), config=label_config(self.card.labels))


def label_config(labels: Sequence[str]) -> dict[str, Any]:
    """The labels as transformers has them in `config.json`."""
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
