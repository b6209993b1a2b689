"""What a model is asked, kind by kind: the loss that it learns from, and its answers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.finetune.rows import RowBatch
from electra.models.heads import PlainSpanHead, SpanHead, TaskModel
from electra.tasks.examples import IGNORE_INDEX, Kind


def loss(
    model: TaskModel, batch: RowBatch, kind: Kind, options: int = 1, null_weight: float = 0.0
) -> Tensor:
    """Loss summed over the rows; `options` is the number of rows of each example."""
    hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
    assert batch.target is not None
    if kind == "qa":
        return span_loss(model, hidden, batch, null_weight)
    logits = model.head(hidden, batch.attention_mask)
    if kind == "regress":
        return F.mse_loss(logits[:, 0].float(), batch.target.float(), reduction="sum")
    target = batch.target
    if kind == "choice":  # the rows of an example are its options, and all have its target
        logits, target = logits.view(-1, options), target.view(-1, options)[:, 0]
    return F.cross_entropy(
        logits.flatten(0, -2).float(),
        target.flatten(),
        ignore_index=IGNORE_INDEX,
        reduction="sum",
    )


def span_loss(model: TaskModel, hidden: Tensor, batch: RowBatch, null_weight: float) -> Tensor:
    """Half the start's and half the end's, and whether there is an answer."""
    assert batch.target is not None
    start, end, impossible = batch.target.unbind(1)
    head = model.head
    if isinstance(head, PlainSpanHead):
        starts, ends = head(hidden, batch.allowed).float().unbind(2)
    else:
        assert isinstance(head, SpanHead)
        starts = head(hidden, batch.allowed).float()
        ends = head.ends(hidden, start, batch.allowed).float()
    total = F.cross_entropy(starts, start, reduction="sum")
    total = (total + F.cross_entropy(ends, end, reduction="sum")) / 2
    if isinstance(head, SpanHead) and head.maybe_none:
        null = head.no_answer(hidden, starts).float()
        total = total + null_weight * F.binary_cross_entropy_with_logits(
            null, impossible.float(), reduction="sum"
        )
    return total


def outputs(model: TaskModel, batch: RowBatch, kind: Kind, beam: int = 1) -> dict[str, Tensor]:
    """What the answers are made from: `scores`, `tags`, or the fields of a `SpanScores`."""
    hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
    if kind == "qa":
        return span_outputs(model, hidden, batch, beam)
    logits = model.head(hidden, batch.attention_mask).float()
    if kind == "tag":
        return {"tags": logits.argmax(-1).to(torch.int16)}  # (rows, length)
    return {"scores": logits}  # (rows, labels)


def span_outputs(model: TaskModel, hidden: Tensor, batch: RowBatch, beam: int) -> dict[str, Tensor]:
    """The best starts of each row, and for each of them the best ends."""
    head, allowed = model.head, batch.allowed
    beam = min(beam, batch.ids.shape[1])
    if isinstance(head, PlainSpanHead):
        logits = head(hidden, allowed).float()
        chances, last = logits.log_softmax(1).unbind(2)
        # How much better 'no answer' is than the best answer, in this library's way of asking
        null = logits[:, 0].sum(-1) - logits[:, 1:].amax(1).sum(-1)
    else:
        assert isinstance(head, SpanHead)
        starts = head(hidden, allowed)
        chances, last = starts.float().log_softmax(-1), None
        null = starts.new_zeros(len(starts), dtype=torch.float32)
        if head.maybe_none:
            null = head.no_answer(hidden, starts).float()
    start = chances.topk(beam, dim=-1)
    ends, scores = [], []
    for begun in start.indices.unbind(1):
        if last is None:
            assert isinstance(head, SpanHead)
            found = head.ends(hidden, begun, allowed).float().log_softmax(-1).topk(beam, dim=-1)
        else:
            found = last.topk(beam, dim=-1)
        ends.append(found.indices)
        scores.append(found.values)
    return {
        "starts": start.indices.to(torch.int16),
        "start_scores": start.values,
        "ends": torch.stack(ends, 1).to(torch.int16),
        "end_scores": torch.stack(scores, 1),
        "null": null,
    }
