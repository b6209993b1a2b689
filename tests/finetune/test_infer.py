"""Outputs of all rows of a split."""

import numpy as np
import pytest
import torch

from electra.finetune.infer import infer
from electra.tasks.examples import Features

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("kind", "head"),
    [("classify", "paper"), ("tag", "paper"), ("qa", "paper"), ("qa", "transformers")],
)
def test_outputs_do_not_depend_on_the_batches(kind, head, make, task_model):
    """All rows at once, and one by one in rows of several padded lengths."""
    rng = np.random.default_rng(2)
    sizes = [8, 31, 12, 18, 30, 9]  # all have more places than the beam takes
    rows = Features(
        input_ids=[rng.integers(5, 40, n).astype(np.int32) for n in sizes],
        segment_start=np.array([3] * 6, np.int32),
        labels=None,
        example_index=np.arange(6),
    )
    model = task_model(kind, head)
    given = {"pad_id": 0, "device": CPU, "dtype": torch.float32}
    (many,) = infer(model, rows, make(kind, beam_size=3), tokens=10_000, **given)
    (single,) = infer(model, rows, make(kind, beam_size=3), tokens=1, **given)
    for name, values in many.items():
        for row, size in enumerate(sizes):
            ours, theirs = values[row], single[name][row]
            if name == "tags":
                ours, theirs = ours[:size], theirs[:size]
            np.testing.assert_allclose(ours, theirs, atol=1e-4, err_msg=name)
