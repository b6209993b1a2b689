"""Loss, sample, best guess and gradient of a masked language model from two looks at its logits.

The logits are written once, by the product. A program reads a row of them, reads it again while it
is still in the cache, and puts the gradient of the cross-entropy in its place.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.body import cast_all, product
from electra.models.kernels.dropout import draw_seeds, random_bits
from electra.models.kernels.launch import programs

GROUP, WARPS = 4096, 8
"""Words that are looked at together, and by how many warps."""
SUM = {"TALL": 16, "WIDE": 256}
"""Rows and words of a tile, where the bias's gradient is added up."""
LOG2E = tl.constexpr(1.4426950408889634)


class Guess(torch.autograd.Function):
    """What a masked language model says of some slots; see `read_logits_` for the four results.

    hidden (slots, width), table (words, width), bias (words,) with -inf for ids that no token has;
    truth, drawn and other (slots,). Only the first result, the losses, has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, truth: Tensor, drawn: Tensor,
        other: Tensor, temperature: float, exclude_true: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        table, bias = cast_all([table, bias], hidden.dtype)
        logits = torch.addmm(bias, hidden, table.t())
        found = read_logits_(logits, truth, drawn, other, temperature, exclude_true)
        ctx.save_for_backward(hidden, table, logits)
        ctx.mark_non_differentiable(*found[1:])
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, table, slopes = ctx.saved_tensors
        # A row's slope is that of its own loss: the factors go to what is narrow.
        grad = grads[0].contiguous()
        factor = grad[:, None].to(hidden.dtype)
        of_hidden = (slopes @ table) * factor
        of_table = product(slopes.t(), hidden * factor)
        rows, words = slopes.shape
        parts = programs(triton.cdiv(rows, SUM["TALL"]), grad.device, 8 / (words / SUM["WIDE"]))
        sums = torch.empty(parts, words, device=grad.device)
        grid = (triton.cdiv(words, SUM["WIDE"]), parts)
        bias_backward_kernel[grid](slopes, grad, sums, rows, words, **SUM)
        return of_hidden, of_table, sums.sum(0), None, None, None, None, None


def read_logits_(
    logits: Tensor, truth: Tensor, drawn: Tensor, other: Tensor, temperature: float,
    exclude_true: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of each row: its loss, 0 if not drawn; a sample; the best guess; and the logarithms of the
    best guess's probability and of that of `other` (rows, 2). `logits` becomes the gradient."""
    rows, words = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    samples, best = torch.empty_like(truth), torch.empty_like(truth)
    logs = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
    (seed,) = draw_seeds(1, logits.device)
    tensors = (logits, truth, drawn, other, losses, samples, best, logs, seed)
    same = temperature == 1 and not exclude_true
    sharpness = LOG2E.value / temperature
    read_logits_kernel[(rows,)](
        *tensors, words, sharpness, same, exclude_true, GROUP, num_warps=WARPS
    )
    return losses, samples, best, logs


@triton.jit
def read_logits_kernel(
    logits, truth, drawn, other, losses, samples, best, logs, seed, words, sharpness,
    same: tl.constexpr, exclude: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`same`: the distribution of the samples is that of the loss."""
    row = tl.program_id(0)
    here = logits + row.to(tl.int64) * words
    true = tl.load(truth + row).to(tl.int32)
    counts = tl.load(drawn + row)
    lane = tl.arange(0, GROUP)
    high = tl.full((), -1e30, tl.float32)
    total = tl.zeros((), tl.float32)
    mass = tl.zeros((), tl.float32)
    guess = tl.zeros((), tl.int32)
    for start in range(0, words, GROUP):
        col = start + lane
        x = tl.load(here + col, col < words, -float("inf")).to(tl.float32)
        top = tl.max(x, 0)
        if top > high:
            guess = start + tl.argmax(x, 0)
            total *= tl.exp2((high - top) * LOG2E)
            mass *= tl.exp2((high - top) * sharpness)
            high = top
        total += tl.sum(tl.exp2((x - high) * LOG2E), 0)
        if not same:
            mass += tl.sum(chances(x, col, true, high, sharpness, exclude), 0)
    if same:
        mass = total
    there = tl.load(here + true).to(tl.float32)
    beside = tl.load(here + tl.load(other + row)).to(tl.float32)
    tl.debug_barrier()  # all threads have read them; the second look overwrites them
    # Not a product: a slot that is not used may hold a token that has no probability at all.
    level = tl.log(total)  # above `high`, in whose scale nothing is lost
    tl.store(losses + row, tl.where(counts, high - there + level, 0.0))
    tl.store(logs + 2 * row, -level)
    tl.store(logs + 2 * row + 1, beside - high - level)
    tl.store(best + row, guess)
    # First a group by its share, then a word of that group: so the 23 bits of a random number
    # reach rarer words.
    aim = mass * uniform(2 * row, seed)
    weight = tl.where(counts, 1.0, 0.0)
    inverse = weight / total
    passed = tl.zeros((), tl.float32)
    word = guess  # if rounding lets the groups' sum end before the aim
    for start in range(0, words, GROUP):
        col = start + lane
        x = tl.load(here + col, col < words, -float("inf")).to(tl.float32)
        odds = tl.exp2((x - high) * LOG2E)
        slope = odds * inverse - tl.where(col == true, weight, 0.0)
        tl.store(here + col, slope, col < words)
        if not same:
            odds = chances(x, col, true, high, sharpness, exclude)
        share = tl.sum(odds, 0)
        if (passed <= aim) & (aim < passed + share):
            ladder = tl.cumsum(odds, 0)
            step = tl.max(ladder, 0) * uniform(2 * row + 1, seed)
            word = start + tl.sum((ladder <= step).to(tl.int32), 0)
        passed += share
    tl.store(samples + row, word)


@triton.jit
def chances(x, col, true, high, sharpness, exclude: tl.constexpr):
    """What a word's chance to be the sample is proportional to."""
    odds = tl.exp2((x - high) * sharpness)
    if exclude:
        odds = tl.where(col == true, 0.0, odds)
    return odds


@triton.jit
def uniform(index, seed):
    """In [0, 1 - 2^-23], so that a product with it is always below the other factor."""
    return (random_bits(index, seed) >> 9).to(tl.float32) * 1.1920928955078125e-07


@triton.jit
def bias_backward_kernel(slopes, grad, sums, rows, words, TALL: tl.constexpr, WIDE: tl.constexpr):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        at = slopes + row.to(tl.int64)[:, None] * words + col[None, :]
        here = (row < rows)[:, None] & (col < words)[None, :]
        weight = tl.load(grad + row, row < rows, 0.0)[:, None]
        total += weight * tl.load(at, here, 0.0).to(tl.float32)
    tl.store(sums + tl.program_id(1) * words + col, tl.sum(total, 0), col < words)
