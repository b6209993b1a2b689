"""Loss, sample, best guess and gradient of a masked language model from two looks at its logits.

The logits are written once, by the product. A program reads a row of them, reads it again while it
is still in the cache, and puts the gradient of the cross-entropy in its place.

On Hopper GPUs, in bf16 and where the table is 128 wide, they are not written at all: see words.py.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.encoder_stack import product
from electra.kernels.any_gpu.sampling import choose, uniform
from electra.kernels.any_gpu.dropout import draw_seeds
from electra.kernels.any_gpu.layernorm import tile
from electra.kernels.cuda.fused_linear_cross_entropy import Deal, by_tiles, count_parts, look, slopes_of

GROUP, WARPS = 4096, 16
"""Words that are looked at together, and by how many warps."""
RUN = 8
"""Words side by side that one thread reads."""
COLUMNS = 8
"""That the bias's gradient takes, so that rows begin at multiples of 16 bytes."""
WEIGHED = 2048
"""Elements of a tile of `weigh`."""
LOG2E = tl.constexpr(1.4426950408889634)


class Guess(torch.autograd.Function):
    """What a masked language model says of some slots; see `read_logits_` for the four results.

    hidden (slots, width), table (words, width) and its copy in the precision of the former, bias
    and absent (words,), the latter True for ids that no token has; truth, drawn and other (slots,).
    Only the first result, the losses, has a gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, table: Tensor, copy: Tensor, bias: Tensor, absent: Tensor,
        truth: Tensor, is_masked: Tensor, other: Tensor, temperature: float, disallow_correct: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        ctx.by_tiles = by_tiles(hidden, temperature, disallow_correct)
        if ctx.by_tiles:
            found, kept = look(hidden, copy, bias, absent, truth, is_masked, other)
        else:
            # What has no probability has no slope: on the way back nothing needs to be filled.
            bias = bias.to(hidden.dtype, copy=True).masked_fill_(absent, float("-inf"))
            logits = torch.addmm(bias, hidden, copy.t())
            found = read_logits_(logits, truth, is_masked, other, temperature, disallow_correct)
            kept = (logits,)
        ctx.save_for_backward(hidden, copy, *kept)
        ctx.mark_non_differentiable(*found[1:])
        ctx.set_materialize_grads(False)  # no zeros for these
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        hidden, copy, *kept = ctx.saved_tensors
        if ctx.by_tiles:
            slopes, parts, deal = slopes_of(hidden, copy, *kept)
        else:
            (slopes,) = kept
            parts, deal = (slopes @ copy)[None], Deal.whole(len(hidden))
        of_hidden, wider = weigh(parts, deal, hidden, grads[0])
        # The bias's gradient is one more column of the table's: as good as free, where a pass over
        # the slopes would take longer than the product.
        words, width = copy.shape
        both = product(slopes.t(), wider)[:words]
        return of_hidden, both[:, :width], None, both[:, width], *[None] * 6


def weigh(parts: Tensor, deal: Deal, hidden: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Rows times their factors (rows,): the sum of parts (parts, rows, width) as the slots' own
    gradient, and `hidden`, which becomes wider by columns of factors.

    A row's slope is that of its own loss: the factors go to what is narrow.
    """
    rows, width = hidden.shape
    wider, of_hidden = hidden.new_empty(rows, width + COLUMNS), torch.empty_like(hidden)
    block, tall = tile(width + COLUMNS, WEIGHED)
    tensors = (parts, hidden, factor, of_hidden, wider)
    weigh_kernel[(triton.cdiv(rows, tall),)](
        *tensors, factor.stride(0), len(parts), *deal, rows, width, width + COLUMNS, tall, block,
        num_warps=4,
    )  # fmt: skip
    return of_hidden, wider


