"""Held-out figures of both networks: dropout off, the same masks each time."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.objectives.batch import unpack
from electra.objectives.rtd import SUMS, ReplacedTokenDetection, summarise, totals_of
from electra.train.device import autocast, random_state, set_random_state


@torch.no_grad()
def validate(
    objective: ReplacedTokenDetection, rows: Tensor, micro_batch: int, dtype: torch.dtype
) -> dict[str, float]:
    """Corrupt held-out rows as in training and measure; the run's random state is put back."""
    device = objective.maskable.device
    before, was_training = random_state(device), objective.training
    torch.manual_seed(0)
    objective.eval()
    sums = torch.zeros(len(SUMS), device=device)
    scores, replaced = [], []
    for part in rows.split(micro_batch):
        batch = unpack(part.to(device))
        masked = objective.mask(batch)
        with autocast(device, dtype):
            outcome = objective(batch, masked, totals_of(batch, masked))
        sums += outcome.sums
        scores.append(outcome.scores[batch.real].cpu())
        replaced.append(outcome.replaced[batch.real].cpu())
    objective.train(was_training)
    set_random_state(before)
    metrics = summarise(dict(zip(SUMS, sums.tolist(), strict=True)), objective.config)
    metrics["auc"] = auc(torch.cat(scores).numpy(), torch.cat(replaced).numpy())
    return metrics


def auc(scores: NDArray[np.float32], positive: NDArray[np.bool_]) -> float:
    """The chance that a replaced token scores above an original one, ties counting half."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = np.cumsum(count) - (count - 1) / 2  # mean rank of each distinct score
    above = ranks[place][positive].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def unigram_entropy(rows: NDArray[np.integer], special: tuple[int, ...]) -> float:
    """Loss of guessing words by their frequency alone: what a generator has to beat."""
    counts = np.bincount(rows[:, :-2].ravel())
    counts[[i for i in special if i < len(counts)]] = 0
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum())
