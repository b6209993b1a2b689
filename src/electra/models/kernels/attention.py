"""Attention on the fused projection, each token looking at its own document alone.

Queries, keys and values are read where the projection wrote them, (rows, length, 3, heads, size),
and their gradients are written in the same form: no transposition, no copy. `documents` is
(rows, length), ascending in each row: a token sees the tokens with its own number, so padding is a
document of its own, and several texts can lie in one row. Scores are never stored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.dropout import random_keys, scramble, threshold
from electra.models.kernels.launch import programs

WIDE = 128
"""Keys of a tile."""
FORWARD = {"TALL": 64, "WIDE": WIDE, "num_warps": 4, "num_stages": 1, "maxnreg": 168}
SHORT = {"TALL": 32, "WIDE": WIDE, "num_warps": 4, "num_stages": 1}
LONG = {"TALL": 64, "WIDE": WIDE, "num_warps": 8, "num_stages": 2}
"""The fastest on an H200; SHORT and LONG, where rows have several tiles, are the way back."""
SUM = {"TALL": 32, "WIDE": 64}
LOG2E = 1.4426950408889634
"""Scores and their logarithms are in powers of two, which the processor knows by itself."""


def attend(
    qkv: Tensor, documents: Tensor, heads: int, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """The mixtures (tokens, heads x size), and the logarithms of the softmax's denominators."""
    rows, length = documents.shape
    size = qkv.shape[1] // (3 * heads)
    out = torch.empty(len(qkv), heads * size, dtype=qkv.dtype, device=qkv.device)
    logs = torch.empty(rows, heads, length, dtype=torch.float32, device=qkv.device)
    grid = (rows * heads, triton.cdiv(length, FORWARD["TALL"]))
    tensors = (qkv, documents, out, logs, seed)
    attend_kernel[grid](
        *tensors, length, heads, LOG2E * size**-0.5, threshold(p), 1 / (1 - p),
        FULL=triton.next_power_of_2(length), SIZE=size, **FORWARD,
    )  # fmt: skip
    return out, logs


def attend_backward(
    grad: Tensor, qkv: Tensor, documents: Tensor, out: Tensor, logs: Tensor, heads: int,
    seed: Tensor, p: float,
) -> Tensor:  # fmt: skip
    """The gradient of `qkv`."""
    rows, length = documents.shape
    size = qkv.shape[1] // (3 * heads)
    of_qkv = torch.empty_like(qkv)
    full, short = triton.next_power_of_2(length), length <= WIDE
    of_q = torch.zeros(1 if short else len(qkv), heads * size, device=qkv.device)
    tensors = (grad, qkv, documents, out, logs, of_qkv, of_q, seed)
    attend_backward_kernel[(rows * heads,)](
        *tensors, length, heads, LOG2E * size**-0.5, threshold(p), 1 / (1 - p),
        FULL=full, SIZE=size, **(SHORT if short else LONG),
    )  # fmt: skip
    return of_qkv


def bias_backward(of_qkv: Tensor, sums: Tensor) -> None:
    """The gradient of the projection's bias, from that of `qkv`, in as many parts as `sums` has.

    That of the keys is zero: a softmax does not see what all its scores have in common.
    """
    rows, width = of_qkv.shape
    grid = (triton.cdiv(width, SUM["WIDE"]), len(sums))
    bias_backward_kernel[grid](of_qkv, sums, rows, width, **SUM)


