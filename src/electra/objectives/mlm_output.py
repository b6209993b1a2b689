"""Masked language models: predict the masked positions, score, sample."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Generator
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, sample_tokens, sampling_numbers
from electra.objectives.settings import ObjectiveConfig


class MlmOutput(NamedTuple):
    """What a masked language model returns for the masked positions."""

    loss: Tensor  # the cross-entropy of the original tokens, summed over the masked positions
    correct: Tensor  # (batch, slots) the most likely token is the original one
    samples: Tensor  # (batch, slots) sampled tokens, or the original ones without sampling


def mlm_output(
    network: Generator | FrequencyGenerator,
    inputs: Tensor,
    batch: Batch,
    masked: Masked,
    config: ObjectiveConfig,
    *,
    sample: bool,
) -> MlmOutput:
    """Run a masked language model; loss and samples come from the same logits, with dropout."""
    # 1. Logits at the masked positions
    logits = network(inputs, batch.segments, batch.doc_ids, masked.positions).float()
    # 2. Masked language modelling loss
    loss = cross_entropy_sum(logits, masked)
    # 3. Sampling
    samples = sample_replacements(logits, batch, masked, config) if sample else masked.labels
    return MlmOutput(loss, is_correct(logits, masked), samples)


def cross_entropy_sum(logits: Tensor, masked: Masked) -> Tensor:
    """Return the cross-entropy of the original tokens, summed over the masked positions."""
    nll = F.cross_entropy(logits.flatten(0, 1), masked.labels.flatten(), reduction="none")
    # `where`, not a product: an unused slot may hold a token with probability 0, and 0 x inf is NaN
    return torch.where(masked.is_masked.flatten(), nll, 0.0).sum()


@torch.no_grad()
def sample_replacements(
    logits: Tensor, batch: Batch, masked: Masked, config: ObjectiveConfig
) -> Tensor:
    """Sample a token for each slot, (batch, slots); no gradient passes the sampling."""
    excluded = masked.labels if config.disallow_correct else None
    random = sampling_numbers(batch.row_keys, masked.positions.shape[1])
    return sample_tokens(logits, config.temperature, random, excluded)


@torch.no_grad()
def is_correct(logits: Tensor, masked: Masked) -> Tensor:
    """Return where the most likely token is the original one, (batch, slots)."""
    return (logits.argmax(-1) == masked.labels) & masked.is_masked
