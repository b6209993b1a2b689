"""Masking a batch, and writing sampled tokens into it.

In plain torch, masking is some fifty small kernels; here it is one. A position's slot is its rank
by random key: the number of tokens before it. The result equals `unpack` and `mask_tokens` bit for
bit, except for two tokens with equal keys: here the left one comes first, which topk does not
promise.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 8192
"""Pairs of tokens that a tile compares at once."""
MAX_LENGTH = 4096
"""Tokens of a row; the comparisons grow with the square."""
NO_HALVES = tl.constexpr(2.0**23)
"""From here on fp32 has integers only."""
SCATTER_TOKENS, SCATTER_SLOTS = 64, 32
"""A tile of `scatter_tokens`, for one warp: each thread compares its tokens with all slots."""


def mask_rows(
    rows: Tensor,
    maskable: Tensor,
    order_noise: Tensor,
    mask_noise: Tensor,
    *,
    mask_id: int,
    rate: float,
    mask_token_prob: float,
    most: int,
    ceil: bool,
) -> tuple[Tensor, ...]:
    """Return ids, segments, attention_mask, inputs, positions, is_masked, labels and counts.

    `order_noise` (rows, length) decides which positions are masked and `mask_noise` (rows, slots)
    which of them show [MASK]; `most` is the largest number of masked positions of a row, at most
    the number of slots. `counts` (2, rows) are the masked and the real tokens of each row.
    """
    rows = rows.contiguous()
    length, slots = order_noise.shape[1], mask_noise.shape[1]
    ids, segments, inputs = rows.new_empty((3, *order_noise.shape), dtype=torch.long)
    positions, labels = rows.new_empty((2, *mask_noise.shape), dtype=torch.long)
    attention_mask = torch.empty_like(order_noise, dtype=torch.bool)
    is_masked = torch.empty_like(mask_noise, dtype=torch.bool)
    counts = rows.new_empty((2, len(rows)), dtype=torch.long)
    outputs = (ids, segments, attention_mask, inputs, positions, is_masked, labels, counts)
    block = triton.next_power_of_2(length)
    block_n = min(block, ELEMENTS // block)
    # Without fusion: the product must be rounded to fp32 before it is rounded to an integer
    mask_rows_kernel[(len(rows), triton.cdiv(length, block_n))](
        rows, maskable, order_noise, mask_noise, *outputs, length, slots, mask_id, rate,
        mask_token_prob, most,
        ceil, block_n, block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return outputs


@triton.jit
def mask_rows_kernel(
    rows, maskable, order_noise, mask_noise,
    ids, segments, attention_mask, inputs, positions, is_masked, labels, counts,
    length, slots, mask_id, rate, mask_token_prob, most,
    CEIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some tokens of one row, each compared with all tokens of the row."""
    row = tl.program_id(0).to(tl.int64)
    rows += row * (length + 2)
    order_noise += row * length
    first, end = tl.load(rows + length), tl.load(rows + length + 1)

    other = tl.arange(0, BLOCK)
    _, text, candidate, key = read_tokens(other, rows, maskable, order_noise, end, length)
    tokens = tl.sum(text.to(tl.int32), 0)
    wanted = tokens.to(tl.float32) * rate
    # Beyond 2^23 a sum rounds half to even, as torch rounds
    wanted = tl.ceil(wanted) if CEIL else (wanted + NO_HALVES) - NO_HALVES
    count = tl.minimum(tl.maximum(wanted.to(tl.int32), 1), most)
    count = tl.minimum(count, tl.sum(candidate.to(tl.int32), 0))
    if tl.program_id(1) == 0:
        tl.store(counts + row, count)
        tl.store(counts + tl.num_programs(0) + row, tokens)

    place = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = place < length
    token, text, _, own = read_tokens(place, rows, maskable, order_noise, end, length)
    before = (key[:, None] == own[None, :]) & (other[:, None] < place[None, :])
    before |= key[:, None] > own[None, :]
    rank = tl.sum(before.to(tl.int32), 0)  # at least `length` where the row has ended
    has_slot, is_chosen = rank < slots, rank < count
    shows_mask = is_chosen & (
        tl.load(mask_noise + row * slots + rank, is_chosen, 1.0) < mask_token_prob
    )

    at = row * length + place
    tl.store(ids + at, token, inside)
    tl.store(segments + at, (place >= first) & text, inside)
    tl.store(attention_mask + at, text, inside)
    tl.store(inputs + at, tl.where(shows_mask, mask_id, token), inside)
    at = row * slots + rank
    tl.store(positions + at, place, has_slot)
    tl.store(is_masked + at, is_chosen, has_slot)
    tl.store(labels + at, token, has_slot)


@triton.jit
def read_tokens(place, rows, maskable, order_noise, end, length):
    """Tokens of a row, whether they are text, whether they may be masked, and their sort keys:
    candidates come before the others."""
    inside = place < length
    token = tl.load(rows + place, inside, 0)
    text = inside & (place < end)
    candidate = text & tl.load(maskable + token, inside, 0)
    key = tl.load(order_noise + place, inside, -1.0) + candidate.to(tl.float32)
    return token, text, candidate, key


def scatter_tokens(
    ids: Tensor, positions: Tensor, tokens: Tensor, where: Tensor
) -> tuple[Tensor, Tensor]:
    """Write `tokens` at `positions` of `ids` (rows, length) for the slots where `where` is True;
    return the new ids and where they differ. A position used twice takes the larger id."""
    ids, positions, tokens, where = (t.contiguous() for t in (ids, positions, tokens, where))
    rows, length = ids.shape
    out, changed = torch.empty_like(ids), torch.empty_like(ids, dtype=torch.bool)
    tensors = (ids, positions, tokens, where, out, changed)
    grid = (rows, triton.cdiv(length, SCATTER_TOKENS))
    scatter_tokens_kernel[grid](
        *tensors, length, positions.shape[1], SCATTER_TOKENS, SCATTER_SLOTS, num_warps=1
    )
    return out, changed


@triton.jit
def scatter_tokens_kernel(
    ids, positions, tokens, where, out, changed, length, slots,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    at = row * length + place
    before = tl.load(ids + at, place < length, 0)
    here = tl.full((BLOCK_M,), -1, tl.int32)  # no token
    for first in range(0, slots, BLOCK_N):
        slot = first + tl.arange(0, BLOCK_N)
        given = row * slots + slot
        used = tl.load(where + given, slot < slots, 0)
        to = tl.load(positions + given, slot < slots, 0)
        token = tl.load(tokens + given, slot < slots, 0).to(tl.int32)
        meant = used[:, None] & (to[:, None] == place[None, :])
        here = tl.maximum(here, tl.max(tl.where(meant, token[:, None], -1), 0))
    after = tl.where(here >= 0, here.to(before.dtype), before)
    tl.store(out + at, after, place < length)
    tl.store(changed + at, after != before, place < length)
