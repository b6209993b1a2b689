"""The generator's head; two passes over its logits give loss, sample, top prediction and gradient.

The GEMM writes the logits once. A program reads a row of them, reads it again while it is still in
L2, and overwrites it with the gradient of the cross-entropy.

`electra.kernels.cuda.fused_linear_cross_entropy` does not write logits at all.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.gemm import (
    NORM_BACKWARD_ELEMENTS,
    NORM_ELEMENTS,
    gelu_at,
    layernorm_backward_rows,
    layernorm_partials,
    layernorm_rows,
)
from electra.kernels.any_gpu.masking import SAMPLE_GROUP, SAMPLE_TOKEN, uniform_of_slot
from electra.kernels.any_gpu.random import sample_categorical
from electra.kernels.any_gpu.reduce import reduce_partials, sum_row_groups, tile, weight_grad
from electra.kernels.cuda.fused_linear_cross_entropy import (
    TileSchedule,
    count_partials,
    cross_entropy_dlogits,
    cross_entropy_forward,
)

GROUP, WARPS = 4096, 16
"""Tokens of the vocabulary that are read together, and by how many warps."""
RUN = 8
"""Adjacent tokens that one thread reads."""
COLUMNS = 8
"""Columns for the bias's gradient, so that rows stay aligned to 16 bytes."""
SCALE_ELEMENTS = 2048
"""Elements of a tile of `scale_grads`."""
LOG2E = tl.constexpr(1.4426950408889634)


class MlmHead(torch.autograd.Function):
    """LayerNorm(gelu(x @ weight.t() + bias)), the generator's head before the token table.

    The GELU is computed again in the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dense: Tensor, bias: Tensor, weight: Tensor, shift: Tensor, eps: float
    ) -> Tensor:
        cast_weight = dense.to(x.dtype)
        pre_gelu = x @ cast_weight.t()
        rows, width = pre_gelu.shape
        out = torch.empty_like(pre_gelu)
        block_n, block_m = tile(width, NORM_ELEMENTS)
        tensors = (pre_gelu, bias, weight, shift, out)
        mlm_head_kernel[(triton.cdiv(rows, block_m),)](
            *tensors, rows, width, eps, block_m, block_n, num_warps=4
        )
        ctx.save_for_backward(x, cast_weight, pre_gelu, bias, weight)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, cast_weight, pre_gelu, bias, weight = ctx.saved_tensors
        grad = grads[0].contiguous()  # the gradient of a sum is expanded
        rows, width = pre_gelu.shape
        grad_pre_gelu = torch.empty_like(pre_gelu)
        partials = torch.empty(layernorm_partials(rows, width, x.device), 3, width, device=x.device)
        block_n, block_m = tile(width, NORM_BACKWARD_ELEMENTS)
        row_groups = max(1, 256 // block_n)  # a warp reads 256 numbers at once
        tensors = (grad, pre_gelu, bias, weight, grad_pre_gelu, partials)
        mlm_head_backward_kernel[(len(partials),)](
            *tensors,
            rows,
            width,
            ctx.eps,
            row_groups,
            block_m,
            block_n,
            num_warps=max(1, block_n // NORM_BACKWARD_ELEMENTS),
        )
        grad_weight, grad_shift, grad_bias = reduce_partials(partials, 0)
        grad_dense = weight_grad(grad_pre_gelu.t(), x)
        return grad_pre_gelu @ cast_weight, grad_dense, grad_bias, grad_weight, grad_shift, None


@triton.jit
def mlm_head_kernel(
    pre_gelu, bias, weight, shift, out, rows, width: tl.constexpr, eps,
    BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    # The width is a constexpr: comparisons that hold for all columns are optimised away.
    inside = (col < width) | (width == BLOCK)
    here = (row < rows)[:, None] & inside[None, :]
    at = row[:, None] * width + col[None, :]
    z = tl.load(pre_gelu + at, here, 0.0).to(tl.float32)
    z += tl.load(bias + col, inside, 0.0)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    shift_row = tl.load(shift + col, inside, 0.0)[None, :]
    gelu_out, _ = gelu_at(z)
    n, _ = layernorm_rows(gelu_out, inside[None, :], width, eps)
    tl.store(out + at, n * gain + shift_row, here)


@triton.jit
def mlm_head_backward_kernel(
    grad, pre_gelu, bias, weight, grad_pre_gelu, partials, rows, width: tl.constexpr, eps,
    ROW_GROUPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums are kept per row group: the rows of a tile that different threads hold."""
    col = tl.arange(0, BLOCK)
    inside = (col < width) | (width == BLOCK)
    offset = tl.load(bias + col, inside, 0.0)[None, :]
    gain = tl.load(weight + col, inside, 0.0)[None, :]
    grad_weight = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    grad_shift = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    grad_bias = tl.zeros((ROW_GROUPS, BLOCK), tl.float32)
    for first in range(tl.program_id(0) * BLOCK_M, rows, tl.num_programs(0) * BLOCK_M):
        row = first + tl.arange(0, BLOCK_M)
        here = (row < rows)[:, None] & inside[None, :]
        at = row[:, None] * width + col[None, :]
        z = tl.load(pre_gelu + at, here, 0.0).to(tl.float32) + offset
        g = tl.load(grad + at, here, 0.0).to(tl.float32)  # loaded before z is used
        gelu_out, gelu_grad = gelu_at(z)
        n, inv_std = layernorm_rows(gelu_out, inside[None, :], width, eps)
        grad_weight += sum_row_groups(g * n, ROW_GROUPS)
        grad_shift += sum_row_groups(g, ROW_GROUPS)
        g = layernorm_backward_rows(g * gain, n, inv_std, width) * gelu_grad
        tl.store(grad_pre_gelu + at, g, here)
        grad_bias += sum_row_groups(g, ROW_GROUPS)
    to = partials + tl.program_id(0) * 3 * width + col
    tl.store(to, tl.sum(grad_weight, 0), inside)
    tl.store(to + width, tl.sum(grad_shift, 0), inside)
    tl.store(to + 2 * width, tl.sum(grad_bias, 0), inside)


