"""Questions whose answer is a span of a context, or that have none."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from electra.finetune.kinds.base import Arrays, Record, TaskKind
from electra.finetune.rows import RowBatch
from electra.finetune.settings import FinetuneConfig
from electra.hub.heads import HeadLayout
from electra.models.encoder import Encoder
from electra.models.heads import HeadKind, SpanHead, TransformersSpanHead
from electra.tasks.examples import Features, Task
from electra.tasks.question_answering import SpanScores, decode_answers, encode_questions
from electra.tasks.squad_metrics import THRESHOLD, score_answers
from electra.text.tokenizer import Vocabulary

NULL_THRESHOLD = {"paper": THRESHOLD, "transformers": 0.0}
"""The null logit above which no answer is given, before a threshold is tuned on dev."""


class QuestionAnswering(TaskKind):
    """Extractive question answering, with or without unanswerable questions."""

    layouts: ClassVar[Mapping[HeadKind, HeadLayout]] = {
        "transformers": HeadLayout(
            architecture="ElectraForQuestionAnswering", layers={"output": "qa_outputs"}
        )
    }

    @property
    def truncation(self) -> str:
        return f"with a question longer than {self.card.max_question_length} tokens"

    @classmethod
    def card_fields(cls, task: Task) -> dict[str, Any]:
        return {"has_unanswerable": any(e.impossible for e in task.splits["train"])}

    def featurize(
        self, examples: Sequence[Any], tokenizer: Tokenizer, vocab: Vocabulary
    ) -> Features:
        return self._encode(examples, tokenizer, vocab)

    def featurize_train(self, task: Task, tokenizer: Tokenizer, vocab: Vocabulary) -> Features:
        """Without the offsets, which only decoding needs."""
        return self._encode(task.splits["train"], tokenizer, vocab, training=True)

    def _encode(
        self,
        examples: Sequence[Any],
        tokenizer: Tokenizer,
        vocab: Vocabulary,
        *,
        training: bool = False,
    ) -> Features:
        return encode_questions(
            examples,
            tokenizer,
            vocab,
            self.card.max_length,
            doc_stride=self.card.doc_stride,
            max_question_length=self.card.max_question_length,
            training=training,
        )

    def build_head(self, encoder: Encoder) -> nn.Module:
        config = encoder.config
        if self.card.head == "paper":
            return SpanHead(config.hidden, answerability=self.card.has_unanswerable)
        return TransformersSpanHead(config.hidden, config.init_std)

    def loss(
        self, head: nn.Module, hidden: Tensor, batch: RowBatch, config: FinetuneConfig
    ) -> Tensor:
        """The mean of start and end loss, and the weighted answerability loss."""
        assert batch.target is not None
        start, end, impossible = batch.target.unbind(1)
        mask = batch.answer_mask
        if isinstance(head, SpanHead):
            start_logits = head(hidden, mask).float()
            end_logits = head.end_logits(hidden, start, mask).float()
        else:
            start_logits, end_logits = head(hidden, mask).float().unbind(2)
        total = F.cross_entropy(start_logits, start, reduction="sum")
        total = (total + F.cross_entropy(end_logits, end, reduction="sum")) / 2
        if isinstance(head, SpanHead) and head.answerability:
            null = head.null_logit(hidden, start_logits).float()
            total = total + config.answerability_weight * F.binary_cross_entropy_with_logits(
                null, impossible.float(), reduction="sum"
            )
        return total

    def outputs(self, head: nn.Module, hidden: Tensor, batch: RowBatch) -> dict[str, Tensor]:
        """The best starts of each row, the best ends for each of them, and the null logit."""
        mask = batch.answer_mask
        beam = min(self.card.beam_size, batch.ids.shape[1])
        if isinstance(head, SpanHead):
            start_logits = head(hidden, mask)
            null = start_logits.new_zeros(len(start_logits), dtype=torch.float32)
            if head.answerability:
                null = head.null_logit(hidden, start_logits).float()
            starts = start_logits.float().log_softmax(-1).topk(beam, dim=-1)
            logits = [head.end_logits(hidden, start, mask) for start in starts.indices.unbind(1)]
            ends = [each.float().log_softmax(-1).topk(beam, dim=-1) for each in logits]
        else:
            logits = head(hidden, mask).float()  # (rows, length, 2)
            # as transformers scores it: the null span against the best span
            null = logits[:, 0].sum(-1) - logits[:, 1:].amax(1).sum(-1)
            start_scores, end_scores = logits.log_softmax(1).unbind(2)
            starts = start_scores.topk(beam, dim=-1)
            ends = [end_scores.topk(beam, dim=-1)] * beam
        return {
            "starts": starts.indices.to(torch.int16),
            "start_scores": starts.values,
            "ends": torch.stack([each.indices for each in ends], 1).to(torch.int16),
            "end_scores": torch.stack([each.values for each in ends], 1),
            "null": null,
        }

    def decode(self, features: Features, examples: Sequence[Any], outputs: Arrays) -> list[Record]:
        predictions = decode_answers(
            features,
            examples,
            SpanScores(**outputs),
            max_answer_length=self.card.max_answer_length,
            n_best=self.card.beam_size,
        )
        return [
            {
                "id": p.id,
                "answer": p.text,
                "null": p.null,
                "n_best": [
                    {"text": text, "score": score, "probability": probability}
                    for text, score, probability in p.n_best
                ],
            }
            for p in predictions
        ]

    def score(
        self, task: Task, examples: Sequence[Any], records: Sequence[Record]
    ) -> dict[str, float]:
        texts = {record["id"]: record["answer"] for record in records}
        if not self.card.has_unanswerable:
            return score_answers(examples, texts)
        null = {record["id"]: record["null"] for record in records}
        return score_answers(examples, texts, null, threshold=NULL_THRESHOLD[self.card.head])

    def failed(self, task: Task, records: Sequence[Record], metrics: Mapping[str, float]) -> bool:
        """No better than never giving an answer."""
        dev = task.splits["dev"]
        never = sum(example.impossible for example in dev) / len(dev)
        return not metrics.get("best_f1", metrics["f1"]) > never

    def is_labelled(self, example: Any) -> bool:
        return bool(example.answers or example.impossible)

    def finalize(self, example: Any, record: Record) -> Record:
        """An empty answer where "no answer" is more likely."""
        if self.card.has_unanswerable and record["null"] > self.card.null_threshold:
            return record | {"answer": ""}
        return record
