"""A masked language model's words on Hopper GPUs, without logits in memory.

For ELECTRA-Small these are 30,522 numbers of each of 20,480 slots, 1.2 GB that a product writes and
others read. Here kernels in CUDA C++ (words.cu) compute them where they are needed, and again on
the way back, as attention's scores are. There the slopes are written, which are a factor of the
table's gradient.

Forth a thread sees some words of a slot, tile by tile, and keeps four numbers of them: the highest
logit and its tile, the sum of odds, and a tile that it has chosen by its odds, so that the tile is
a sample among those that it has seen. A kernel here chooses a thread by its sum, and computes the
logits of that thread's words in the chosen tile again, of which one is the slot's sample.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.sampling import choose, uniform
from electra.kernels.cuda.runtime import launch, tensor_map, is_supported
from electra.kernels.any_gpu.dropout import draw_seeds
from electra.kernels.any_gpu.launch import programs

WARPGROUPS, DEPTH, SHARED = 3, 128, 231552
"""Of a program in CUDA: groups that compute, the table's width, and bytes on the chip."""
TALL, WIDE, LANES = tl.constexpr(192), tl.constexpr(128), tl.constexpr(4)
"""Slots and words of a tile, and threads that share a slot: each has two words of eight."""
LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
ROUND = 8
"""Words by which rows of slopes are padded, to multiples of 16 bytes."""
BLOCK = 1024
"""Numbers of a program of `offsets_kernel`."""


class Deal(NamedTuple):
    """How tiles of slots with tiles of words are dealt out to programs: those of a slot's words
    follow each other, and each program has as many as the others, or one more."""

    programs: int
    across: int
    """Tiles of words."""
    units: int
    """Tiles of slots times tiles of words."""

    @classmethod
    def even(cls, slots: int, words: int, device: torch.device) -> "Deal":
        """For all processors of a device."""
        across = triton.cdiv(words, WIDE.value)
        units = triton.cdiv(slots, TALL.value) * across
        return cls(programs(units, device, 1), across, units)

    @classmethod
    def whole(cls, slots: int) -> "Deal":
        """All to one."""
        return cls(1, 1, triton.cdiv(slots, TALL.value))

    @property
    def parts(self) -> int:
        """Programs that have words of the same slots, at most."""
        return triton.cdiv(self.programs * self.across, self.units) + 1


def by_tiles(hidden: Tensor, temperature: float, disallow_correct: bool) -> bool:
    """Whether words are guessed here."""
    same = temperature == 1 and not disallow_correct  # samples have the distribution of the loss
    fits = same and hidden.shape[1] == DEPTH and hidden.dtype == torch.bfloat16
    return fits and is_supported(hidden.device)


