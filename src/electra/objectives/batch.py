"""What a step is given: rows as `electra prepare` wrote them, taken apart on the device."""

from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """One batch of text; every field is (batch, length)."""

    ids: Tensor
    segments: Tensor
    real: Tensor
    """True for tokens, False for padding."""


def unpack(rows: Tensor) -> Batch:
    """Split stored rows: ids, then the end of the first segment, then the end of the text."""
    ids, first, total = rows[:, :-2].long(), rows[:, -2:-1], rows[:, -1:]
    place = torch.arange(ids.shape[1], device=rows.device)
    real = place < total
    return Batch(ids, ((place >= first) & real).long(), real)
