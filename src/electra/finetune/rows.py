"""The rows of a split as tensors on the device, from which batches are gathered."""

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
    rows_per_example: int = 1

    @property
    def answer_mask(self) -> Tensor:
        """Where an answer may start or end: the context, and [CLS] for no answer."""
        position = torch.arange(self.ids.shape[1], device=self.ids.device)
        # differs from google-research/electra: the final [SEP] cannot be part of an answer.
        last = self.attention_mask.sum(1, keepdim=True) - 1
        return ((self.segments == 1) & (position < last)) | (position == 0)


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """All rows of a split, on the device."""

    ids: Tensor  # (rows, longest)
    first: Tensor  # (rows,)
    total: Tensor  # (rows,)
    target: Tensor | None
    rows_per_example: int
    token_targets: bool
    """Whether there is a target for every token."""

    def gather(self, index: Tensor, length: int) -> RowBatch:
        """The rows with these indices, cut or padded to `length`."""
        position = torch.arange(length, device=self.ids.device)
        target = None if self.target is None else self.target.index_select(0, index)
        if target is not None and self.token_targets:
            target = target[:, :length]
        return RowBatch(
            ids=self.ids.index_select(0, index)[:, :length].long(),
            segments=(position >= self.first.index_select(0, index)[:, None]).long(),
            attention_mask=position < self.total.index_select(0, index)[:, None],
            target=target,
            rows_per_example=self.rows_per_example,
        )


def rows_to_device(
    features: Features, pad_id: int, longest: int, device: torch.device
) -> DeviceRows:
    """Copy features to the device as one table of width `longest`."""
    total = np.array([len(row) for row in features.input_ids], dtype=np.int64)
    ids = np.full((len(total), longest), pad_id, dtype=np.int32)
    inside = np.arange(longest) < total[:, None]
    ids[inside] = np.concatenate(features.input_ids)
    target: Tensor | None = None
    if isinstance(features.labels, np.ndarray):
        # the options of a multiple-choice example share its target
        target = torch.from_numpy(features.labels.repeat(features.rows_per_example, 0)).to(device)
    elif features.labels is not None:
        table = np.full((len(total), longest), IGNORE_INDEX, dtype=np.int64)
        table[inside] = np.concatenate(features.labels)
        target = torch.from_numpy(table).to(device)
    return DeviceRows(
        ids=torch.from_numpy(ids).to(device),
        first=torch.from_numpy(features.segment_start).long().to(device),
        total=torch.from_numpy(total).to(device),
        target=target,
        rows_per_example=features.rows_per_example,
        token_targets=not isinstance(features.labels, np.ndarray),
    )
