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
"""Rows up to this length are short: one tile of keys, and one kernel for all of the way back."""
FORWARD = {"TALL": 64, "WIDE": WIDE, "num_warps": 4, "num_stages": 1, "maxnreg": 168}
BACKWARD = {"TALL": 32, "WIDE": WIDE, "num_warps": 4, "num_stages": 1}
LONG = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 168}
QUERIES = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 3, "maxnreg": 168}
KEYS = {"TALL": 64, "WIDE": 32, "num_warps": 4, "num_stages": 3, "maxnreg": 168}
"""The fastest on an H200: forth and back for short rows; forth, and back in two, for long ones."""
SUM = {"TALL": 128, "WIDE": 64}
LOG2E = 1.4426950408889634
LN2 = tl.constexpr(1 / LOG2E)
"""Scores and their logarithms are in powers of two, which the processor knows by itself."""


def attend(
    qkv: Tensor, documents: Tensor, heads: int, seed: Tensor, p: float
) -> tuple[Tensor, Tensor]:
    """The mixtures (tokens, heads x size), and the logarithms of the softmax's denominators."""
    rows, length = documents.shape
    size = qkv.shape[1] // (3 * heads)
    out = torch.empty(len(qkv), heads * size, dtype=qkv.dtype, device=qkv.device)
    logs = torch.empty(rows, heads, length, dtype=torch.float32, device=qkv.device)
    short = length <= WIDE
    tiles = FORWARD if short else LONG
    keys = seed if short else column_keys(length, seed)
    grid = (rows * heads * triton.cdiv(length, tiles["TALL"]),)
    tensors = (qkv, documents, keys, out, logs, seed)
    attend_kernel[grid](
        *tensors, length, heads, LOG2E * size**-0.5, threshold(p), 1 / (1 - p),
        FULL=triton.next_power_of_2(length), SIZE=size, LONG=not short, **tiles,
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
    numbers = (length, heads, LOG2E * size**-0.5, threshold(p), 1 / (1 - p))
    if length <= WIDE:
        tensors = (grad, qkv, documents, out, logs, of_qkv, seed)
        backward_kernel[(rows * heads,)](*tensors, *numbers, SIZE=size, **BACKWARD)
        return of_qkv
    alongs, downs = torch.empty_like(logs), torch.empty_like(logs, dtype=torch.int32)
    tensors = (grad, qkv, documents, logs, alongs, downs, of_qkv)
    full = triton.next_power_of_2(length)
    queries_kernel[(rows * heads * triton.cdiv(length, QUERIES["TALL"]),)](
        *tensors, out, column_keys(length, seed), seed, *numbers, FULL=full, SIZE=size, **QUERIES,
    )  # fmt: skip
    keys_kernel[(rows * heads * triton.cdiv(length, KEYS["TALL"]),)](
        *tensors, seed, *numbers, FULL=full, SIZE=size, **KEYS
    )
    return of_qkv


def column_keys(length: int, seed: Tensor) -> Tensor:
    """The keys of the columns for dropout, which all rows and heads have in common.

    A thread has two elements of a column: to hash its key would cost more than what follows.
    """
    tiles = triton.cdiv(length, WIDE)
    keys = torch.empty(tiles * WIDE, dtype=torch.int32, device=seed.device)
    column_keys_kernel[(tiles,)](keys, seed, WIDE=WIDE)
    return keys


def bias_backward(of_qkv: Tensor, sums: Tensor) -> None:
    """The gradient of the projection's bias, from that of `qkv`, in as many parts as `sums` has.

    That of the keys is zero: a softmax does not see what all its scores have in common.
    """
    rows, width = of_qkv.shape
    grid = (2 * triton.cdiv(width // 3, SUM["WIDE"]), len(sums))
    bias_backward_kernel[grid](of_qkv, sums, rows, width // 3, **SUM)


def bias_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `bias_backward` come in."""
    tiles, across = triton.cdiv(rows, SUM["TALL"]), 2 * triton.cdiv(width // 3, SUM["WIDE"])
    return programs(tiles, device, 4 / across)


def attention_fits(size: int) -> bool:
    """Whether heads of this size can be computed here."""
    return size in (16, 32, 64, 128)


@triton.jit
def column_keys_kernel(keys, seed, WIDE: tl.constexpr):
    n = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    tl.store(keys + n, random_keys(n, seed, 1))


@triton.jit
def whose(length, heads, TALL: tl.constexpr):
    """Where a program works: the row, the head, both as one number, and the first of its tokens.

    Tiles of one row and head come one after the other, and find in the cache what they share.
    """
    tiles = tl.cdiv(length, TALL)
    both = tl.program_id(0) // tiles
    return both // heads, both % heads, both, tl.program_id(0) % tiles * TALL


@triton.jit
def reach(papers, begin, length, TALL: tl.constexpr, FULL: tl.constexpr):
    """The stretch of the row in which the documents of a tile lie, and whether they are one."""
    low = tl.load(papers + begin)
    high = tl.load(papers + tl.minimum(begin + TALL, length) - 1)
    place = tl.arange(0, FULL)
    every = tl.load(papers + place, place < length, 2**30)
    first = tl.sum((every < low).to(tl.int32))
    return first, tl.sum((every <= high).to(tl.int32)), low == high


@triton.jit
def within(scores, mine, papers, start, stretch):
    """Scores of a tile, from `start` on, of which those between two documents count nothing."""
    first, end, one = stretch
    WIDE: tl.constexpr = scores.shape[1]
    if not (one and start >= first and start + WIDE <= end):
        line = tl.arange(0, WIDE)
        theirs = tl.load(papers + start + line, line < end - start, -2)
        scores = tl.where(mine[:, None] == theirs[None, :], scores, -1e30)
    return scores


@triton.jit
def kept(down, across, drop: tl.constexpr):
    return scramble(down.to(tl.uint32)[:, None] ^ across.to(tl.uint32)[None, :]) >= drop


@triton.jit
def attend_kernel(
    qkv, documents, keys, out, logs, seed, length, heads, scale, drop: tl.constexpr,
    rescale: tl.constexpr, FULL: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    row, head, both, begin = whose(length, heads, TALL)
    stride = 3 * heads * SIZE
    here = qkv + row.to(tl.int64) * length * stride + head * SIZE
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    m = begin + tl.arange(0, TALL)
    q = tl.load(here + m[:, None] * stride + col[None, :], (m < length)[:, None], 0.0)
    mine = tl.load(papers + m, m < length, 2**30)
    first, end, one = 0, length, False
    if LONG:
        first, end, one = reach(papers, begin, length, TALL, FULL)
    down = random_keys(both * length + m, seed, 0)
    top = tl.full((TALL,), -1e20, tl.float32)
    total = tl.zeros((TALL,), tl.float32)
    mixed = tl.zeros((TALL, SIZE), tl.float32)
    for start in range(first // WIDE * WIDE, end, WIDE):
        n = start + tl.arange(0, WIDE)
        inside = (n < length)[:, None]
        at = here + n[:, None] * stride + col[None, :]
        k = tl.load(at + heads * SIZE, inside, 0.0)
        v = tl.load(at + 2 * heads * SIZE, inside, 0.0)
        across = tl.load(keys + n) if LONG else random_keys(n, seed, 1)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = within(scores, mine, papers, start, (first, end, one))
        high = tl.maximum(top, tl.max(scores, 1) * scale)
        odds = tl.exp2(scores * scale - high[:, None])
        shrink = tl.exp2(top - high)
        total = total * shrink + tl.sum(odds, 1)
        if drop > 0:
            # Not `where`: the compiler would choose after the rounding, between halves of words.
            odds *= kept(down, across, drop).to(tl.float32)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(odds.to(v.dtype), v, mixed, input_precision="ieee")
        top = high
    total = tl.maximum(total, 1e-30)  # queries beyond the end have seen nothing
    mixed = mixed * (rescale / total)[:, None]
    to = (row.to(tl.int64) * length + m[:, None]) * heads * SIZE + head * SIZE + col[None, :]
    tl.store(out + to, mixed, (m < length)[:, None])
    tl.store(logs + both * length + m, top + tl.log2(total), m < length)


@triton.jit
def slopes(scores, slope, log, along, keep, drop: tl.constexpr):
    """What the values are mixed with, and the slope of the scores, from that of the mixture.

    All without `rescale`, by which the sums are multiplied in the end.
    """
    odds = tl.exp2(scores - log)
    used = odds
    if drop > 0:
        used = tl.where(keep, odds, 0.0)
    return used, used * slope - odds * along


@triton.jit
def backward_kernel(
    grad, qkv, documents, out, logs, of_qkv, seed, length, heads, scale, drop: tl.constexpr,
    rescale: tl.constexpr, SIZE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """All of one head of a short row, so that nothing has to be added up between programs.

    Tiles are (keys, queries): so the two products whose sums stay here need no transposition.
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    wide = heads * SIZE
    stride = 3 * wide
    base = row.to(tl.int64) * length
    here = qkv + base * stride + head * SIZE
    there = of_qkv + base * stride + head * SIZE
    grad += base * wide + head * SIZE
    out += base * wide + head * SIZE
    logs += tl.program_id(0) * length
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    n = tl.arange(0, WIDE)
    theirs = tl.load(papers + n, n < length, -1)
    at = n[:, None] * stride + col[None, :]
    inside = (n < length)[:, None]
    k = tl.load(here + at + wide, inside, 0.0)
    v = tl.load(here + at + 2 * wide, inside, 0.0)
    across = random_keys(n, seed, 1)
    of_k = tl.zeros((WIDE, SIZE), tl.float32)
    of_v = tl.zeros((WIDE, SIZE), tl.float32)
    for begin in range(0, length, TALL):
        m = begin + tl.arange(0, TALL)
        valid = (m < length)[:, None]
        to = m[:, None] * stride + col[None, :]
        spot = m[:, None] * wide + col[None, :]
        q = tl.load(here + to, valid, 0.0)
        g = tl.load(grad + spot, valid, 0.0)
        o = tl.load(out + spot, valid, 0.0)
        mine = tl.load(papers + m, m < length, -2)
        log = tl.load(logs + m, m < length, 0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        slope = tl.dot(v, tl.trans(g), input_precision="ieee")
        along = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) / rescale
        scores = tl.where(theirs[:, None] == mine[None, :], scores, -1e30)
        keep = kept(across, random_keys(tl.program_id(0) * length + m, seed, 0), drop)
        used, ds = slopes(scores * scale, slope, log[None, :], along[None, :], keep, drop)
        ds = ds.to(q.dtype)
        of_v = tl.dot(used.to(g.dtype), g, of_v, input_precision="ieee")
        of_k = tl.dot(ds, q, of_k, input_precision="ieee")
        of_q = tl.dot(tl.trans(ds), k, input_precision="ieee")
        tl.store(there + to, of_q * (scale * LN2 * rescale), valid)
    tl.store(there + at + wide, of_k * (scale * LN2 * rescale), inside)
    tl.store(there + at + 2 * wide, of_v * rescale, inside)


@triton.jit
def queries_kernel(
    grad, qkv, documents, logs, alongs, downs, of_qkv, out, keys, seed, length, heads, scale,
    drop: tl.constexpr, rescale: tl.constexpr, FULL: tl.constexpr, SIZE: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries of a long row; `alongs` and `downs` are for `keys_kernel`.

    Both compute the scores: else one would have to add up the other's gradient in the memory, and
    wait for it.
    """
    row, head, both, begin = whose(length, heads, TALL)
    wide = heads * SIZE
    stride = 3 * wide
    base = row.to(tl.int64) * length
    here = qkv + base * stride + head * SIZE
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    m = begin + tl.arange(0, TALL)
    valid = (m < length)[:, None]
    to = m[:, None] * stride + col[None, :]
    spot = base * wide + head * SIZE + m[:, None] * wide + col[None, :]
    q = tl.load(here + to, valid, 0.0)
    g = tl.load(grad + spot, valid, 0.0)
    o = tl.load(out + spot, valid, 0.0)
    mine = tl.load(papers + m, m < length, 2**30)
    place = both * length + m
    log = tl.load(logs + place, m < length, 0.0)
    along = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) / rescale
    down = random_keys(place, seed, 0)
    tl.store(alongs + place, along, m < length)
    tl.store(downs + place, down, m < length)
    of_q = tl.zeros((TALL, SIZE), tl.float32)
    first, end, one = reach(papers, begin, length, TALL, FULL)
    for start in range(first // WIDE * WIDE, end, WIDE):
        n = start + tl.arange(0, WIDE)
        inside = (n < length)[:, None]
        at = here + n[:, None] * stride + col[None, :]
        k = tl.load(at + wide, inside, 0.0)
        v = tl.load(at + 2 * wide, inside, 0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        slope = tl.dot(g, tl.trans(v), input_precision="ieee")
        across = tl.load(keys + n)
        scores = within(scores, mine, papers, start, (first, end, one))
        keep = kept(down, across, drop)
        _, ds = slopes(scores * scale, slope, log[:, None], along[:, None], keep, drop)
        of_q = tl.dot(ds.to(k.dtype), k, of_q, input_precision="ieee")
    tl.store(of_qkv + base * stride + head * SIZE + to, of_q * (scale * LN2 * rescale), valid)


@triton.jit
def keys_kernel(
    grad, qkv, documents, logs, alongs, downs, of_qkv, seed, length, heads, scale,
    drop: tl.constexpr, rescale: tl.constexpr, FULL: tl.constexpr, SIZE: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and their values of a long row, after `queries_kernel`."""
    row, head, both, begin = whose(length, heads, TALL)
    wide = heads * SIZE
    stride = 3 * wide
    base = row.to(tl.int64) * length
    here = qkv + base * stride + head * SIZE
    grad += base * wide + head * SIZE
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    n = begin + tl.arange(0, TALL)
    inside = (n < length)[:, None]
    at = n[:, None] * stride + col[None, :]
    k = tl.load(here + at + wide, inside, 0.0)
    v = tl.load(here + at + 2 * wide, inside, 0.0)
    theirs = tl.load(papers + n, n < length, 2**30)
    across = random_keys(n, seed, 1)
    of_k = tl.zeros((TALL, SIZE), tl.float32)
    of_v = tl.zeros((TALL, SIZE), tl.float32)
    first, end, one = reach(papers, begin, length, TALL, FULL)
    for start in range(first // WIDE * WIDE, end, WIDE):
        line = tl.arange(0, WIDE)
        m = start + line
        valid = (m < length)[:, None]
        q = tl.load(here + m[:, None] * stride + col[None, :], valid, 0.0)
        g = tl.load(grad + m[:, None] * wide + col[None, :], valid, 0.0)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        slope = tl.dot(v, tl.trans(g), input_precision="ieee")
        place = both * length + start  # one number, so that all addresses come from one
        log = tl.load(logs + place + line, m < length, 0.0)
        along = tl.load(alongs + place + line, m < length, 0.0)
        down = tl.load(downs + place + line, m < length, 0)
        scores = within(scores, theirs, papers, start, (first, end, one))
        keep = kept(across, down, drop)
        used, ds = slopes(scores * scale, slope, log[None, :], along[None, :], keep, drop)
        of_v = tl.dot(used.to(g.dtype), g, of_v, input_precision="ieee")
        of_k = tl.dot(ds.to(q.dtype), q, of_k, input_precision="ieee")
    there = of_qkv + base * stride + head * SIZE + at
    tl.store(there + wide, of_k * (scale * LN2 * rescale), inside)
    tl.store(there + 2 * wide, of_v * rescale, inside)


@triton.jit
def bias_backward_kernel(of_qkv, sums, rows, third, TALL: tl.constexpr, WIDE: tl.constexpr):
    """Programs for queries and values; the former write the keys' zeros.

    `third` is an argument, and the choice between the two a number: so the compiler knows that
    rows begin at multiples of 16 bytes. With a mask that leaves out the keys it would read each
    number by itself.
    """
    across = tl.cdiv(third, WIDE)
    values = tl.program_id(0) // across
    col = tl.program_id(0) % across * WIDE + tl.arange(0, WIDE)
    of_qkv += values * 2 * third
    total = tl.zeros((TALL, WIDE), tl.float32)
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + tl.arange(0, TALL)
        here = (row < rows)[:, None] & (col < third)[None, :]
        at = row[:, None] * (3 * third) + col[None, :]
        total += tl.load(of_qkv + at, here, 0.0).to(tl.float32)
    to = sums + tl.program_id(1) * 3 * third + col
    tl.store(to + values * 2 * third, tl.sum(total, 0), col < third)
    if values == 0:
        tl.store(to + third, tl.zeros((WIDE,), tl.float32), col < third)