@triton.jit
def weigh_kernel(
    parts, hidden, factor, of_hidden, wider, step, most, programs, across, units, rows,
    width: tl.constexpr, wide: tl.constexpr, TALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`step` is 0 where one number is the factor of all rows, `most` the number of parts."""
    row = tl.program_id(0) * TALL + tl.arange(0, TALL)
    col = tl.arange(0, BLOCK)
    valid = (row < rows)[:, None]
    here = valid & (col < width)[None, :]
    at = row[:, None] * width + col[None, :]
    weight = tl.load(factor + row * step, row < rows, 0.0)[:, None]
    count = count_parts(row, programs, across, units)[:, None]
    g = tl.zeros((TALL, BLOCK), tl.float32)
    for part in range(most):
        g += tl.load(parts + part * rows * width + at, here & (part < count), 0.0).to(tl.float32)
    h = tl.load(hidden + at, here, 1.0).to(tl.float32)
    tl.store(of_hidden + at, g * weight, here)
    tl.store(wider + row[:, None] * wide + col[None, :], h * weight, valid & (col < wide)[None, :])


def read_logits_(
    logits: Tensor, truth: Tensor, is_masked: Tensor, other: Tensor, temperature: float,
    disallow_correct: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Of each row: its loss, 0 if not drawn; a sample; the best guess; and the logarithms of the
    best guess's probability and of that of `other` (rows, 2). `logits` becomes the gradient."""
    rows, words = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    samples, best = torch.empty_like(truth), torch.empty_like(truth)
    logs = torch.empty(rows, 2, dtype=torch.float32, device=logits.device)
    (seed,) = draw_seeds(1, logits.device)
    tensors = (logits, truth, is_masked, other, losses, samples, best, logs, seed)
    same = temperature == 1 and not disallow_correct
    sharpness = LOG2E.value / temperature
    times = triton.next_power_of_2(triton.cdiv(words, GROUP))
    read_logits_kernel[(rows,)](
        *tensors,
        words,
        sharpness,
        same,
        disallow_correct,
        GROUP // RUN,
        RUN,
        times,
        num_warps=WARPS,
    )
    return losses, samples, best, logs


@triton.jit
def read_logits_kernel(
    logits, truth, is_masked, other, losses, samples, best, logs, seed, words: tl.constexpr,
    sharpness, same: tl.constexpr, exclude: tl.constexpr, LANES: tl.constexpr, RUN: tl.constexpr,
    TIMES: tl.constexpr,
):  # fmt: skip
    """`same`: the distribution of the samples is that of the loss.

    A lane is what one thread sees of a row: RUN words side by side in each group, of which there
    are TIMES or fewer. Until the row has been seen, lanes keep to themselves: an exchange between
    threads for each group would take longer than all else.
    """
    row = tl.program_id(0)
    here = logits + row.to(tl.int64) * words
    true = tl.load(truth + row).to(tl.int32)
    counts = tl.load(is_masked + row)
    lane = tl.arange(0, LANES) * RUN
    run = tl.arange(0, RUN)
    each = lane[:, None] + run[None, :]
    top = tl.full((LANES,), -1e30, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    mass = tl.zeros((LANES,), tl.float32)
    peak = tl.full((LANES,), -1e30, tl.float32)  # the top of what may be the sample
    place = tl.zeros((LANES,), tl.int32)  # the group in which the top is
    for start in range(0, words, LANES * RUN):
        col = start + each
        x = tl.load(here + col, col < words, -float("inf")).to(tl.float32)
        most = tl.max(x, 1)
        place = tl.where(most > top, start, place)
        most = tl.maximum(top, most)
        total = total * tl.exp2((top - most) * LOG2E)
        total += tl.sum(tl.exp2((x - most[:, None]) * LOG2E), 1)
        if not same:
            may = allowed(x, col, true, exclude)
            crest = tl.maximum(peak, tl.max(may, 1))
            mass = mass * tl.exp2((peak - crest) * sharpness)
            mass += tl.sum(tl.exp2((may - crest[:, None]) * sharpness), 1)
            peak = crest
        top = most
    high = tl.max(top, 0)
    total *= tl.exp2((top - high) * LOG2E)
    mass = total if same else mass * tl.exp2((peak - tl.max(peak, 0)) * sharpness)
    total = tl.sum(total, 0)
    # Of the runs with the highest the first, and in it the first word.
    begin = tl.min(tl.where(top == high, place + lane, words), 0)
    near = begin + run
    found = tl.load(here + near, near < words, -float("inf")).to(tl.float32)
    guess = tl.min(tl.where(found == high, near, words), 0)
    there = tl.load(here + true).to(tl.float32)
    beside = tl.load(here + tl.load(other + row)).to(tl.float32)
    # First a lane by its share, then a word of that lane: so the 23 bits of a random number
    # reach rarer words.
    chosen = choose(mass, uniform(2 * row, seed)) * RUN
    turn = tl.arange(0, TIMES * RUN)
    spot = chosen + turn // RUN * (LANES * RUN) + turn % RUN
    few = tl.load(here + spot, spot < words, -float("inf")).to(tl.float32)
    few = allowed(few, spot, true, exclude)
    odds = tl.exp2((few - tl.max(few, 0)) * sharpness)
    turn = choose(odds, uniform(2 * row + 1, seed))
    tl.store(samples + row, chosen + turn // RUN * (LANES * RUN) + turn % RUN)
    # Not a product: a slot that is not used may hold a token that has no probability at all.
    level = tl.log(total)  # above `high`, in whose scale nothing is lost
    tl.store(losses + row, tl.where(counts, high - there + level, 0.0))
    tl.store(logs + 2 * row, -level)
    tl.store(logs + 2 * row + 1, beside - high - level)
    tl.store(best + row, guess)
    weight = tl.where(counts, 1.0, 0.0)
    inverse = weight / total
    tl.debug_barrier()  # all threads have read what others overwrite in the second look
    for start in range(0, words, LANES * RUN):
        col = start + each
        x = tl.load(here + col, col < words, -float("inf")).to(tl.float32)
        tl.store(here + col, tl.exp2((x - high) * LOG2E) * inverse, col < words)
    tl.debug_barrier()
    tl.store(here + true, tl.exp2((there - high) * LOG2E) * inverse - weight)


@triton.jit
def allowed(x, col, true, exclude: tl.constexpr):
    """The logits that a sample is drawn by."""
    if exclude:
        x = tl.where(col == true, -float("inf"), x)
    return x