def look(
    hidden: Tensor, table: Tensor, bias: Tensor, absent: Tensor, truth: Tensor, is_masked: Tensor,
    other: Tensor,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """What `read_logits_` finds, and what `slopes_of` needs besides the first two."""
    slots, words = len(hidden), len(table)
    deal = Deal.even(slots, words, hidden.device)
    offset = offsets(bias, absent)
    seeds = draw_seeds(2, hidden.device)
    stats = torch.empty(slots, deal.parts, LANES.value, 4, device=hidden.device)
    launch(
        "fused_linear_cross_entropy.cross_entropy_stats", deal.programs, SHARED, tensor_map(hidden), tensor_map(table), offset, seeds[0],
        stats, slots, deal.across, deal.parts, warpgroups=WARPGROUPS,
    )  # fmt: skip
    given = (hidden, table, offset, truth, is_masked, other)
    *found, level = settle(stats, deal, *given, seeds[1])
    losses, samples, best, logs = found
    return (losses, samples, best, logs), (offset, level, losses, truth.long())


def slopes_of(
    hidden: Tensor, table: Tensor, offset: Tensor, level: Tensor, losses: Tensor, truth: Tensor
) -> tuple[Tensor, Tensor, Deal]:
    """Of each loss by the logits (slots, words or some more), and these times the table in parts
    (parts, slots, width), as they are dealt out."""
    slots, words = len(hidden), len(table)
    deal = Deal.even(slots, words, hidden.device)
    slopes = hidden.new_empty(slots, triton.cdiv(words, ROUND) * ROUND)
    parts = torch.empty(deal.parts, slots, DEPTH, device=hidden.device)
    launch(
        "fused_linear_cross_entropy.cross_entropy_dlogits", deal.programs, SHARED, tensor_map(hidden), tensor_map(table), tensor_map(slopes),
        offset, level, losses, truth, parts, slots, deal.across, warpgroups=WARPGROUPS,
    )  # fmt: skip
    return slopes, parts, deal


def offsets(bias: Tensor, absent: Tensor) -> Tensor:
    """The bias for whole tiles of words, in units of log 2: minus infinity for what is no word."""
    room = triton.cdiv(len(bias), WIDE.value) * WIDE.value
    out = torch.empty(room, device=bias.device)
    offsets_kernel[(triton.cdiv(room, BLOCK),)](
        bias, absent, out, len(bias), room, BLOCK, num_warps=4
    )
    return out


@triton.jit
def offsets_kernel(bias, absent, out, words, room, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gone = tl.load(absent + at, at < words, True)
    x = tl.load(bias + at, at < words, 0.0).to(tl.float32) * LOG2E
    tl.store(out + at, tl.where(gone, -float("inf"), x), at < room)


def settle(
    stats: Tensor, deal: Deal, hidden: Tensor, table: Tensor, offset: Tensor, truth: Tensor,
    is_masked: Tensor, other: Tensor, seed: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From what threads have seen (slots, parts, lanes, 4): the results of `read_logits_`, and the
    logarithms of the sums of odds in units of log 2, infinite where a slot is not drawn."""
    slots, words = len(hidden), len(table)
    losses, level = torch.empty(2, slots, device=hidden.device)
    samples, best = torch.empty_like(truth), torch.empty_like(truth)
    logs = torch.empty(slots, 2, device=hidden.device)
    read = (stats, hidden, table, offset, truth, is_masked, other, seed)
    parts, lanes = stats.shape[1:3]
    settle_kernel[(slots,)](
        *read, losses, samples, best, logs, level, words, parts, *deal, hidden.shape[1],
        triton.next_power_of_2(parts * lanes), num_warps=2,
    )  # fmt: skip
    return losses, samples, best, logs, level


@triton.jit
def count_parts(slot, programs, across, units):
    """How many programs have words of this slot."""
    tall = slot // TALL
    first = ((tall * across + 1) * programs - 1) // units
    return ((tall + 1) * across * programs - 1) // units - first + 1


@triton.jit
def settle_kernel(
    stats, hidden, table, offset, truth, is_masked, other, seed, losses, samples, best, logs, level,
    words, parts, programs, across, units, width: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    entry = tl.arange(0, ENTRIES)
    here = entry < count_parts(slot, programs, across, units) * LANES
    at = stats + (slot * parts * LANES + entry) * 4
    top = tl.load(at, here, -1e30)
    total = tl.load(at + 1, here, 0.0)
    place = tl.load(at + 2, here, 0.0)
    chosen = tl.load(at + 3, here, 0.0)
    x = tl.load(hidden + slot * width + tl.arange(0, width)).to(tl.float32)
    counts = tl.load(is_masked + slot)

    # A thread's words of a tile by its sum of odds, and those where the highest logit is
    high = tl.max(top, 0)
    mass = total * tl.exp2(top - high)
    drew = words_at(chosen, entry, choose(mass, uniform(2 * slot, seed)))
    lead = tl.min(tl.where(top == high, entry, ENTRIES), 0) % ENTRIES
    near = words_at(place, entry, lead)
    odds = logits_of(drew, x, table, offset, words, width)
    apart = tl.min(drew, 0) != tl.min(near, 0)  # often both are the same, and read once
    found = logits_of(near, x, table, offset, tl.where(apart, words, 0), width)
    found = tl.where(apart, found, odds)

    odds = tl.exp2(odds - tl.max(odds, 0))
    store_word(samples + slot, drew, choose(odds, uniform(2 * slot + 1, seed)), words)
    turn = tl.arange(0, found.shape[0])
    guess = tl.min(tl.where(found == tl.max(found, 0), turn, found.shape[0]), 0) % found.shape[0]
    store_word(best + slot, near, guess, words)

    two = tl.arange(0, 2)
    true, beside = tl.load(truth + slot), tl.load(other + slot)
    both = tl.where(two == 0, true, beside).to(tl.int32)
    both = logits_of(both, x, table, offset, words, width)
    above = tl.log2(tl.sum(mass, 0))  # the highest, in whose scale nothing is lost
    both = (both - high - above) * LN2
    # Not a product: a slot that is not used may hold a token that has no probability at all.
    loss = tl.where(counts, -tl.sum(tl.where(two == 0, both, 0.0), 0), 0.0)
    tl.store(losses + slot, loss)
    tl.store(logs + 2 * slot, -above * LN2)
    tl.store(logs + 2 * slot + 1, tl.sum(tl.where(two == 1, both, 0.0), 0))
    tl.store(level + slot, tl.where(counts, high + above, float("inf")))


@triton.jit
def words_at(tiles, entry, which):
    """What the thread of an entry has of a tile, the one that `tiles` has there."""
    turn = tl.arange(0, WIDE // LANES)
    first = tl.sum(tl.where(entry == which, tiles, 0.0), 0).to(tl.int32) * WIDE
    return first + turn // 2 * (2 * LANES) + which % LANES * 2 + turn % 2


@triton.jit
def logits_of(word, x, table, offset, words, width: tl.constexpr):
    """In units of log 2. Of the table only so many words are read."""
    at = word[:, None] * width + tl.arange(0, width)[None, :]
    rows = tl.load(table + at, (word < words)[:, None], 0.0).to(tl.float32)
    return tl.sum(rows * x[None, :], 1) * LOG2E + tl.load(offset + word)


@triton.jit
def store_word(to, word, which, words):
    """One of some; where logits are no numbers it has to be one that the table has."""
    turn = tl.arange(0, word.shape[0])
    found = tl.sum(tl.where(turn == which, word, 0), 0)
    tl.store(to, tl.minimum(found, words - 1))
