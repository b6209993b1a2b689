"""MLM loss and sampling without logits in memory, on Hopper GPUs (`fused_linear_cross_entropy.cu`).

For ELECTRA-Small the logits are 30,522 numbers for each of 20,480 slots: 1.2 GB that a GEMM writes
and other kernels read. Here CUDA C++ kernels compute them where they are needed, and again in the
backward pass, as attention does with its scores. The backward pass writes their gradient, an
operand of the token table's gradient.

In the forward pass a thread sees some tokens of a slot, tile by tile. It keeps the highest logit
and its tile, the sum of the exp scores, and a tile sampled by an exponential race: each tile's sum
is divided by an exponentially distributed number, and the highest ratio wins, with a probability
in proportion to the sum. A Triton kernel then takes the thread with the highest ratio and computes
the logits of that thread's tokens in the sampled tile again, one of which is the slot's sample. The
random numbers are a function of the slot, the tile and the thread's tokens, so it does not matter
which thread block sees which tiles.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.kernels.any_gpu.masking import SAMPLE_TOKEN, uniform_of_slot
from electra.kernels.any_gpu.random import sample_categorical
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.cuda.runtime import is_supported, launch, tensor_map

WARPGROUPS, DEPTH, SHARED = 3, 128, 231552
"""Computing warpgroups of a thread block, width of the table, and bytes of shared memory."""
BLOCK_M, BLOCK_N, LANES = tl.constexpr(192), tl.constexpr(128), tl.constexpr(4)
"""Slots and tokens of a tile, and threads that share a slot: each has two of eight tokens."""
LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
ROUND = 8
"""Rows of `dlogits` are padded to a multiple of this, 16 bytes."""
BLOCK = 1024
"""Elements of a program of `pad_bias_kernel`."""


class TileSchedule(NamedTuple):
    """How tiles (slots, tokens) are distributed: those of the same slots are consecutive, and
    thread blocks get equal numbers of tiles, or one more."""

    programs: int
    across: int
    """Tiles along the vocabulary."""
    units: int
    """Tiles in all."""

    @classmethod
    def even(cls, slots: int, vocab: int, device: torch.device) -> "TileSchedule":
        """One thread block for each SM."""
        across = triton.cdiv(vocab, BLOCK_N.value)
        units = triton.cdiv(slots, BLOCK_M.value) * across
        return cls(num_programs(units, device, 1), across, units)

    @classmethod
    def single(cls, slots: int) -> "TileSchedule":
        """One for everything."""
        return cls(1, 1, triton.cdiv(slots, BLOCK_M.value))

    @property
    def parts(self) -> int:
        """Thread blocks that share a tile of slots, at most."""
        return triton.cdiv(self.programs * self.across, self.units) + 1


def supports(
    width: int, temperature: float, disallow_correct: bool, dtype: torch.dtype,
    device: torch.device,
) -> bool:  # fmt: skip
    """Whether the loss is computed here: samples must have the distribution of the loss."""
    same = temperature == 1 and not disallow_correct
    return same and width == DEPTH and dtype == torch.bfloat16 and is_supported(device)


def cross_entropy_forward(
    hidden: Tensor, table: Tensor, bias: Tensor, absent: Tensor, labels: Tensor, is_masked: Tensor,
    other: Tensor, row_keys: Tensor,
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]:  # fmt: skip
    """The results of `mlm_loss_`, and what `cross_entropy_dlogits` needs besides `hidden` and
    `table`."""
    slots, vocab = len(hidden), len(table)
    schedule = TileSchedule.even(slots, vocab, hidden.device)
    offset = pad_bias(bias, absent)
    stats = torch.empty(slots, schedule.parts, LANES.value, 4, device=hidden.device)
    launch(
        "fused_linear_cross_entropy.cross_entropy_stats", schedule.programs, SHARED,
        tensor_map(hidden), tensor_map(table), offset, row_keys, stats, slots,
        slots // len(row_keys), schedule.across, schedule.parts, warpgroups=WARPGROUPS,
    )  # fmt: skip
    losses, samples, best, log_probs, level = finalize(
        stats, schedule, hidden, table, offset, labels, is_masked, other, row_keys
    )
    return (losses, samples, best, log_probs), (offset, level, losses, labels.long())


def cross_entropy_dlogits(
    hidden: Tensor, table: Tensor, offset: Tensor, level: Tensor, losses: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor, TileSchedule]:
    """The gradient of each loss by its logits (slots, padded vocab), that gradient @ table in
    partial sums (parts, slots, width), and their schedule."""
    slots, vocab = len(hidden), len(table)
    schedule = TileSchedule.even(slots, vocab, hidden.device)
    dlogits = hidden.new_empty(slots, triton.cdiv(vocab, ROUND) * ROUND)
    partials = torch.empty(schedule.parts, slots, DEPTH, device=hidden.device)
    launch(
        "fused_linear_cross_entropy.cross_entropy_dlogits", schedule.programs, SHARED,
        tensor_map(hidden), tensor_map(table), tensor_map(dlogits), offset, level, losses, labels,
        partials, slots, schedule.across, warpgroups=WARPGROUPS,
    )  # fmt: skip
    return dlogits, partials, schedule


def pad_bias(bias: Tensor, absent: Tensor) -> Tensor:
    """The bias padded to whole tiles, in units of log 2; minus infinity for ids without token."""
    padded = triton.cdiv(len(bias), BLOCK_N.value) * BLOCK_N.value
    out = torch.empty(padded, device=bias.device)
    pad_bias_kernel[(triton.cdiv(padded, BLOCK),)](
        bias, absent, out, len(bias), padded, BLOCK, num_warps=4
    )
    return out


@triton.jit
def pad_bias_kernel(bias, absent, out, vocab, padded, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gone = tl.load(absent + at, at < vocab, True)
    x = tl.load(bias + at, at < vocab, 0.0).to(tl.float32) * LOG2E
    tl.store(out + at, tl.where(gone, -float("inf"), x), at < padded)


def finalize(
    stats: Tensor, schedule: TileSchedule, hidden: Tensor, table: Tensor, offset: Tensor,
    labels: Tensor, is_masked: Tensor, other: Tensor, row_keys: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """From the statistics of the threads (slots, parts, lanes, 4): the results of `mlm_loss_`, and
    the log-sum-exp in units of log 2, infinite where a slot is not masked."""
    slots, vocab = len(hidden), len(table)
    losses, level = torch.empty(2, slots, device=hidden.device)
    samples, best = torch.empty_like(labels), torch.empty_like(labels)
    log_probs = torch.empty(slots, 2, device=hidden.device)
    read = (stats, hidden, table, offset, labels, is_masked, other, row_keys)
    parts, lanes = stats.shape[1:3]
    finalize_kernel[(slots,)](
        *read, losses, samples, best, log_probs, level, slots // len(row_keys), vocab, parts,
        *schedule, hidden.shape[1], triton.next_power_of_2(parts * lanes), num_warps=2,
    )  # fmt: skip
    return losses, samples, best, log_probs, level


@triton.jit
def count_partials(slot, programs, across, units):
    """How many thread blocks have tokens of this slot."""
    tall = slot // BLOCK_M
    first = ((tall * across + 1) * programs - 1) // units
    return ((tall + 1) * across * programs - 1) // units - first + 1


@triton.jit
def finalize_kernel(
    stats, hidden, table, offset, labels, is_masked, other, row_keys, losses, samples, best,
    log_probs, level, slots, vocab, parts, programs, across, units, width: tl.constexpr,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    slot = tl.program_id(0)
    entry = tl.arange(0, ENTRIES)
    here = entry < count_partials(slot, programs, across, units) * LANES
    at = stats + (slot * parts * LANES + entry) * 4
    top = tl.load(at, here, -1e30)
    total = tl.load(at + 1, here, 0.0)
    race = tl.load(at + 2, here, -1.0)
    tiles = tl.load(at + 3, here, 0.0).to(tl.int32, bitcast=True)
    x = tl.load(hidden + slot * width + tl.arange(0, width)).to(tl.float32)
    counts = tl.load(is_masked + slot)

    # The tokens of the thread and tile that win the race, and those with the highest logit
    high = tl.max(top, 0)
    mass = total * tl.exp2(top - high)
    race *= tl.exp2(top - high)
    winner = tl.min(tl.where(race == tl.max(race, 0), entry, ENTRIES), 0) % ENTRIES
    sampled_tokens = tile_tokens(tiles & 0xFFFF, entry, winner)
    lead = tl.min(tl.where(top == high, entry, ENTRIES), 0) % ENTRIES
    best_tokens = tile_tokens(tiles >> 16, entry, lead)
    exp_scores = token_logits(sampled_tokens, x, table, offset, vocab, width)
    # Often both are the same, and loaded once
    apart = tl.min(sampled_tokens, 0) != tl.min(best_tokens, 0)
    found = token_logits(best_tokens, x, table, offset, tl.where(apart, vocab, 0), width)
    found = tl.where(apart, found, exp_scores)

    exp_scores = tl.exp2(exp_scores - tl.max(exp_scores, 0))
    store_token(
        samples + slot,
        sampled_tokens,
        sample_categorical(exp_scores, uniform_of_slot(row_keys, slot, slots, SAMPLE_TOKEN)),
        vocab,
    )
    turn = tl.arange(0, found.shape[0])
    guess = tl.min(tl.where(found == tl.max(found, 0), turn, found.shape[0]), 0) % found.shape[0]
    store_token(best + slot, best_tokens, guess, vocab)

    two = tl.arange(0, 2)
    true, beside = tl.load(labels + slot), tl.load(other + slot)
    both = tl.where(two == 0, true, beside).to(tl.int32)
    both = token_logits(both, x, table, offset, vocab, width)
    above = tl.log2(tl.sum(mass, 0))  # the highest, in whose scale nothing is lost
    both = (both - high - above) * LN2
    # Not a product: an unused slot may hold a token without probability.
    loss = tl.where(counts, -tl.sum(tl.where(two == 0, both, 0.0), 0), 0.0)
    tl.store(losses + slot, loss)
    tl.store(log_probs + 2 * slot, -above * LN2)
    tl.store(log_probs + 2 * slot + 1, tl.sum(tl.where(two == 1, both, 0.0), 0))
    tl.store(level + slot, tl.where(counts, high + above, float("inf")))


@triton.jit
def tile_tokens(tile_ids, entry, which):
    """What the thread of an entry has of a tile, the one that `tile_ids` has there."""
    turn = tl.arange(0, BLOCK_N // LANES)
    first = tl.sum(tl.where(entry == which, tile_ids, 0), 0) * BLOCK_N
    return first + turn // 2 * (2 * LANES) + which % LANES * 2 + turn % 2


@triton.jit
def token_logits(token, x, table, offset, vocab, width: tl.constexpr):
    """Logits of some tokens in units of log 2; tokens from `vocab` on are not read."""
    at = token[:, None] * width + tl.arange(0, width)[None, :]
    rows = tl.load(table + at, (token < vocab)[:, None], 0.0).to(tl.float32)
    return tl.sum(rows * x[None, :], 1) * LOG2E + tl.load(offset + token)


@triton.jit
def store_token(to, token, which, vocab):
    """Store one of some tokens; with NaN logits it still has to be a valid id."""
    turn = tl.arange(0, token.shape[0])
    found = tl.sum(tl.where(turn == which, token, 0), 0)
    tl.store(to, tl.minimum(found, vocab - 1))
