"""One number for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError
from electra.finetune.kinds.base import Arrays, Record, Scale
from electra.finetune.kinds.classify import SEQUENCE_CLASSIFICATION
from electra.finetune.kinds.text import TextKind
from electra.finetune.rows import RowBatch
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import HeadLayout
from electra.models.heads import ClassificationHead, HeadKind, TransformersClassificationHead
from electra.tasks.examples import Features, Task


class Regress(TextKind):
    """One number per text or pair."""

    layouts: ClassVar[Mapping[HeadKind, HeadLayout]] = {"transformers": SEQUENCE_CLASSIFICATION}
    target_kind = "regress"

    def normalize_targets(self, features: Features) -> tuple[Features, Scale]:
        """Map the training values to 0..1, so that one learning rate suits all units."""
        values = np.asarray(features.labels)
        low, high = float(values.min()), float(values.max())
        if low == high:
            raise UserError(f"All values to learn are {low}: check the column of the label.")
        target = ((values - low) / (high - low)).astype(np.float32)
        return replace(features, labels=target), (low, high)

    @torch.no_grad()
    def denormalize_(self, head: nn.Module, scale: Scale) -> None:
        assert isinstance(head, ClassificationHead | TransformersClassificationHead)
        low, high = scale
        head.output.weight.mul_(high - low)
        head.output.bias.mul_(high - low).add_(low)

    def loss(
        self, head: nn.Module, hidden: Tensor, batch: RowBatch, config: FinetuneConfig
    ) -> Tensor:
        assert batch.target is not None
        values = head(hidden, batch.attention_mask)[:, 0].float()
        return F.mse_loss(values, batch.target.float(), reduction="sum")

    def decode(self, features: Features, examples: Sequence[Any], outputs: Arrays) -> list[Record]:
        values = outputs["scores"][:, 0].astype(np.float64)
        return [
            {"id": example.id, "value": float(value)}
            for example, value in zip(examples, values, strict=True)
        ]

    def predictions(self, task: Task, records: Sequence[Record]) -> npt.NDArray[Any]:
        return np.array([record["value"] for record in records])

    def layout(self) -> HeadLayout:
        config = {
            "id2label": {"0": "value"},
            "label2id": {"value": 0},
            "problem_type": "regression",
        }
        return replace(super().layout(), config=config)
