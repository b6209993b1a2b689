"""Loss of `choice`."""

import numpy as np
import pytest
import torch


@torch.no_grad()
@pytest.mark.parametrize("head", ["paper", "transformers"])
def test_choice_loss(head, loss, task_model, features, batch_of, alone):
    model, rows = task_model("choice", head), features(np.array([2, 0]), rows_per_example=3)
    total = 0.0
    for example, right in enumerate(rows.labels):
        scores = []
        for option in range(3):
            hidden = alone(model, rows, 3 * example + option)
            attention_mask = torch.ones(1, len(hidden), dtype=torch.bool)
            scores.append(model.head(hidden[None], attention_mask).item())
        total -= torch.tensor(scores).log_softmax(0)[right].item()
    found = loss(model, batch_of(rows), "choice")
    assert found.item() == pytest.approx(total, rel=1e-4)
