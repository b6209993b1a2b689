"""The right one of several texts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.finetune.kinds.base import Arrays, Record
from electra.finetune.kinds.text import TextKind, label_record, softmax
from electra.finetune.rows import RowBatch
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import HeadLayout
from electra.models.heads import HeadKind
from electra.tasks.examples import Features, Task
from electra.tasks.text_classification import encode_choices
from electra.text.tokenizer import Vocabulary


class Choice(TextKind):
    """The right one of several options."""

    layouts: ClassVar[Mapping[HeadKind, HeadLayout]] = {
        "transformers": HeadLayout(
            architecture="ElectraForMultipleChoice",
            layers={"dense": "sequence_summary.summary", "output": "classifier"},
        )
    }
    drop_input = False

    @classmethod
    def card_fields(cls, task: Task) -> dict[str, Any]:
        return {"pairs": True}

    def featurize(
        self, examples: Sequence[Any], tokenizer: Tokenizer, vocab: Vocabulary
    ) -> Features:
        return encode_choices(examples, tokenizer, vocab, self.card.max_length)

    def loss(
        self, head: nn.Module, hidden: Tensor, batch: RowBatch, config: FinetuneConfig
    ) -> Tensor:
        """Cross-entropy over the options; all rows of an example have its target."""
        assert batch.target is not None
        options = batch.rows_per_example
        logits = head(hidden, batch.attention_mask).float().view(-1, options)
        return F.cross_entropy(logits, batch.target.view(-1, options)[:, 0], reduction="sum")

    def decode(self, features: Features, examples: Sequence[Any], outputs: Arrays) -> list[Record]:
        options = features.rows_per_example
        probabilities = softmax(outputs["scores"].astype(np.float64).reshape(-1, options))
        names = [str(i) for i in range(options)]
        return [
            label_record(example.id, names, row)
            for example, row in zip(examples, probabilities, strict=True)
        ]

    def predictions(self, task: Task, records: Sequence[Record]) -> npt.NDArray[Any]:
        return np.array([int(record["label"]) for record in records])
