"""What a step is given: rows as `electra prepare` wrote them, taken apart on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

BEHIND = 1 << 20
"""The number of padding, as if it were the last document of its row."""


class Batch(NamedTuple):
    """One batch of text; every field is (batch, length)."""

    ids: Tensor
    segments: Tensor
    attention_mask: Tensor
    """True for tokens, False for padding."""
    doc_ids: Tensor
    """`attention_mask`, or where documents are kept apart, each token's document id in its row."""


def unpack(rows: Tensor, start: int | None = None) -> Batch:
    """Split stored rows: ids, then the end of the first segment, then the end of the text.

    `start` is the token that begins a document, where documents shall not see each other.
    """
    ids, first, total = rows[:, :-2].long(), rows[:, -2:-1], rows[:, -1:]
    place = torch.arange(ids.shape[1], device=rows.device)
    attention_mask = place < total
    doc_ids = attention_mask
    if start is not None:
        doc_ids = torch.where(attention_mask, (ids == start).cumsum(1), BEHIND)
    return Batch(ids, ((place >= first) & attention_mask).long(), attention_mask, doc_ids)
