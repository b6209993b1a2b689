"""A tag for every word of a sentence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.finetune.kinds.base import Arrays, Record, TaskKind
from electra.finetune.kinds.classify import label_config
from electra.finetune.rows import RowBatch
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import HeadLayout
from electra.models.encoder import Encoder
from electra.models.heads import HeadKind, TokenClassificationHead
from electra.tasks.examples import IGNORE_INDEX, Features, Task
from electra.tasks.tag_schemes import to_scheme
from electra.tasks.token_classification import decode_tags, encode_words, score_tags
from electra.text.tokenizer import Vocabulary

TOKEN_CLASSIFICATION = HeadLayout(
    architecture="ElectraForTokenClassification", layers={"output": "classifier"}
)


class Tag(TaskKind):
    """Token classification: one tag per word."""

    # The two heads differ in their dropout alone, so one class loads both.
    layouts: ClassVar[Mapping[HeadKind, HeadLayout]] = {
        "paper": TOKEN_CLASSIFICATION,
        "transformers": TOKEN_CLASSIFICATION,
    }

    @property
    def truncation(self) -> str:
        return f"with a word longer than {self.card.max_length} tokens"

    @classmethod
    def head_dropout(cls, head: HeadKind, dropout: float) -> float:
        """google-research/electra has no dropout between encoder and tagging layer."""
        return 0.0 if head == "paper" else dropout

    def featurize(
        self, examples: Sequence[Any], tokenizer: Tokenizer, vocab: Vocabulary
    ) -> Features:
        return encode_words(examples, tokenizer, vocab, self.card.max_length, self.card.labels)

    def build_head(self, encoder: Encoder) -> nn.Module:
        dropout = self.head_dropout(self.card.head, self.card.dropout)
        outputs = max(1, len(self.card.labels))
        return TokenClassificationHead(encoder.config.hidden, outputs, dropout)

    def loss(
        self, head: nn.Module, hidden: Tensor, batch: RowBatch, config: FinetuneConfig
    ) -> Tensor:
        assert batch.target is not None
        logits = head(hidden, batch.attention_mask).float().flatten(0, 1)
        target = batch.target.flatten()
        return F.cross_entropy(logits, target, ignore_index=IGNORE_INDEX, reduction="sum")

    def outputs(self, head: nn.Module, hidden: Tensor, batch: RowBatch) -> dict[str, Tensor]:
        logits = head(hidden, batch.attention_mask).float()
        return {"tags": logits.argmax(-1).to(torch.int16)}  # (rows, length)

    def decode(self, features: Features, examples: Sequence[Any], outputs: Arrays) -> list[Record]:
        tags = [
            row[: len(ids)] for row, ids in zip(outputs["tags"], features.input_ids, strict=True)
        ]
        decoded = decode_tags(features, examples, tags, self.card.labels)
        return [
            {"id": example.id, "tags": list(found)}
            for example, found in zip(examples, decoded, strict=True)
        ]

    def score(
        self, task: Task, examples: Sequence[Any], records: Sequence[Record]
    ) -> dict[str, float]:
        return score_tags(task, examples, [record["tags"] for record in records])

    def failed(self, task: Task, records: Sequence[Record], metrics: Mapping[str, float]) -> bool:
        """One and the same tag for every word, or a score of 0."""
        predicted = {tag for record in records for tag in record["tags"]}
        return len(predicted) < 2 or not metrics[task.metric] > 0

    def is_labelled(self, example: Any) -> bool:
        return example.tags is not None

    def finalize(self, example: Any, record: Record) -> Record:
        """Words beside tags, in the tagging scheme of the training file."""
        tags = record["tags"]
        if scheme := self.card.columns.get("scheme"):
            tags = list(to_scheme(tags, cast(Any, scheme)))
        return {"id": record["id"], "words": list(example.words), "tags": tags}

    def layout(self) -> HeadLayout:
        return replace(super().layout(), config=label_config(self.card.labels))
