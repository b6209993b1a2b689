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

GROUP, WARPS = 4096, 8
"""Words that are looked at together, and by how many warps."""
LOG2E = tl.constexpr(1.4426950408889634)


class Guess(torch.autograd.Function):
    """Summed loss of the drawn slots, a sample for each slot, and whether its best guess is true.

    hidden (slots, width), table (words, width), bias (words,) with -inf for ids that no token has,
    truth and drawn (slots,).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, bias: Tensor, truth: Tensor, drawn: Tensor,
        temperature: float, exclude_true: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        table, bias = cast_all([table, bias], hidden.dtype)
        logits = torch.addmm(bias, hidden, table.t())
        losses, samples, best = read_logits_(logits, truth, drawn, temperature, exclude_true)
        ctx.save_for_backward(hidden, table, logits)
        right = (best == truth) & drawn
        ctx.mark_non_differentiable(samples, right)
        return losses.sum(), samples, right

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, table, slopes = ctx.saved_tensors
        scale = grads[0]
        of_hidden = (slopes @ table) * scale.to(hidden.dtype)
        of_table = product(slopes.t(), hidden * scale.to(hidden.dtype))
        of_bias = slopes.sum(0, dtype=torch.float32) * scale
        return of_hidden, of_table, of_bias, None, None, None, None


def read_logits_(
    logits: Tensor, truth: Tensor, drawn: Tensor, temperature: float, exclude_true: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, a sample and the best guess of each row; `logits` becomes the loss's gradient."""
    rows, words = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    samples, best = torch.empty_like(truth), torch.empty_like(truth)
    (seed,) = draw_seeds(1, logits.device)
    tensors = (logits, truth, drawn, losses, samples, best, seed)
    same = temperature == 1 and not exclude_true
    sharpness = LOG2E.value / temperature
    read_logits_kernel[(rows,)](
        *tensors, words, sharpness, same, exclude_true, GROUP, num_warps=WARPS
    )
    return losses, samples, best


@triton.jit
def read_logits_kernel(
    logits, truth, drawn, losses, samples, best, seed, words, sharpness,
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
    tl.debug_barrier()  # all threads have read it; the second look overwrites it
    # Not a product: a slot that is not used may hold a token that has no probability at all.
    tl.store(losses + row, tl.where(counts, high + tl.log(total) - there, 0.0))
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
