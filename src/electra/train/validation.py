"""Metrics on held-out text: dropout off, the same masks each time."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.device import autocast, random_state, set_random_state
from electra.objectives.objective import Objective
from electra.text.shards import Shards
from electra.train.diagnostics import accuracy_floor, run_diagnostics
from electra.train.distributed import ONE_RANK, Ranks

VALIDATION_STEP = -1
"""The step of validation's masks and samples, so that they are the same each time."""
COUNTED_AT_ONCE = 65_536
"""Rows in memory while tokens are counted."""


@torch.no_grad()
def validate(
    objective: Objective,
    rows: Tensor,
    micro_batch: int,
    dtype: torch.dtype,
    ranks: Ranks = ONE_RANK,
) -> dict[str, float]:
    """Corrupt held-out rows as in training and measure; the random state stays as it was.

    All ranks give the same `rows`, measure a share of them each, and return the same metrics.
    """
    device = objective.maskable.device
    before, was_training = random_state(device), objective.training
    torch.manual_seed(0)
    counter = objective.counter.clone()
    objective.set_seed(0)
    objective.eval()
    sums = torch.zeros(len(objective.metric_names), device=device)
    label_counts = torch.zeros(len(objective.maskable), dtype=torch.long, device=device)
    detections = []
    share = ranks.share(len(rows))
    for first_row in share[::micro_batch]:
        part = rows[first_row : min(first_row + micro_batch, share.stop)]
        objective.set_step(VALIDATION_STEP, first_row)  # masks do not depend on the ranks
        batch, masked, totals = objective.mask_batch(part.to(device))
        label_counts.scatter_add_(0, masked.labels.flatten(), masked.is_masked.flatten().long())
        with autocast(device, dtype):
            output = objective(batch, masked, totals)
        sums += output.metric_sums
        if output.logits is not None:
            detections.append((output.logits, output.replaced, output.loss_mask))
    diagnostics, fixed = run_diagnostics(objective, rows, micro_batch, dtype)
    objective.train(was_training)
    objective.counter.copy_(counter)
    set_random_state(before)
    ranks.sum_(sums)
    ranks.sum_(label_counts)
    metrics = objective.compute_metrics(
        dict(zip(objective.metric_names, sums.tolist(), strict=True))
    )
    own = None
    if detections:
        scores, replaced, loss_mask = map(torch.cat, zip(*detections, strict=True))
        own = [t[loss_mask].cpu().numpy() for t in (scores, replaced)]
    if found := [pair for pair in ranks.gather(own) if pair is not None]:
        metrics[objective.auc] = auc(*map(np.concatenate, zip(*found, strict=True)))
    if fixed is not None:
        metrics["fixed_auc"] = auc(*(t.cpu().numpy() for t in fixed))
    floor = accuracy_floor(objective, label_counts)
    name = "generator_accuracy" if "generator_accuracy" in metrics else "model_accuracy"
    if name in metrics and floor is not None:
        metrics["accuracy_floor"] = floor
        metrics["accuracy_above_floor"] = metrics[name] - floor
    return metrics | diagnostics


def auc(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """Return how often a replaced token scores above an original one; ties count half."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    _, index, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - (count - 1) / 2  # mean rank of each distinct score
    above = ranks[index][positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def token_counts(shards: Shards, rows: int) -> NDArray[np.float64]:
    """Count how often each id occurs in the training rows, without padding: (rows,)."""
    counts = np.zeros(rows)
    total = shards.rows("train")
    for begin in range(0, total, COUNTED_AT_ONCE):
        places = np.arange(begin, min(begin + COUNTED_AT_ONCE, total))
        part = shards.gather("train", places)
        ids = part[:, :-2][np.arange(shards.length) < part[:, -1:]]
        counts += np.bincount(ids, minlength=rows)
    return counts
