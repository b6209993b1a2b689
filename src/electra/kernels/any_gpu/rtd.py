"""The discriminator's head; the detection loss, its gradient, and the sums behind the metrics."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.gemm import gelu_at
from electra.kernels.any_gpu.reduce import (
    column_sums,
    num_programs,
    reduce_partials,
    tile,
    weight_grad,
)

BLOCK = 256
"""Tokens that one warp reads at once."""
NUM_SUMS, LOSS_INDEX = 10, 5
"""The number of sums, and the index of the loss among them."""
RTD_ELEMENTS = 4096
"""Elements of a tile of the head."""


class RtdHead(torch.autograd.Function):
    """gelu(x @ dense.t() + bias) . weight + shift in fp32: the discriminator's head.

    The GELU is computed again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dense: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> Tensor:
        cast_weight = dense.to(x.dtype)
        pre_gelu = x @ cast_weight.t()
        rows, width = pre_gelu.shape
        out = torch.empty(rows, device=x.device)
        block_n, block_m = tile(width, RTD_ELEMENTS)
        tensors = (pre_gelu, bias, weight, shift, out)
        rtd_head_kernel[(triton.cdiv(rows, block_m),)](
            *tensors, rows, width, block_m, block_n, num_warps=4
        )
        ctx.save_for_backward(x, cast_weight, pre_gelu, bias, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        x, cast_weight, pre_gelu, bias, weight = ctx.saved_tensors
        grad = grads[0].contiguous()
        rows, width = pre_gelu.shape
        grad_pre_gelu = torch.empty_like(pre_gelu)
        block_n, block_m = tile(width, RTD_ELEMENTS)
        parts = num_programs(triton.cdiv(rows, block_m), x.device, 2)
        partials = torch.empty(parts, 3, width, device=x.device)
        tensors = (grad, pre_gelu, bias, weight, grad_pre_gelu, partials)
        rtd_head_backward_kernel[(len(partials),)](
            *tensors, rows, width, block_m, block_n, num_warps=4
        )
        grad_weight, grad_bias, grad_shift = reduce_partials(partials, 0)
        grad_dense = weight_grad(grad_pre_gelu.t(), x)
        return (
            grad_pre_gelu @ cast_weight,
            grad_dense,
            grad_bias,
            grad_weight.view_as(weight),
            grad_shift[:1],
        )


@triton.jit
def rtd_head_kernel(
    pre_gelu, bias, weight, shift, out, rows, width, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    here = (row < rows)[:, None] & (col < width)[None, :]
    z = tl.load(pre_gelu + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    z += tl.load(bias + col, col < width, 0.0)[None, :]
    gelu_out, _ = gelu_at(z)
    gelu_out *= tl.load(weight + col, col < width, 0.0)[None, :]
    tl.store(out + row, tl.sum(gelu_out, 1) + tl.load(shift), row < rows)


@triton.jit
def rtd_head_backward_kernel(
    grad,
    pre_gelu,
    bias,
    weight,
    grad_pre_gelu,
    partials,
    rows,
    width,
    BLOCK_M: tl.constexpr,
    BLOCK: tl.constexpr,
):
    col = tl.arange(0, BLOCK)
    offset = tl.load(bias + col, col < width, 0.0)[None, :]
    gain = tl.load(weight + col, col < width, 0.0)[None, :]
    grad_weight = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    grad_bias = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    grad_shift = tl.zeros((BLOCK_M, 1), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & (col < width)[None, :]
        at = row[:, None] * width + col[None, :]
        g = tl.load(grad + row, row < rows, 0.0)[:, None]
        z = tl.load(pre_gelu + at, here, 0.0).to(tl.float32) + offset
        gelu_out, derivative = gelu_at(z)
        grad_weight += g * gelu_out
        grad_shift += g
        g = g * gain * derivative
        tl.store(grad_pre_gelu + at, g, here)
        grad_bias += g
    to = partials + tl.program_id(0) * 3 * width + col
    tl.store(to, column_sums(grad_weight), col < width)
    tl.store(to + width, column_sums(grad_bias), col < width)
    # A scalar, as the first element of a vector
    tl.store(to + 2 * width, tl.where(col == 0, tl.sum(grad_shift), 0.0), col < width)


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
