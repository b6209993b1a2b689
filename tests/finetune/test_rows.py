"""Rows on the device, and the batches gathered from them."""

import numpy as np
import torch

from electra.finetune.rows import rows_to_device
from electra.tasks.examples import IGNORE_INDEX

CPU = torch.device("cpu")


def test_answer_mask(features, batch_of):
    rows = features(None)
    allowed = batch_of(rows).answer_mask
    for row, ids in enumerate(rows.input_ids):
        # [CLS], then the second segment but for its [SEP]
        wanted = [0, *range(rows.segment_start[row], len(ids) - 1)]
        assert allowed[row].nonzero()[:, 0].tolist() == wanted


def test_gather_rows(features):
    each = rows_to_device(features(np.array([2, 0]), rows_per_example=3), 0, 16, CPU)
    assert each.target.tolist() == [2, 2, 2, 0, 0, 0]  # the options share the target
    tags = [np.arange(n, dtype=np.int64) for n in map(len, features(None).input_ids)]
    rows = features(tags)
    batch = rows_to_device(rows, 9, 32, CPU).gather(torch.tensor([4, 1, 4]), 16)
    assert batch.ids.shape == batch.target.shape == (3, 16)
    assert batch.ids[0].tolist() == [*rows.input_ids[4].tolist(), *[9] * 11]
    assert batch.ids[1].tolist() == [*rows.input_ids[1].tolist(), *[9] * 4]
    assert torch.equal(batch.ids[0], batch.ids[2])
    assert batch.target[0].tolist() == [*range(5), *[IGNORE_INDEX] * 11]
    assert batch.attention_mask.sum(1).tolist() == [5, 12, 5]
    assert (batch.segments == 0).sum(1).tolist() == [2, 5, 2]
    spans = np.array([(n, n + 1, 0) for n in range(6)])
    batch = rows_to_device(features(spans), 0, 16, CPU).gather(torch.tensor([3]), 16)
    assert batch.target.tolist() == [[3, 4, 0]]
    assert rows_to_device(features(None), 0, 16, CPU).gather(torch.tensor([3]), 16).target is None
