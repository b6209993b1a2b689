"""What fine-tuning puts on the encoder: the paper's heads, and those of transformers' classes."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.encoder import Encoder, glorot_linear, init_truncated_

HeadKind = Literal["paper", "transformers"]
Pool = Literal["first", "max"]
QA_HIDDEN = 512
"""Width of the question-answering heads of the original, whatever the encoder's."""


class TextHead(nn.Module):
    """Dropout and one linear layer on the first token: one output per label, or per option."""

    def __init__(self, hidden: int, outputs: int, dropout: float, pool: Pool = "first") -> None:
        super().__init__()
        self.pool = pool
        self.dropout = nn.Dropout(dropout)
        self.output = glorot_linear(hidden, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        if self.pool == "first":
            text = hidden[:, 0]
        else:  # the strongest value of each feature, for bodies too shallow to gather in [CLS]
            text = hidden.masked_fill(~attention_mask[..., None], float("-inf")).amax(1)
        return self.output(self.dropout(text))  # (batch, outputs)


class DeepTextHead(nn.Module):
    """The head of transformers' classes: one more layer, with GELU, between two dropouts."""

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


class TagHead(nn.Module):
    """Dropout and one linear layer on every token."""

    def __init__(self, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.output = glorot_linear(hidden, outputs)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        return self.output(self.dropout(hidden))  # (batch, length, outputs)


class SpanHead(nn.Module):
    """The original's: a start, an end that knows the start, and whether there is an answer."""

    def __init__(self, hidden: int, maybe_none: bool) -> None:
        super().__init__()
        self.maybe_none = maybe_none
        self.start = glorot_linear(hidden, 1)
        self.end_hidden = glorot_linear(2 * hidden, QA_HIDDEN)
        self.end = glorot_linear(QA_HIDDEN, 1)
        if not maybe_none:
            return
        self.null_hidden = glorot_linear(2 * hidden, QA_HIDDEN)
        self.null = glorot_linear(QA_HIDDEN, 1)

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Logits of the start; `allowed` is True for the context and for [CLS], 'no answer'."""
        return self.start(hidden).squeeze(-1).masked_fill(~allowed, float("-inf"))

    def ends(self, hidden: Tensor, start: Tensor, allowed: Tensor) -> Tensor:
        """Logits of the end (batch, length), given one start (batch,) per row."""
        index = start[:, None, None].expand(-1, 1, hidden.shape[2])
        begun = hidden.gather(1, index).expand_as(hidden)
        x = F.gelu(self.end_hidden(torch.cat([begun, hidden], dim=-1)))
        return self.end(x).squeeze(-1).masked_fill(~allowed, float("-inf"))

    def no_answer(self, hidden: Tensor, starts: Tensor) -> Tensor:
        """The logit of 'impossible' (batch,), from [CLS] and where the start is thought to be."""
        weights = starts.softmax(-1).to(hidden.dtype)
        begun = (weights[:, None] @ hidden).squeeze(1)
        x = F.gelu(self.null_hidden(torch.cat([begun, hidden[:, 0]], dim=-1)))
        return self.null(x).squeeze(-1)


class PlainSpanHead(nn.Module):
    """The head of ElectraForQuestionAnswering: start and end apart; [CLS] means 'no answer'."""

    def __init__(self, hidden: int, std: float) -> None:
        super().__init__()
        self.output = nn.Linear(hidden, 2)
        init_truncated_(self.output.weight, std)
        nn.init.zeros_(self.output.bias)

    def forward(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        logits = self.output(hidden)  # (batch, length, 2)
        return logits.masked_fill(~allowed[..., None], float("-inf"))


Head = TextHead | DeepTextHead | TagHead | SpanHead | PlainSpanHead


class TaskModel(nn.Module):
    """An encoder and what is asked of it."""

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head


def build_head(
    kind: str,
    encoder: Encoder,
    outputs: int,
    *,
    head: HeadKind = "paper",
    pool: Pool = "first",
    dropout: float = 0.1,
) -> Head:
    """A new head for a kind of task (see `electra.tasks.examples.Kind`).

    `outputs` is the number of labels; for questions 1 if there may be no answer, else 0.
    """
    hidden, std = encoder.config.hidden, encoder.config.init_std
    if kind == "tag":
        return TagHead(hidden, outputs, dropout)
    if kind == "qa" and head == "paper":
        return SpanHead(hidden, maybe_none=outputs > 0)
    if kind == "qa":
        return PlainSpanHead(hidden, std)
    outputs = outputs if kind == "classify" else 1
    if head == "transformers":
        return DeepTextHead(hidden, outputs, dropout, std, drop_input=kind != "choice")
    return TextHead(hidden, outputs, dropout, pool)
