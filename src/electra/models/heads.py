"""Fine-tuning heads: those of the paper, and those of the transformers classes."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.encoder import Encoder, glorot_linear, init_truncated_

HeadKind = Literal["paper", "transformers"]
Pool = Literal["first", "max"]
QA_HIDDEN = 512
"""Hidden width of the question-answering layers of google-research/electra, at every size."""


class ClassificationHead(nn.Module):
    """The paper's head for a text: dropout and one linear layer on the first token."""

    def __init__(self, hidden: int, outputs: int, dropout: float, pool: Pool = "first") -> None:
        super().__init__()
        self.pool = pool
        self.dropout = nn.Dropout(dropout)
        self.output = glorot_linear(hidden, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        if self.pool == "first":
            text = hidden[:, 0]
        else:  # encoders of one or two layers do not gather the text in [CLS]
            text = hidden.masked_fill(~attention_mask[..., None], float("-inf")).amax(1)
        return self.output(self.dropout(text))  # (batch, outputs)


class TransformersClassificationHead(nn.Module):
    """The head of the transformers classes: dropout, linear, GELU, dropout, linear."""

    def __init__(
        self, hidden: int, outputs: int, dropout: float, std: float, drop_input: bool = True
    ) -> None:
        super().__init__()
        # ElectraForSequenceClassification drops the input too, ElectraForMultipleChoice does not.
        self.drop_input = nn.Dropout(dropout if drop_input else 0.0)
        self.dense = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden, outputs)
        for linear in (self.dense, self.output):
            init_truncated_(linear.weight, std)
            nn.init.zeros_(linear.bias)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        text = F.gelu(self.dense(self.drop_input(hidden[:, 0])))
        return self.output(self.dropout(text))  # (batch, outputs)


class TokenClassificationHead(nn.Module):
    """One linear layer on every token; google-research/electra has no dropout here."""

    def __init__(self, hidden: int, outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = glorot_linear(hidden, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return self.output(self.dropout(hidden))  # (batch, length, outputs)


class SpanHead(nn.Module):
    """The head of google-research/electra: start, end given the start, and answerability."""

    def __init__(self, hidden: int, answerability: bool) -> None:
        super().__init__()
        self.answerability = answerability
        self.start = glorot_linear(hidden, 1)
        self.end_hidden = glorot_linear(2 * hidden, QA_HIDDEN)
        self.end = glorot_linear(QA_HIDDEN, 1)
        if answerability:
            self.null_hidden = glorot_linear(2 * hidden, QA_HIDDEN)
            self.null = glorot_linear(QA_HIDDEN, 1)

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Start logits; `allowed` is True for the context and for [CLS], which means no answer."""
        return self.start(hidden).squeeze(-1).masked_fill(~allowed, float("-inf"))

    def end_logits(self, hidden: Tensor, start: Tensor, allowed: Tensor) -> Tensor:
        """End logits (batch, length), given one start (batch,) per row."""
        index = start[:, None, None].expand(-1, 1, hidden.shape[2])
        start_hidden = hidden.gather(1, index).expand_as(hidden)
        x = F.gelu(self.end_hidden(torch.cat([start_hidden, hidden], dim=-1)))
        return self.end(x).squeeze(-1).masked_fill(~allowed, float("-inf"))

    def null_logit(self, hidden: Tensor, start_logits: Tensor) -> Tensor:
        """The logit of "no answer" (batch,), from [CLS] and the expected start vector."""
        weights = start_logits.softmax(-1).to(hidden.dtype)
        start_hidden = (weights[:, None] @ hidden).squeeze(1)
        x = F.gelu(self.null_hidden(torch.cat([start_hidden, hidden[:, 0]], dim=-1)))
        return self.null(x).squeeze(-1)


class TransformersSpanHead(nn.Module):
    """The head of ElectraForQuestionAnswering: independent start and end; [CLS] is no answer."""

    def __init__(self, hidden: int, std: float) -> None:
        super().__init__()
        self.output = nn.Linear(hidden, 2)
        init_truncated_(self.output.weight, std)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        logits = self.output(hidden)  # (batch, length, 2)
        return logits.masked_fill(~allowed[..., None], float("-inf"))


class TaskModel(nn.Module):
    """An encoder with a fine-tuning head."""

    def __init__(self, encoder: Encoder, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
