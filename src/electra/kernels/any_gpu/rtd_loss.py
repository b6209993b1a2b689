"""The detection loss, its slope, and all that a step of detection counts, in one pass."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.launch import programs

BLOCK = 256
"""Tokens that one warp looks at together."""
SUMS, LOSS = 10, 5
"""How many sums there are, and which of them is the loss."""


class Detect(torch.autograd.Function):
    """The summed loss and (10,) sums: those of `slots`, then those of tokens.

    scores, replaced, judged and real are (batch, length). `slots` are right, samples, truth and
    drawn, (batch, slots) each. The generator's loss is only passed on, into the sums.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, replaced: Tensor, loss_mask: Tensor, attention_mask: Tensor,
        mlm_loss: Tensor, *slots: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tokens = [t.contiguous() for t in (scores, replaced, loss_mask, attention_mask)]
        is_masked = [t.contiguous() for t in slots]
        slope = torch.empty_like(tokens[0])
        counts = scores.numel(), slots[0].numel()
        many = programs(triton.cdiv(max(counts), BLOCK), scores.device, 4)
        parts = torch.empty(SUMS, many, device=scores.device)
        tensors = (*tokens, mlm_loss, *is_masked, slope, parts)
        detect_kernel[(many,)](*tensors, *counts, BLOCK, num_warps=1)
        sums = parts.sum(1)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)  # no zeros for these
        return sums[LOSS], sums

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return slope * grads[0], *[None] * 8


@triton.jit
def detect_kernel(
    scores, replaced, loss_mask, attention_mask, mlm_loss, right, samples, truth, is_masked,
    slope, parts, tokens, slots, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums are kept for each place of a block: threads exchange nothing before the end."""
    program, many = tl.program_id(0), tl.num_programs(0)
    step = many * BLOCK
    each = program * BLOCK + tl.arange(0, BLOCK)
    masked = tl.zeros((BLOCK,), tl.float32)
    guessed = tl.zeros((BLOCK,), tl.float32)
    sampled = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, slots, step):
        at = first + each
        used = tl.load(is_masked + at, at < slots, 0)
        true = tl.load(truth + at, at < slots, 0) == tl.load(samples + at, at < slots, 0)
        masked += used.to(tl.float32)
        guessed += tl.load(right + at, at < slots, 0).to(tl.float32)
        sampled += (true & used).to(tl.float32)

    in_text = tl.zeros((BLOCK,), tl.float32)
    loss = tl.zeros((BLOCK,), tl.float32)
    changed = tl.zeros((BLOCK,), tl.float32)
    flagged = tl.zeros((BLOCK,), tl.float32)
    caught = tl.zeros((BLOCK,), tl.float32)
    counted = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, tokens, step):
        at = first + each
        score = tl.load(scores + at, at < tokens, 0.0)
        other = tl.load(replaced + at, at < tokens, 0)
        asked = tl.load(loss_mask + at, at < tokens, 0)
        in_text += tl.load(attention_mask + at, at < tokens, 0).to(tl.float32)
        # The cross-entropy is log(1 + exp(wrong)), and its slope sigmoid(wrong); only what is
        # below 1 goes through exp.
        wrong = tl.where(other, -score, score)
        small = tl.exp(-tl.abs(wrong))
        loss += tl.where(asked, tl.maximum(wrong, 0.0) + tl.log(1 + small), 0.0)
        chance = tl.where(wrong > 0, 1.0, small) / (1 + small)
        chance = tl.where(asked, tl.where(other, -chance, chance), 0.0)
        tl.store(slope + at, chance, at < tokens)
        flag = (score > 0) & asked
        changed += other.to(tl.float32)
        flagged += flag.to(tl.float32)
        caught += (flag & other).to(tl.float32)
        counted += asked.to(tl.float32)

    # In the order of the objective's names
    to = parts + program
    tl.store(to, tl.sum(masked, 0))
    tl.store(to + many, tl.where(program == 0, tl.load(mlm_loss), 0.0))
    tl.store(to + 2 * many, tl.sum(guessed, 0))
    tl.store(to + 3 * many, tl.sum(sampled, 0))
    tl.store(to + 4 * many, tl.sum(in_text, 0))
    tl.store(to + 5 * many, tl.sum(loss, 0))
    tl.store(to + 6 * many, tl.sum(changed, 0))
    tl.store(to + 7 * many, tl.sum(flagged, 0))
    tl.store(to + 8 * many, tl.sum(caught, 0))
    tl.store(to + 9 * many, tl.sum(counted, 0))
