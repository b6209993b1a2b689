"""What `classify`, `regress` and `choice` share: one head on the whole text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from electra.errors import UserError
from electra.finetune.kinds.base import Arrays, Record, TaskKind
from electra.finetune.rows import RowBatch
from electra.models.encoder import Encoder
from electra.models.heads import ClassificationHead, TransformersClassificationHead
from electra.tasks.examples import Sentence, Task
from electra.tasks.folder import ending
from electra.tasks.glue import GLUE, read_split
from electra.tasks.metrics import score_sentences, stuck
from electra.tasks.own import read_own
from electra.tasks.table import read_text
from electra.text.read import clean


class TextKind(TaskKind):
    """A kind whose head gives each text one row of scores."""

    drop_input: ClassVar[bool] = True
    """Whether the transformers class has dropout before its first layer."""

    @property
    def num_outputs(self) -> int:
        """Outputs of the head per row."""
        return 1

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
        return stuck(task, self.predictions(task, records))

    def is_labelled(self, example: Any) -> bool:
        return example.label is not None

    def diverged(self, outputs: Arrays) -> bool:
        return not np.isfinite(outputs["scores"]).all()

    def read(self, source: Path) -> list[Any]:
        """A `.txt` with one text per line, or a table with the columns of the training file."""
        card = self.card
        if ending(source) == ".txt":
            return self.read_lines(source)
        if card.name in GLUE and not card.columns and ending(source) == ".tsv":
            return read_split(card.name, source, hidden=True)[0]
        default = {"text": "text", "pair": "pair"} if card.pairs else {"text": "text"}
        return read_own(source, cast(Any, card.kind), card.columns or default)

    def read_lines(self, source: Path) -> list[Any]:
        """One text per line, named by the number of its line."""
        if self.card.pairs or self.card.columns.get("pair"):
            raise UserError(
                f"The model needs two texts, and '{source}' has one per line: give a table (.csv, "
                ".tsv, .jsonl) with the columns of the training file."
            )
        return [Sentence(id=number, text=line) for number, line in numbered_lines(source)]


def numbered_lines(source: Path) -> list[tuple[str, str]]:
    """The lines of a text file that are not blank, each with its number."""
    lines = [line.strip() for line in clean(read_text(source)).split("\n")]
    return [(str(number), line) for number, line in enumerate(lines, 1) if line]


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
