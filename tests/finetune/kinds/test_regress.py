"""`regress`: loss and the scale of the values."""

import io
import random
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from electra.errors import UserError
from electra.finetune.run import finetune
from electra.tasks.load import load_task


@torch.no_grad()
def test_regress_loss(loss, task_model, features, batch_of, alone):
    values = np.array([0.0, 1.0, 0.5, -0.5, 0.25, 2.0], np.float32)
    model, rows = task_model("regress"), features(values)
    weight, bias = model.head.output.weight[0], model.head.output.bias[0]
    found = [(alone(model, rows, row)[0] @ weight + bias).item() for row in range(6)]
    total = sum((f - float(v)) ** 2 for f, v in zip(found, values, strict=True))
    assert loss(model, batch_of(rows), "regress").item() == pytest.approx(total, rel=1e-4)


def test_constant_regression_targets_are_refused(model_folder, quick, tmp_path, console):
    path = tmp_path / "same.csv"
    rows = [f"{word} dig,2.5" for word in ("old", "young", "tired", "proud", "clever", "quiet") * 4]
    path.write_text("\n".join(["text,score", *rows]) + "\n")
    with pytest.raises(UserError, match=r"All values to learn are 2\.5"):
        finetune(
            str(model_folder), load_task("regress", path), tmp_path / "out", [0], quick, console
        )
    assert not (tmp_path / "out").exists()


def test_regression_with_large_values(model_folder, quick, tmp_path):
    rng = random.Random(0)
    for split, count in (("train", 240), ("dev", 40)):
        lines = ["text,score"]
        for _ in range(count):
            marks = [rng.choice(("bread", "cargo")) for _ in range(4)]
            lines.append(f"{' '.join(marks)},{-5000 + 1000 * marks.count('bread')}")
        (tmp_path / f"{split}.csv").write_text("\n".join(lines) + "\n")
    task = load_task("regress", tmp_path)
    console = Console(file=io.StringIO())
    longer = replace(quick, epochs=16)
    found = finetune(str(model_folder), task, tmp_path / "out", [0, 1, 2], longer, console)
    assert all(result["metric"] == "spearman" for result in found)
    assert statistics.median(result["spearman"] for result in found) > 0.9
    # of values from -5000 to -1000
    assert statistics.median(result["mse"] for result in found) < 500**2
    assert not any(result["failed"] for result in found)
