"""Loss of `regress`."""

import numpy as np
import pytest
import torch


@torch.no_grad()
def test_regress_loss(loss, task_model, features, batch_of, alone):
    values = np.array([0.0, 1.0, 0.5, -0.5, 0.25, 2.0], np.float32)
    model, rows = task_model("regress"), features(values)
    weight, bias = model.head.output.weight[0], model.head.output.bias[0]
    found = [(alone(model, rows, row)[0] @ weight + bias).item() for row in range(6)]
    total = sum((f - float(v)) ** 2 for f, v in zip(found, values, strict=True))
    assert loss(model, batch_of(rows), "regress").item() == pytest.approx(total, rel=1e-4)