class MlmLoss(torch.autograd.Function):
    """Loss and predictions of a masked language model at some slots; `mlm_loss_` has the results.

    hidden (slots, width); table (vocab, width) and its copy in the precision of `hidden`; bias and
    absent (vocab,), the latter True for ids that no token has; labels, is_masked and other
    (slots,); row_keys (rows,), of rows that have equally many slots. `cuda` selects the kernels
    that do not write logits. Only the losses have a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, copy: Tensor, bias: Tensor, absent: Tensor,
        labels: Tensor, is_masked: Tensor, other: Tensor, row_keys: Tensor, temperature: float,
        disallow_correct: bool, cuda: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        saved: tuple[Tensor, ...]
        if cuda:
            outputs, saved = cross_entropy_forward(
                hidden, copy, bias, absent, labels, is_masked, other, row_keys
            )
        else:
            # A token without probability has no gradient: the backward pass needs no mask.
            bias = bias.to(hidden.dtype, copy=True).masked_fill_(absent, float("-inf"))
            logits = torch.addmm(bias, hidden, copy.t())
            outputs = mlm_loss_(
                logits, labels, is_masked, other, row_keys, temperature, disallow_correct
            )
            saved = (logits,)
        ctx.cuda = cuda
        ctx.save_for_backward(hidden, copy, *saved)
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)  # no zeros for the other outputs
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, copy, *saved = ctx.saved_tensors
        if ctx.cuda:
            dlogits, partials, schedule = cross_entropy_dlogits(hidden, copy, *saved)
        else:
            (dlogits,) = saved
            partials, schedule = (dlogits @ copy)[None], TileSchedule.single(len(hidden))
        grad_hidden, wider = scale_grads(partials, schedule, hidden, grads[0])
        # The bias's gradient is one more column of the table's: almost free, where a pass over the
        # logits would take longer than the GEMM.
        vocab, width = copy.shape
        both = weight_grad(dlogits.t(), wider)[:vocab]
        return grad_hidden, both[:, :width], None, both[:, width], *[None] * 8


def scale_grads(
    partials: Tensor, schedule: TileSchedule, hidden: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor]:
    """Multiply rows by the gradients of their losses, `factor` (rows,).

    Returns the sum of partials (parts, rows, width), the gradient of `hidden`, and `hidden` with
    columns of factors appended. `dlogits` are those of each row's own loss: it is cheaper to scale
    the narrow tensors.
    """
    rows, width = hidden.shape
    wider, grad_hidden = hidden.new_empty(rows, width + COLUMNS), torch.empty_like(hidden)
    block_n, block_m = tile(width + COLUMNS, SCALE_ELEMENTS)
    tensors = (partials, hidden, factor, grad_hidden, wider)
    scale_grads_kernel[(triton.cdiv(rows, block_m),)](
        *tensors, factor.stride(0), len(partials), *schedule, rows, width, width + COLUMNS,
        block_m, block_n, num_warps=4,
    )  # fmt: skip
    return grad_hidden, wider


@triton.jit
def scale_grads_kernel(
    partials, hidden, factor, grad_hidden, wider, step, most, programs, across, units, rows,
    width: tl.constexpr, wide: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`step` is 0 where one number is the factor of all rows, `most` the number of partial sums."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, BLOCK)
    valid = (row < rows)[:, None]
    here = valid & (col < width)[None, :]
    at = row[:, None] * width + col[None, :]
    weight = tl.load(factor + row * step, row < rows, 0.0)[:, None]
    count = count_partials(row, programs, across, units)[:, None]
    g = tl.zeros((BLOCK_M, BLOCK), tl.float32)
    for part in range(most):
        g += tl.load(partials + part * rows * width + at, here & (part < count), 0.0).to(tl.float32)
    h = tl.load(hidden + at, here, 1.0).to(tl.float32)
    tl.store(grad_hidden + at, g * weight, here)
    tl.store(wider + row[:, None] * wide + col[None, :], h * weight, valid & (col < wide)[None, :])


def mlm_loss_(
    logits: Tensor, labels: Tensor, is_masked: Tensor, other: Tensor, row_keys: Tensor,
    temperature: float, disallow_correct: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """For each row: the loss, 0 if not masked; a sample; the top prediction; and the
    log-probabilities of it and of `other` (rows, 2). Overwrites `logits` with their gradient.

    A row of `logits` is a slot of a row of the batch, whose key determines the sample.
    """
    rows, vocab = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    samples, best = torch.empty_like(labels), torch.empty_like(labels)
    log_probs = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
    tensors = (logits, labels, is_masked, other, row_keys, losses, samples, best, log_probs)
    same = temperature == 1 and not disallow_correct
    inv_temperature = LOG2E.value / temperature
    times = triton.next_power_of_2(triton.cdiv(vocab, GROUP))
    mlm_loss_kernel[(rows,)](
        *tensors, rows // len(row_keys), vocab, inv_temperature, same, disallow_correct,
        GROUP // RUN, RUN, times, num_warps=WARPS,
    )  # fmt: skip
    return losses, samples, best, log_probs


@triton.jit
def mlm_loss_kernel(
    logits, labels, is_masked, other, row_keys, losses, samples, best, log_probs, slots,
    vocab: tl.constexpr, inv_temperature, same: tl.constexpr, exclude: tl.constexpr,
    LANES: tl.constexpr, RUN: tl.constexpr, TIMES: tl.constexpr,
):  # fmt: skip
    """`same`: samples have the distribution of the loss.

    A lane is what one thread reads of a row: RUN adjacent tokens in each group, of which there are
    at most TIMES. Lanes keep to themselves until the row has been read: an exchange between threads
    for each group would take longer than everything else.
    """
    row = tl.program_id(0)
    row_logits = logits + row.to(tl.int64) * vocab
    label = tl.load(labels + row).to(tl.int32)
    masked = tl.load(is_masked + row)
    lane = tl.arange(0, LANES) * RUN
    run = tl.arange(0, RUN)
    each = lane[:, None] + run[None, :]
    lane_max = tl.full((LANES,), -1e30, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    sample_total = tl.zeros((LANES,), tl.float32)
    sample_max = tl.full((LANES,), -1e30, tl.float32)  # of the tokens that may be the sample
    max_group = tl.zeros((LANES,), tl.int32)  # the group in which `lane_max` is
    for start in range(0, vocab, LANES * RUN):
        col = start + each
        x = tl.load(row_logits + col, col < vocab, -float("inf")).to(tl.float32)
        new_max = tl.max(x, 1)
        max_group = tl.where(new_max > lane_max, start, max_group)
        new_max = tl.maximum(lane_max, new_max)
        total = total * tl.exp2((lane_max - new_max) * LOG2E)
        total += tl.sum(tl.exp2((x - new_max[:, None]) * LOG2E), 1)
        if not same:
            x = allowed(x, col, label, exclude)
            old_max = sample_max
            sample_max = tl.maximum(sample_max, tl.max(x, 1))
            sample_total = sample_total * tl.exp2((old_max - sample_max) * inv_temperature)
            sample_total += tl.sum(tl.exp2((x - sample_max[:, None]) * inv_temperature), 1)
        lane_max = new_max
    max_logit = tl.max(lane_max, 0)
    total *= tl.exp2((lane_max - max_logit) * LOG2E)
    if same:
        sample_total = total
    else:
        sample_total *= tl.exp2((sample_max - tl.max(sample_max, 0)) * inv_temperature)
    total = tl.sum(total, 0)
    # The first run with the highest logit, and its first token.
    first = tl.min(tl.where(lane_max == max_logit, max_group + lane, vocab), 0)
    best_run = first + run
    best_logits = tl.load(row_logits + best_run, best_run < vocab, -float("inf")).to(tl.float32)
    best_token = tl.min(tl.where(best_logits == max_logit, best_run, vocab), 0)
    label_logit = tl.load(row_logits + label).to(tl.float32)
    other_logit = tl.load(row_logits + tl.load(other + row)).to(tl.float32)
    # First a lane by its probability, then a token of that lane: so the 24 bits of a random number
    # reach rarer tokens.
    number = uniform_of_slot(row_keys, row, slots, SAMPLE_GROUP)
    chosen_lane = sample_categorical(sample_total, number) * RUN
    index = tl.arange(0, TIMES * RUN)
    lane_cols = chosen_lane + index // RUN * (LANES * RUN) + index % RUN
    lane_logits = tl.load(row_logits + lane_cols, lane_cols < vocab, -float("inf")).to(tl.float32)
    lane_logits = allowed(lane_logits, lane_cols, label, exclude)
    exp_scores = tl.exp2((lane_logits - tl.max(lane_logits, 0)) * inv_temperature)
    number = uniform_of_slot(row_keys, row, slots, SAMPLE_TOKEN)
    index = sample_categorical(exp_scores, number)
    tl.store(samples + row, chosen_lane + index // RUN * (LANES * RUN) + index % RUN)
    # Not a product: an unused slot may hold a token without probability.
    log_total = tl.log(total)  # above `max_logit`, in whose scale nothing is lost
    tl.store(losses + row, tl.where(masked, max_logit - label_logit + log_total, 0.0))
    tl.store(log_probs + 2 * row, -log_total)
    tl.store(log_probs + 2 * row + 1, other_logit - max_logit - log_total)
    tl.store(best + row, best_token)
    weight = tl.where(masked, 1.0, 0.0)
    inv_total = weight / total
    tl.debug_barrier()  # all threads have read what others overwrite in the second pass
    for start in range(0, vocab, LANES * RUN):
        col = start + each
        x = tl.load(row_logits + col, col < vocab, -float("inf")).to(tl.float32)
        tl.store(row_logits + col, tl.exp2((x - max_logit) * LOG2E) * inv_total, col < vocab)
    tl.debug_barrier()
    tl.store(row_logits + label, tl.exp2((label_logit - max_logit) * LOG2E) * inv_total - weight)


@triton.jit
def allowed(x, col, label, exclude: tl.constexpr):
    """The logits from which a sample is drawn."""
    if exclude:
        x = tl.where(col == label, -float("inf"), x)
    return x
