"""A batch of text, unpacked from the rows that `electra prepare` stores."""

from typing import NamedTuple

import torch
from torch import Tensor

from electra.objectives import random

PADDING_DOC_ID = 1 << 20
"""Document id of padding; larger than all others, because the kernels need ascending ids."""


class Batch(NamedTuple):
    """One batch of text; fields are (batch, length) unless noted."""

    ids: Tensor
    segments: Tensor
    attention_mask: Tensor
    """True for tokens, False for padding."""
    doc_ids: Tensor
    """`attention_mask`, or with `data.document_mask` each token's document id in its row."""
    row_keys: Tensor
    """Keys of the random numbers of each row, (batch,)."""


def unpack(
    rows: Tensor, document_start_id: int | None = None, row_keys: Tensor | None = None
) -> Batch:
    """Unpack stored rows: token ids, the end of the first segment, the end of the text.

    `document_start_id` is the token that begins a document, if documents must not attend to each
    other. Without `row_keys`, rows have those of seed 0 at step 0.
    """
    ids, first, total = rows[:, :-2].long(), rows[:, -2:-1], rows[:, -1:]
    position = torch.arange(ids.shape[1], device=rows.device)
    attention_mask = position < total
    doc_ids = attention_mask
    if document_start_id is not None:
        doc_ids = torch.where(attention_mask, (ids == document_start_id).cumsum(1), PADDING_DOC_ID)
    segments = ((position >= first) & attention_mask).long()
    if row_keys is None:
        row_keys = random.row_keys(torch.zeros(3, dtype=torch.long, device=rows.device), len(rows))
    return Batch(ids, segments, attention_mask, doc_ids, row_keys)
