"""Run a model, or a stack of seeds, on all rows of a split."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from electra.device import autocast
from electra.finetune.batches import eval_batches
from electra.finetune.kinds.base import Arrays, TaskKind
from electra.finetune.rows import rows_to_device
from electra.models.heads import TaskModel
from electra.tasks.examples import Features


@torch.no_grad()
def infer(
    model: TaskModel,
    features: Features,
    kind: TaskKind,
    *,
    pad_id: int,
    device: torch.device,
    dtype: torch.dtype,
    seeds: int = 1,
    tokens: int = 0,
) -> list[Arrays]:
    """The outputs of all rows in their order, for each seed.

    A batch has about `tokens` tokens per seed, and rows of similar length.
    """
    lengths = np.array([len(row) for row in features.input_ids], dtype=np.int64)
    batches = list(eval_batches(lengths, tokens or (16384 if device.type == "cuda" else 1024)))
    rows = rows_to_device(features, pad_id, batches[0][0], device)
    parts: list[tuple[npt.NDArray[np.int64], dict[str, torch.Tensor]]] = []
    for length, index in batches:
        batch = rows.gather(torch.from_numpy(np.tile(index, seeds)).to(device), length)
        with autocast(device, dtype):
            hidden = model.encoder(batch.ids, batch.segments, batch.attention_mask)
            parts.append((index, kind.outputs(model.head, hidden, batch)))
    found: Arrays = {}
    for index, part in parts:
        for name, tensor in part.items():
            values = tensor.cpu().numpy().reshape(seeds, len(index), *tensor.shape[1:])
            if name not in found:  # the first batch is the longest, so the others fit in
                found[name] = np.zeros((seeds, len(lengths), *values.shape[2:]), values.dtype)
            place: Any = (slice(None), index, *(slice(n) for n in values.shape[2:]))
            found[name][place] = values
    return [{name: array[seed] for name, array in found.items()} for seed in range(seeds)]