def bias_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `bias_backward` come in."""
    tiles, across = triton.cdiv(rows, SUM["TALL"]), triton.cdiv(width, SUM["WIDE"])
    return programs(tiles, device, 4 / across)


def attention_fits(size: int) -> bool:
    """Whether heads of this size can be computed here."""
    return size in (16, 32, 64, 128)


@triton.jit
def reach(papers, mine, length, TALL: tl.constexpr, FULL: tl.constexpr):
    """The stretch of the row, in whole tiles, in which these documents lie."""
    place = tl.arange(0, FULL)
    every = tl.load(papers + place, place < length, 2**30)
    first = tl.sum((every < tl.min(mine)).to(tl.int32)) // TALL * TALL
    return first, tl.sum((every <= tl.max(tl.where(mine < 2**30, mine, -1))).to(tl.int32))


@triton.jit
def attend_kernel(
    qkv, documents, out, logs, seed, length, heads, scale, drop: tl.constexpr,
    rescale: tl.constexpr, FULL: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    stride = 3 * heads * SIZE
    here = qkv + row.to(tl.int64) * length * stride + head * SIZE
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    m = tl.program_id(1) * TALL + tl.arange(0, TALL)
    q = tl.load(here + m[:, None] * stride + col[None, :], (m < length)[:, None], 0.0)
    mine = tl.load(papers + m, m < length, 2**30)
    first, end = 0, length
    if FULL > WIDE:
        first, end = reach(papers, mine, length, WIDE, FULL)
    down = random_keys(tl.program_id(0) * length + m, seed, 0)
    top = tl.full((TALL,), -1e20, tl.float32)
    total = tl.zeros((TALL,), tl.float32)
    mixed = tl.zeros((TALL, SIZE), tl.float32)
    for start in range(first, end, WIDE):
        n = start + tl.arange(0, WIDE)
        theirs = tl.load(papers + n, n < length, -2)
        at = here + n[:, None] * stride + col[None, :]
        k = tl.load(at + heads * SIZE, (n < length)[:, None], 0.0)
        v = tl.load(at + 2 * heads * SIZE, (n < length)[:, None], 0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(mine[:, None] == theirs[None, :], scores, -1e30)
        high = tl.maximum(top, tl.max(scores, 1))
        odds = tl.exp2(scores - high[:, None])
        shrink = tl.exp2(top - high)
        total = total * shrink + tl.sum(odds, 1)
        if drop > 0:
            across = random_keys(n, seed, 1)
            odds = tl.where(scramble(down[:, None] ^ across[None, :]) >= drop, odds, 0.0)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(odds.to(v.dtype), v, mixed, input_precision="ieee")
        top = high
    total = tl.maximum(total, 1e-30)  # queries beyond the end have seen nothing
    mixed = mixed * (rescale / total)[:, None]
    to = (row.to(tl.int64) * length + m[:, None]) * heads * SIZE + head * SIZE + col[None, :]
    tl.store(out + to, mixed, (m < length)[:, None])
    tl.store(logs + tl.program_id(0) * length + m, top + tl.log2(total), m < length)


@triton.jit
def attend_backward_kernel(
    grad, qkv, documents, out, logs, of_qkv, of_q, seed, length, heads, scale,
    drop: tl.constexpr, rescale: tl.constexpr, FULL: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """All of one head of one row, so that nothing has to be added up between programs.

    Tiles are (keys, queries): so the two products whose sums stay here need no transposition.
    Where the row has several tiles of keys, a query's gradient grows in `of_q`, fp32 zeros.
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    wide = heads * SIZE
    stride = 3 * wide
    base = row.to(tl.int64) * length
    here = qkv + base * stride + head * SIZE
    there = of_qkv + base * stride + head * SIZE
    grad += base * wide + head * SIZE
    out += base * wide + head * SIZE
    of_q += base * wide + head * SIZE
    logs += tl.program_id(0) * length
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    slant = scale * 0.6931471805599453  # the natural logarithm's: `scale` has that of 2
    for start in range(0, length, WIDE):
        n = start + tl.arange(0, WIDE)
        theirs = tl.load(papers + n, n < length, 2**30)
        at = n[:, None] * stride + col[None, :]
        inside = (n < length)[:, None]
        k = tl.load(here + at + wide, inside, 0.0)
        v = tl.load(here + at + 2 * wide, inside, 0.0)
        across = random_keys(n, seed, 1)
        of_k = tl.zeros((WIDE, SIZE), tl.float32)
        of_v = tl.zeros((WIDE, SIZE), tl.float32)
        first, end = 0, length
        if FULL > WIDE:
            first, end = reach(papers, theirs, length, TALL, FULL)
        for begin in range(first, end, TALL):
            m = begin + tl.arange(0, TALL)
            valid = (m < length)[:, None]
            to = m[:, None] * stride + col[None, :]
            spot = m[:, None] * wide + col[None, :]
            q = tl.load(here + to, valid, 0.0)
            g = tl.load(grad + spot, valid, 0.0)
            o = tl.load(out + spot, valid, 0.0)
            mine = tl.load(papers + m, m < length, -1)
            log = tl.load(logs + m, m < length, 0.0)
            scores = tl.dot(k, tl.trans(q), input_precision="ieee")
            slope = tl.dot(v, tl.trans(g), input_precision="ieee")
            along = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
            same = theirs[:, None] == mine[None, :]
            odds = tl.where(same, tl.exp2(scores * scale - log[None, :]), 0.0)
            used = odds
            if drop > 0:
                down = random_keys(tl.program_id(0) * length + m, seed, 0)
                keep = scramble(down[None, :] ^ across[:, None]) >= drop
                used = tl.where(keep, odds, 0.0)
                slope = tl.where(keep, slope * rescale, 0.0)
            ds = (odds * (slope - along[None, :])).to(q.dtype)
            of_v = tl.dot(used.to(g.dtype), g, of_v, input_precision="ieee")
            of_k = tl.dot(ds, q, of_k, input_precision="ieee")
            dq = tl.dot(tl.trans(ds), k, input_precision="ieee") * slant
            if FULL > WIDE:
                # The same threads read what they wrote: this program owns the row and the head.
                tl.store(of_q + spot, dq + tl.load(of_q + spot, valid, 0.0), valid)
            else:
                tl.store(there + to, dq, valid)
        of_k *= slant
        of_v *= rescale
        tl.store(there + at + wide, of_k, inside)
        tl.store(there + at + 2 * wide, of_v, inside)
        tl.debug_barrier()
    if FULL > WIDE:
        for begin in range(0, length, TALL):
            m = begin + tl.arange(0, TALL)
            valid = (m < length)[:, None]
            dq = tl.load(of_q + m[:, None] * wide + col[None, :], valid, 0.0)
            tl.store(there + m[:, None] * stride + col[None, :], dq, valid)


@triton.jit
def bias_backward_kernel(of_qkv, sums, rows, width, TALL: tl.constexpr, WIDE: tl.constexpr):
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    counts = (col < width // 3) | ((col >= width // 3 * 2) & (col < width))
    total = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & counts[None, :]
        total += tl.load(of_qkv + row[:, None] * width + col[None, :], here, 0.0).to(tl.float32)
    tl.store(sums + tl.program_id(1) * width + col, tl.sum(total, 0), col < width)
