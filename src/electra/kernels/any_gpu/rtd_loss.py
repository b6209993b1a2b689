"""The detection loss, its gradient, and the sums behind the metrics, in one pass."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.reduce import num_programs

BLOCK = 256
"""Tokens that one warp reads at once."""
NUM_SUMS, LOSS_INDEX = 10, 5
"""The number of sums, and the index of the loss among them."""


class RtdLoss(torch.autograd.Function):
    """The summed loss, and (10,) sums in the order of the objective's `metric_names`.

    logits, replaced, loss_mask and attention_mask are (batch, length); `slots` are correct,
    samples, labels and is_masked, (batch, slots) each. `mlm_loss` becomes one of the sums.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, replaced: Tensor, loss_mask: Tensor, attention_mask: Tensor,
        mlm_loss: Tensor, *slots: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        tokens = [t.contiguous() for t in (logits, replaced, loss_mask, attention_mask)]
        contiguous_slots = [t.contiguous() for t in slots]
        dlogits = torch.empty_like(tokens[0])
        counts = logits.numel(), slots[0].numel()
        programs = num_programs(triton.cdiv(max(counts), BLOCK), logits.device, 4)
        partials = torch.empty(NUM_SUMS, programs, device=logits.device)
        tensors = (*tokens, mlm_loss, *contiguous_slots, dlogits, partials)
        rtd_loss_kernel[(programs,)](*tensors, *counts, BLOCK, num_warps=1)
        sums = partials.sum(1)
        ctx.save_for_backward(dlogits)
        ctx.mark_non_differentiable(sums)
        ctx.set_materialize_grads(False)  # no zeros for the sums
        return sums[LOSS_INDEX], sums

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        (dlogits,) = ctx.saved_tensors
        return dlogits * grads[0], *[None] * 8


@triton.jit
def rtd_loss_kernel(
    logits, replaced, loss_mask, attention_mask, mlm_loss, correct, samples, labels, is_masked,
    dlogits, partials, tokens, slots, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums are kept per element of a block: threads exchange nothing before the end."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    step = programs * BLOCK
    each = program * BLOCK + tl.arange(0, BLOCK)
    masked = tl.zeros((BLOCK,), tl.float32)
    guessed = tl.zeros((BLOCK,), tl.float32)
    sampled = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, slots, step):
        at = first + each
        used = tl.load(is_masked + at, at < slots, 0)
        true = tl.load(labels + at, at < slots, 0) == tl.load(samples + at, at < slots, 0)
        masked += used.to(tl.float32)
        guessed += tl.load(correct + at, at < slots, 0).to(tl.float32)
        sampled += (true & used).to(tl.float32)

    in_text = tl.zeros((BLOCK,), tl.float32)
    loss = tl.zeros((BLOCK,), tl.float32)
    changed = tl.zeros((BLOCK,), tl.float32)
    flagged = tl.zeros((BLOCK,), tl.float32)
    caught = tl.zeros((BLOCK,), tl.float32)
    counted = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, tokens, step):
        at = first + each
        logit = tl.load(logits + at, at < tokens, 0.0)
        is_replaced = tl.load(replaced + at, at < tokens, 0)
        in_loss = tl.load(loss_mask + at, at < tokens, 0)
        in_text += tl.load(attention_mask + at, at < tokens, 0).to(tl.float32)
        # The cross-entropy is log(1 + exp(wrong)) and its derivative sigmoid(wrong); exp gets
        # negative numbers only.
        wrong = tl.where(is_replaced, -logit, logit)
        small = tl.exp(-tl.abs(wrong))
        loss += tl.where(in_loss, tl.maximum(wrong, 0.0) + tl.log(1 + small), 0.0)
        grad = tl.where(wrong > 0, 1.0, small) / (1 + small)
        grad = tl.where(in_loss, tl.where(is_replaced, -grad, grad), 0.0)
        tl.store(dlogits + at, grad, at < tokens)
        flag = (logit > 0) & in_loss
        changed += is_replaced.to(tl.float32)
        flagged += flag.to(tl.float32)
        caught += (flag & is_replaced).to(tl.float32)
        counted += in_loss.to(tl.float32)

    # In the order of the objective's `metric_names`
    to = partials + program
    tl.store(to, tl.sum(masked, 0))
    tl.store(to + programs, tl.where(program == 0, tl.load(mlm_loss), 0.0))
    tl.store(to + 2 * programs, tl.sum(guessed, 0))
    tl.store(to + 3 * programs, tl.sum(sampled, 0))
    tl.store(to + 4 * programs, tl.sum(in_text, 0))
    tl.store(to + 5 * programs, tl.sum(loss, 0))
    tl.store(to + 6 * programs, tl.sum(changed, 0))
    tl.store(to + 7 * programs, tl.sum(flagged, 0))
    tl.store(to + 8 * programs, tl.sum(caught, 0))
    tl.store(to + 9 * programs, tl.sum(counted, 0))
