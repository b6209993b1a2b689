"""Mask, sample, replace: how a row of text becomes the discriminator's exercise (paper, section 2).

Every shape is static: each row gets the same number of slots, and slots that a short row does not
use have `is_masked` False.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Rounding = Literal["round", "ceil"]
MaskSampling = Literal["distinct", "repeated"]
Rate = float | Tensor
"""A share; where a CUDA graph reads it anew at each step, a tensor in fp64 with one element."""


class Masked(NamedTuple):
    """The generator's exercise."""

    inputs: Tensor  # (batch, length) with [MASK] at most of the drawn positions
    positions: Tensor  # (batch, slots)
    is_masked: Tensor  # (batch, slots) False for slots that the row does not use
    labels: Tensor  # (batch, slots) the true tokens


def max_masked(length: int, rate: float, rounding: Rounding) -> int:
    """Masked positions of a full row; with 'round' the original's formula: 19 at 128, 79 at 512."""
    slots = math.ceil(rate * length) if rounding == "ceil" else int((rate + 0.005) * length)
    return min(max(1, slots), length)


def mask_counts(
    attention_mask: Tensor, candidates: Tensor, rate: Rate, rounding: Rounding
) -> Tensor:
    """How many positions each row masks: its share of the real tokens, at least one."""
    length = attention_mask.shape[1]
    most: Rate
    if isinstance(rate, Tensor):  # `slots_for` in the same precision, so with the same result
        slots = (rate * length).ceil() if rounding == "ceil" else ((rate + 0.005) * length).floor()
        most, rate = slots.clamp_min(1), rate.float()
    else:
        most = max_masked(length, rate, rounding)
    wanted = attention_mask.sum(1) * rate
    wanted = wanted.ceil() if rounding == "ceil" else wanted.round()
    wanted = wanted.clamp_min(1).clamp_max(most)
    return torch.minimum(wanted.long(), candidates.sum(1))  # (batch,)


def sample_positions(candidates: Tensor, slots: int, draw: MaskSampling) -> Tensor:
    """Random positions; candidates come first, whatever has to fill the rest of the slots."""
    if draw == "repeated":  # as the released code, which draws a position more than once
        odds = candidates.float() + 1e-30  # a row without candidates must not stop the run
        return torch.multinomial(odds, slots, replacement=True)
    lottery = torch.rand(candidates.shape, device=candidates.device)
    # rand is below 1, so each candidate stands before everything that is none
    return (lottery + candidates).topk(slots, dim=1).indices  # (batch, slots)


def mask_tokens(
    ids: Tensor,
    attention_mask: Tensor,
    maskable: Tensor,
    mask_id: int,
    *,
    rate: Rate,
    top_rate: float = 0.0,
    shown: float = 0.85,
    rounding: Rounding = "round",
    draw: MaskSampling = "distinct",
) -> Masked:
    """Draw positions among the real, non-special tokens and hide most of them behind [MASK].

    `maskable` is a table (vocabulary,) that is False for the tokenizer's special tokens. A share of
    1 - `shown` keeps its true token in the generator's input; it is predicted and replaced as well.
    Where the rate changes in the course of a run, `top_rate` is its highest value: slots for that.
    """
    candidates = attention_mask & maskable[ids]
    highest = top_rate if isinstance(rate, Tensor) else max(rate, top_rate)
    slots = max_masked(ids.shape[1], highest, rounding)
    counts = mask_counts(attention_mask, candidates, rate, rounding)
    positions = sample_positions(candidates, slots, draw)
    is_masked = torch.arange(slots, device=ids.device) < counts[:, None]
    hidden = is_masked & (torch.rand(is_masked.shape, device=ids.device) < shown)
    inputs = put(ids, positions, torch.full_like(positions, mask_id), hidden)
    return Masked(inputs, positions, is_masked, ids.gather(1, positions))


def sample_tokens(logits: Tensor, temperature: float, excluded: Tensor | None = None) -> Tensor:
    """One token per position from softmax(logits / temperature), in fp32.

    A group of words is drawn, then a word of it: two random numbers for a position. One for each
    word, as Gumbel noise needs, took a tenth of a step's time on a CPU.
    """
    scores = logits.detach().float() / temperature
    if excluded is not None:
        scores = scores.scatter(-1, excluded[..., None], float("-inf"))
    odds = scores.softmax(-1)
    size = math.gcd(odds.shape[-1], 1024)
    odds = odds.unflatten(-1, (-1, size))  # (…, groups, words of a group)
    group = draw(odds.sum(-1))
    index = group[..., None, None].expand(*group.shape, 1, size)
    return group * size + draw(odds.gather(-2, index).squeeze(-2))


def draw(weights: Tensor) -> Tensor:
    """An index for each row, with chances in proportion to its weights."""
    # A GPU adds up the steps of the ladder in different orders, so that one without weight may lie
    # below the one before it: such a step is never the one.
    ladder = torch.where(weights > 0, weights.cumsum(-1), 0.0)
    # A little below 1, so that the product is below the top of the ladder after rounding too
    height = torch.rand(ladder.shape[:-1], device=ladder.device) * (1 - 2**-22)
    above = ladder > (height * ladder.amax(-1))[..., None]
    return above.int().argmax(-1)  # the first of them


def put(ids: Tensor, positions: Tensor, tokens: Tensor, where: Tensor) -> Tensor:
    """`ids` with `tokens` at `positions`, for the slots where `where` is True.

    A position drawn twice takes the larger id, on every device.
    differs from the released code: there the mean of both ids, an arbitrary third token, is put.
    """
    canvas = torch.full_like(ids, -1)
    canvas.scatter_reduce_(1, positions, torch.where(where, tokens, -1), "amax")
    return torch.where(canvas >= 0, canvas, ids)
