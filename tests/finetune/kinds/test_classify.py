"""Loss of `classify`."""

import numpy as np
import pytest
import torch


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_classify_loss(head, loss, task_model, features, batch_of, alone):
    model, rows = task_model("classify", head), features(np.array([0, 2, 1, 1, 0, 2]))
    total = 0.0
    for row, label in enumerate(rows.labels):
        hidden = alone(model, rows, row)
        scores = model.head(hidden[None], torch.ones(1, len(hidden), dtype=torch.bool))[0]
        total -= scores.log_softmax(0)[label].item()
    assert loss(model, batch_of(rows), "classify").item() == pytest.approx(total, rel=1e-4)
