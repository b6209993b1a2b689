"""Masking a batch, and writing sampled tokens into it.

In plain torch, masking is some hundred small kernels; here it is one, random numbers included. A
position's slot is its rank by random key: the number of tokens before it. The result equals
`unpack` and `mask_tokens` bit for bit, except for two tokens with equal keys: here the left one
comes first, which topk does not promise.
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
GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
FACTOR_1, FACTOR_2 = tl.constexpr(0xBF58476D1CE4E5B9), tl.constexpr(0x94D049BB133111EB)
MASK_POSITION, MASK_TOKEN = tl.constexpr(0), tl.constexpr(1)
SAMPLE_GROUP, SAMPLE_TOKEN = tl.constexpr(4), tl.constexpr(5)
"""Constants of `electra.objectives.random`: its hash, and four of its purposes."""
SCATTER_TOKENS, SCATTER_SLOTS = 64, 32
"""A tile of `scatter_tokens`, for one warp: each thread compares its tokens with all slots."""


def mask_rows(
    rows: Tensor,
    maskable: Tensor,
    counter: Tensor,
    *,
    slots: int,
    mask_id: int,
    rate: float,
    mask_token_prob: float,
    most: int,
    ceil: bool,
) -> tuple[Tensor, ...]:
    """Return ids, segments, attention_mask, row_keys, inputs, positions, is_masked, labels, counts.

    `counter` holds seed, step and first row, from which `electra.objectives.random` derives all
    random numbers; `most` is the largest number of masked positions of a row, at most `slots`.
    `counts` (2, rows) are the masked and the real tokens of each row.
    """
    rows = rows.contiguous()
    count, length = len(rows), rows.shape[1] - 2
    ids, segments, inputs = rows.new_empty((3, count, length), dtype=torch.long)
    positions, labels = rows.new_empty((2, count, slots), dtype=torch.long)
    attention_mask = torch.empty_like(ids, dtype=torch.bool)
    is_masked = torch.empty_like(positions, dtype=torch.bool)
    keys = rows.new_empty(count, dtype=torch.long)
    counts = rows.new_empty((2, count), dtype=torch.long)
    outputs = (ids, segments, attention_mask, keys, inputs, positions, is_masked, labels, counts)
    block = triton.next_power_of_2(length)
    block_n = min(block, ELEMENTS // block)
    # Without fusion: the product must be rounded to fp32 before it is rounded to an integer
    mask_rows_kernel[(count, triton.cdiv(length, block_n))](
        rows, maskable, counter, *outputs, length, slots, mask_id, rate, mask_token_prob, most,
        ceil, block_n, block, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return outputs


@triton.jit
def mask_rows_kernel(
    rows, maskable, counter,
    ids, segments, attention_mask, keys, inputs, positions, is_masked, labels, counts,
    length, slots, mask_id, rate, mask_token_prob, most,
    CEIL: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Some tokens of one row, each compared with all tokens of the row."""
    row = tl.program_id(0).to(tl.int64)
    rows += row * (length + 2)
    first, end = tl.load(rows + length), tl.load(rows + length + 1)
    row_key = key_of_row(counter, row)

    other = tl.arange(0, BLOCK)
    _, text, candidate, key = read_tokens(other, rows, maskable, row_key, end, length)
    tokens = tl.sum(text.to(tl.int32), 0)
    wanted = tokens.to(tl.float32) * rate
    # Beyond 2^23 a sum rounds half to even, as torch rounds
    wanted = tl.ceil(wanted) if CEIL else (wanted + NO_HALVES) - NO_HALVES
    count = tl.minimum(tl.maximum(wanted.to(tl.int32), 1), most)
    count = tl.minimum(count, tl.sum(candidate.to(tl.int32), 0))
    if tl.program_id(1) == 0:
        tl.store(keys + row, row_key.to(tl.int64))
        tl.store(counts + row, count)
        tl.store(counts + tl.num_programs(0) + row, tokens)

    place = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = place < length
    token, text, _, own = read_tokens(place, rows, maskable, row_key, end, length)
    before = (key[:, None] == own[None, :]) & (other[:, None] < place[None, :])
    before |= key[:, None] > own[None, :]
    rank = tl.sum(before.to(tl.int32), 0)  # at least `length` where the row has ended
    has_slot, is_chosen = rank < slots, rank < count
    shows_mask = is_chosen & (uniform_at(row_key, MASK_TOKEN, rank) < mask_token_prob)

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
def read_tokens(place, rows, maskable, row_key, end, length):
    """Tokens of a row, whether they are text, whether they may be masked, and their sort keys:
    candidates come before the others."""
    inside = place < length
    token = tl.load(rows + place, inside, 0)
    text = inside & (place < end)
    candidate = text & tl.load(maskable + token, inside, 0)
    key = uniform_at(row_key, MASK_POSITION, place) + candidate.to(tl.float32)
    return token, text, candidate, tl.where(inside, key, -1.0)


@triton.jit
def mix(x):
    """Hash uint64 numbers with the finalizer of splitmix64, as `electra.objectives.random.mix`."""
    x = (x ^ (x >> 30)) * FACTOR_1
    x = (x ^ (x >> 27)) * FACTOR_2
    return x ^ (x >> 31)


@triton.jit
def key_of_row(counter, row):
    """The key of a row, as in `electra.objectives.random.row_keys`."""
    seed = tl.load(counter).to(tl.uint64)
    step = tl.load(counter + 1).to(tl.uint64)
    index = (tl.load(counter + 2) + row + 1).to(tl.uint64)
    key = mix(mix(seed + GOLDEN) + (step + 1) * GOLDEN)
    return mix(key + index * GOLDEN)


@triton.jit
def uniform_at(row_key, PURPOSE: tl.constexpr, column):
    """Random numbers in [0, 1), as those of `electra.objectives.random.uniform` in a column."""
    key = mix(row_key ^ PURPOSE)
    bits = mix(key + (column + 1).to(tl.uint64) * GOLDEN)
    return (bits >> 40).to(tl.int32).to(tl.float32) * 5.960464477539063e-08  # 2^-24


@triton.jit
def uniform_of_slot(row_keys, slot, slots, PURPOSE: tl.constexpr):
    """The random number of a slot, counted through all rows, each of which has `slots`.

    It is at most 1 - 2^-23, so that its product with a total is always below the total.
    """
    row_key = tl.load(row_keys + slot // slots).to(tl.uint64)
    return tl.minimum(uniform_at(row_key, PURPOSE, slot % slots), 0.99999988079071044921875)


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
        at_slot = row * slots + slot
        used = tl.load(where + at_slot, slot < slots, 0)
        to = tl.load(positions + at_slot, slot < slots, 0)
        token = tl.load(tokens + at_slot, slot < slots, 0).to(tl.int32)
        hits = used[:, None] & (to[:, None] == place[None, :])
        here = tl.maximum(here, tl.max(tl.where(hits, token[:, None], -1), 0))
    after = tl.where(here >= 0, here.to(before.dtype), before)
    tl.store(out + at, after, place < length)
    tl.store(changed + at, after != before, place < length)
