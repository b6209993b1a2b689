"""Mask, sample, replace: how text becomes the discriminator's input (paper, section 2).

All shapes are static: each row has the same number of slots for masked positions, and `is_masked`
is False for slots that a short row does not use.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from electra.objectives.random import Purpose, uniform

Rounding = Literal["round", "ceil"]
MaskSampling = Literal["distinct", "repeated"]
Rate = float | Tensor
"""A mask rate; a CUDA graph reads it from an fp64 tensor with one element, which can change."""


class Masked(NamedTuple):
    """The generator's input and labels."""

    inputs: Tensor  # (batch, length) with [MASK] at most of the masked positions
    positions: Tensor  # (batch, slots)
    is_masked: Tensor  # (batch, slots) False for slots that the row does not use
    labels: Tensor  # (batch, slots) the original tokens


def max_masked(length: int, rate: float, rounding: Rounding) -> int:
    """Return the number of masked positions of a full row.

    With 'round' this is the formula of google-research/electra: 19 of 128, 79 of 512.
    """
    slots = math.ceil(rate * length) if rounding == "ceil" else int((rate + 0.005) * length)
    return min(max(1, slots), length)


def mask_counts(
    attention_mask: Tensor, candidates: Tensor, rate: Rate, rounding: Rounding
) -> Tensor:
    """Return how many positions each row masks: its share of the tokens, at least one."""
    length = attention_mask.shape[1]
    most: Rate
    if isinstance(rate, Tensor):  # `max_masked` in the same precision, so with the same result
        slots = (rate * length).ceil() if rounding == "ceil" else ((rate + 0.005) * length).floor()
        most, rate = slots.clamp_min(1), rate.float()
    else:
        most = max_masked(length, rate, rounding)
    wanted = attention_mask.sum(1) * rate
    wanted = wanted.ceil() if rounding == "ceil" else wanted.round()
    wanted = wanted.clamp_min(1).clamp_max(most)
    return torch.minimum(wanted.long(), candidates.sum(1))  # (batch,)


def sample_positions(
    candidates: Tensor, slots: int, sampling: MaskSampling, row_keys: Tensor
) -> Tensor:
    """Sample positions among the candidates; leftover slots get other positions."""
    if sampling == "repeated":  # as google-research/electra, which samples with replacement
        order = candidates.int().argsort(dim=1, descending=True, stable=True)  # candidates first
        count = candidates.sum(1, keepdim=True).clamp_min(1)
        random = uniform(row_keys, Purpose.MASK_POSITION, slots)
        index = torch.minimum((random * count).long(), count - 1)  # the product may round up
        return order.gather(1, index)
    random = uniform(row_keys, Purpose.MASK_POSITION, candidates.shape[1])
    # Random numbers are below 1, so all candidates rank above all other positions
    return (random + candidates).topk(slots, dim=1).indices  # (batch, slots)


def mask_tokens(
    ids: Tensor,
    attention_mask: Tensor,
    maskable: Tensor,
    mask_id: int,
    row_keys: Tensor,
    *,
    rate: Rate,
    top_rate: float = 0.0,
    mask_token_prob: float = 0.85,
    rounding: Rounding = "round",
    sampling: MaskSampling = "distinct",
) -> Masked:
    """Choose positions among the non-special tokens and replace most of them by [MASK].

    `maskable` (vocabulary,) is False for special tokens. With probability 1 - `mask_token_prob` a
    masked position keeps its token in the generator's input; it is predicted and replaced as well.
    If the rate changes during a run, `top_rate` is its highest value, which sets the slots.
    """
    candidates = attention_mask & maskable[ids]
    highest = top_rate if isinstance(rate, Tensor) else max(rate, top_rate)
    slots = max_masked(ids.shape[1], highest, rounding)
    counts = mask_counts(attention_mask, candidates, rate, rounding)
    positions = sample_positions(candidates, slots, sampling, row_keys)
    is_masked = torch.arange(slots, device=ids.device) < counts[:, None]
    hidden = is_masked & (uniform(row_keys, Purpose.MASK_TOKEN, slots) < mask_token_prob)
    inputs = scatter_tokens(ids, positions, torch.full_like(positions, mask_id), hidden)
    return Masked(inputs, positions, is_masked, ids.gather(1, positions))


def sample_tokens(
    logits: Tensor, temperature: float, random: Tensor, excluded: Tensor | None = None
) -> Tensor:
    """Sample one token per position from softmax(logits / temperature), in fp32.

    Samples a group of tokens, then a token of the group: `random` (2, ...) has two numbers per
    position. Gumbel noise needs one per token, which takes a tenth of a step's time on a CPU.
    """
    logits = logits.detach().float() / temperature
    if excluded is not None:
        logits = logits.scatter(-1, excluded[..., None], float("-inf"))
    probs = logits.softmax(-1)
    size = math.gcd(probs.shape[-1], 1024)
    probs = probs.unflatten(-1, (-1, size))  # (..., groups, tokens of a group)
    group = sample_categorical(probs.sum(-1), random[0])
    index = group[..., None, None].expand(*group.shape, 1, size)
    return group * size + sample_categorical(probs.gather(-2, index).squeeze(-2), random[1])


def sample_categorical(weights: Tensor, random: Tensor) -> Tensor:
    """Sample an index for each row of weights, from one random number in [0, 1) each."""
    # A GPU's parallel cumsum need not be monotonic: an entry without weight may lie below its
    # predecessor. Such an entry gets 0, so it is never sampled.
    cdf = torch.where(weights > 0, weights.cumsum(-1), 0.0)
    # A little below 1, so that the product stays below the last entry after rounding
    threshold = random * (1 - 2**-22) * cdf.amax(-1)
    above = cdf > threshold[..., None]
    return above.int().argmax(-1)  # the first entry above


def sampling_numbers(row_keys: Tensor, slots: int) -> Tensor:
    """Return the random numbers that `sample_tokens` needs, (2, batch, slots)."""
    purposes = (Purpose.SAMPLE_GROUP, Purpose.SAMPLE_TOKEN)
    return torch.stack([uniform(row_keys, purpose, slots) for purpose in purposes])


def scatter_tokens(ids: Tensor, positions: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """Return `ids` with `tokens` at `positions`, for the slots where `where` is True.

    If a position occurs twice, the larger id wins, on every device.
    differs from google-research/electra, which uses the mean of both ids, an arbitrary third token.
    """
    canvas = torch.full_like(ids, -1)
    canvas.scatter_reduce_(1, positions, torch.where(where, tokens, -1), "amax")
    return torch.where(canvas >= 0, canvas, ids)
