"""What `classify`, `regress` and `choice` share: one head on the whole text."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.finetune.kinds.base import Arrays, Record, TaskKind
from electra.finetune.rows import RowBatch
from electra.models.encoder import Encoder
from electra.models.heads import ClassificationHead, TransformersClassificationHead
from electra.tasks.examples import Features, Task
from electra.tasks.metrics import is_constant, score_sentences
from electra.tasks.text_classification import encode_sentences
from electra.text.tokenizer import Vocabulary


class TextKind(TaskKind):
    """A kind whose head gives each text one row of scores."""

    target_kind: ClassVar[Literal["classify", "regress"]] = "classify"
    """Whether targets are label indices or values."""
    drop_input: ClassVar[bool] = True
    """Whether the transformers class has dropout before its first layer."""

    @property
    def num_outputs(self) -> int:
        """Outputs of the head per row."""
        return 1

    @classmethod
    def card_fields(cls, task: Task) -> dict[str, Any]:
        return {"pairs": any(example.pair for example in task.splits["train"][:1])}

    def featurize(
        self, examples: Sequence[Any], tokenizer: Tokenizer, vocab: Vocabulary
    ) -> Features:
        length = self.card.max_length
        return encode_sentences(examples, tokenizer, vocab, length, kind=self.target_kind)

    def featurize_train(self, task: Task, tokenizer: Tokenizer, vocab: Vocabulary) -> Features:
        """Pairs that have no order are learned in both."""
        if not task.swap:
            return super().featurize_train(task, tokenizer, vocab)
        examples, length = task.splits["train"], self.card.max_length
        return encode_sentences(
            examples, tokenizer, vocab, length, kind=self.target_kind, swap=True
        )

    def predictions(self, task: Task, records: Sequence[Record]) -> npt.NDArray[Any]:
        """Label indices, option indices or values, as the metrics take them."""
        raise NotImplementedError

    def build_head(self, encoder: Encoder) -> nn.Module:
        hidden, card = encoder.config.hidden, self.card
        if card.head == "paper":
            return ClassificationHead(hidden, self.num_outputs, card.dropout, card.pool)
        std = encoder.config.init_std
        return TransformersClassificationHead(
            hidden, self.num_outputs, card.dropout, std, drop_input=self.drop_input
        )

    def outputs(self, head: nn.Module, hidden: Tensor, batch: RowBatch) -> dict[str, Tensor]:
        return {"scores": head(hidden, batch.attention_mask).float()}  # (rows, outputs)

    def score(
        self, task: Task, examples: Sequence[Any], records: Sequence[Record]
    ) -> dict[str, float]:
        return score_sentences(task, examples, self.predictions(task, records))

    def failed(self, task: Task, records: Sequence[Record], metrics: Mapping[str, float]) -> bool:
        """One and the same prediction for everything, or none that is a number."""
        return is_constant(task, self.predictions(task, records))

    def is_labelled(self, example: Any) -> bool:
        return example.label is not None

    def diverged(self, outputs: Arrays) -> bool:
        return not np.isfinite(outputs["scores"]).all()


def label_record(name: str, labels: Sequence[str], probabilities: npt.NDArray[Any]) -> Record:
    """The record of an example with one label out of several."""
    return {
        "id": name,
        "label": labels[int(probabilities.argmax())],
        "probabilities": dict(zip(labels, (float(p) for p in probabilities), strict=True)),
    }


def softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Probabilities of each row."""
    exp = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(exp / exp.sum(-1, keepdims=True))
