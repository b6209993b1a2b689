"""Features on the device: rows of tokens that a batch is picked from by number."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from electra.tasks.examples import IGNORE_INDEX, Features


@dataclass(frozen=True, slots=True)
class RowBatch:
    """Some rows, padded to one length."""

    ids: Tensor  # (rows, length)
    segments: Tensor
    attention_mask: Tensor
    """True for tokens, False for padding."""
    target: Tensor | None

    @property
    def allowed(self) -> Tensor:
        """Where an answer may begin or end: the second segment, and [CLS] for 'no answer'."""
        place = torch.arange(self.ids.shape[1], device=self.ids.device)
        last = self.attention_mask.sum(1, keepdim=True) - 1  # the closing [SEP] is none of it
        return ((self.segments == 1) & (place < last)) | (place == 0)


@dataclass(frozen=True, slots=True)
class Rows:
    """All rows of a split, on the device."""

    ids: Tensor  # (rows, longest)
    first: Tensor  # (rows,)
    total: Tensor  # (rows,)
    target: Tensor | None

    def pick(self, index: Tensor, length: int) -> RowBatch:
        """The rows with these numbers."""
        place = torch.arange(length, device=self.ids.device)
        target = None if self.target is None else self.target.index_select(0, index)
        if target is not None and target.ndim == 2 and target.shape[1] == self.ids.shape[1]:
            target = target[:, :length]  # a target per token
        return RowBatch(
            ids=self.ids.index_select(0, index)[:, :length].long(),
            segments=(place >= self.first.index_select(0, index)[:, None]).long(),
            attention_mask=place < self.total.index_select(0, index)[:, None],
            target=target,
        )


def put_rows(features: Features, pad_id: int, longest: int, device: torch.device) -> Rows:
    """Copy features to the device; `longest` is the width of the table."""
    total = np.array([len(row) for row in features.input_ids], dtype=np.int64)
    ids = np.full((len(total), longest), pad_id, dtype=np.int32)
    inside = np.arange(longest) < total[:, None]
    ids[inside] = np.concatenate(features.input_ids)
    target: Tensor | None = None
    if isinstance(features.labels, np.ndarray):
        # the options of one choice share its target
        target = torch.from_numpy(features.labels.repeat(features.rows_per_example, 0)).to(device)
    elif features.labels is not None:
        table = np.full((len(total), longest), IGNORE_INDEX, dtype=np.int64)
        table[inside] = np.concatenate(features.labels)
        target = torch.from_numpy(table).to(device)
    return Rows(
        ids=torch.from_numpy(ids).to(device),
        first=torch.from_numpy(features.segment_start).long().to(device),
        total=torch.from_numpy(total).to(device),
        target=target,
    )
