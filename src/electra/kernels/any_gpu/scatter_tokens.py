"""Tokens put into rows of text, and where that changed them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

PLACES, SLOTS = 64, 32
"""Of a tile, which one warp compares: a thread has all slots of its places, and nothing to ask of
the others."""


def put(ids: Tensor, positions: Tensor, tokens: Tensor, where: Tensor) -> tuple[Tensor, Tensor]:
    """`ids` (rows, length) with `tokens` at `positions`, for the slots where `where` is True, and
    a map of the places with another token now. A position drawn twice takes the larger id."""
    ids, positions, tokens, where = (t.contiguous() for t in (ids, positions, tokens, where))
    rows, length = ids.shape
    out, changed = torch.empty_like(ids), torch.empty_like(ids, dtype=torch.bool)
    tensors = (ids, positions, tokens, where, out, changed)
    grid = (rows, triton.cdiv(length, PLACES))
    put_kernel[grid](*tensors, length, positions.shape[1], PLACES, SLOTS, num_warps=1)
    return out, changed


@triton.jit
def put_kernel(
    ids, positions, tokens, where, out, changed, length, slots,
    PLACES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    at = row * length + place
    before = tl.load(ids + at, place < length, 0)
    here = tl.full((PLACES,), -1, tl.int32)  # no token
    for first in range(0, slots, SLOTS):
        slot = first + tl.arange(0, SLOTS)
        given = row * slots + slot
        used = tl.load(where + given, slot < slots, 0)
        to = tl.load(positions + given, slot < slots, 0)
        token = tl.load(tokens + given, slot < slots, 0).to(tl.int32)
        meant = used[:, None] & (to[:, None] == place[None, :])
        here = tl.maximum(here, tl.max(tl.where(meant, token[:, None], -1), 0))
    after = tl.where(here >= 0, here.to(before.dtype), before)
    tl.store(out + at, after, place < length)
    tl.store(changed + at, after != before, place < length)
