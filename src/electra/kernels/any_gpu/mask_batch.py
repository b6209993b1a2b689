"""A batch, what is drawn in it, and its counts, from stored rows in one kernel.

In plain torch this is some fifty small ones. A position's slot is its rank in the lottery: the
number of tokens that stand before it. The result is that of `unpack` and `mask_tokens` to the bit,
but for two tokens with one number in the lottery: here the one to the left comes first, which
topk does not promise.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 8192
"""Of a tile: so many pairs of tokens are compared at once."""
LONGEST = 4096
"""Tokens of a row; the comparisons grow with the square."""

NO_HALVES = tl.constexpr(2.0**23)
"""From here on fp32 has whole numbers only."""


def write_exercise(
    rows: Tensor,
    maskable: Tensor,
    lottery: Tensor,
    luck: Tensor,
    *,
    mask_id: int,
    rate: float,
    shown: float,
    most: int,
    ceil: bool,
) -> tuple[Tensor, ...]:
    """Ids, segments, real; inputs, positions, drawn, originals; drawn and real tokens (2, rows).

    `lottery` (rows, length) decides about positions and `luck` (rows, slots) about what is shown;
    `most` is the largest number of positions that a row draws, at most the number of slots.
    """
    rows = rows.contiguous()
    length, slots = lottery.shape[1], luck.shape[1]
    ids, segments, inputs = rows.new_empty((3, *lottery.shape), dtype=torch.long)
    positions, labels = rows.new_empty((2, *luck.shape), dtype=torch.long)
    attention_mask = torch.empty_like(lottery, dtype=torch.bool)
    is_masked = torch.empty_like(luck, dtype=torch.bool)
    counts = rows.new_empty((2, len(rows)), dtype=torch.long)
    made = (ids, segments, attention_mask, inputs, positions, is_masked, labels, counts)
    block = triton.next_power_of_2(length)
    wide = min(block, ELEMENTS // block)
    # Without fusion: a share of the tokens is rounded to fp32 before it is rounded to a number
    exercise_kernel[(len(rows), triton.cdiv(length, wide))](
        rows, maskable, lottery, luck, *made, length, slots, mask_id, rate, shown, most,
        ceil, wide, block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return made


@triton.jit
def exercise_kernel(
    rows, maskable, lottery, luck,
    ids, segments, attention_mask, inputs, positions, is_masked, labels, counts,
    length, slots, mask_id, rate, shown, most,
    CEIL: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some tokens of one row, each compared with all of its tokens."""
    row = tl.program_id(0).to(tl.int64)
    rows += row * (length + 2)
    lottery += row * length
    first, end = tl.load(rows + length), tl.load(rows + length + 1)

    other = tl.arange(0, BLOCK)
    _, text, candidate, key = read_tokens(other, rows, maskable, lottery, end, length)
    tokens = tl.sum(text.to(tl.int32), 0)
    wanted = tokens.to(tl.float32) * rate
    # A sum that has no room for a half is rounded to the even number, as torch rounds
    wanted = tl.ceil(wanted) if CEIL else (wanted + NO_HALVES) - NO_HALVES
    count = tl.minimum(tl.maximum(wanted.to(tl.int32), 1), most)
    count = tl.minimum(count, tl.sum(candidate.to(tl.int32), 0))
    if tl.program_id(1) == 0:
        tl.store(counts + row, count)
        tl.store(counts + tl.num_programs(0) + row, tokens)

    place = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    inside = place < length
    word, text, _, own = read_tokens(place, rows, maskable, lottery, end, length)
    before = (key[:, None] == own[None, :]) & (other[:, None] < place[None, :])
    before |= key[:, None] > own[None, :]
    rank = tl.sum(before.to(tl.int32), 0)  # from `length` on where the row has ended
    has_slot, is_drawn = rank < slots, rank < count
    hidden = is_drawn & (tl.load(luck + row * slots + rank, is_drawn, 1.0) < shown)

    at = row * length + place
    tl.store(ids + at, word, inside)
    tl.store(segments + at, (place >= first) & text, inside)
    tl.store(attention_mask + at, text, inside)
    tl.store(inputs + at, tl.where(hidden, mask_id, word), inside)
    at = row * slots + rank
    tl.store(positions + at, place, has_slot)
    tl.store(is_masked + at, is_drawn, has_slot)
    tl.store(labels + at, word, has_slot)


@triton.jit
def read_tokens(place, rows, maskable, lottery, end, length):
    """Tokens of a row, whether they are text, whether they may be drawn, and their numbers in the
    lottery, where those that may stand before the others."""
    inside = place < length
    word = tl.load(rows + place, inside, 0)
    text = inside & (place < end)
    candidate = text & tl.load(maskable + word, inside, 0)
    key = tl.load(lottery + place, inside, -1.0) + candidate.to(tl.float32)
    return word, text, candidate, key
