"""Attention on the fused projection, each token looking at its own document alone.

Queries, keys and values are read where the projection wrote them, (rows, length, 3, heads, size),
and their gradients are written in the same form: no transposition, no copy. `documents` is
(rows, length), ascending in each row: a token sees the tokens with its own number, so padding is a
document of its own, and several texts can lie in one row. Scores are never stored.

On Hopper GPUs, in bf16, rows of 128 with heads of 64 (`whole_rows`) are computed in CUDA C++,
attend.cu: products are of 64 rows there, first factors stay in registers, and the next heads come
while one is computed. On an H200, for 128 and 1024 rows, in microseconds:

    forth, four heads    15.1 -> 12.3    99.5 -> 69.7
    forth, one head       4.9 ->  4.4    27.2 -> 21.3
    back, four heads     37.1 -> 24.1     269 -> 141
    back, one head       13.4 -> 10.5    69.9 -> 41.3
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.kernels.any_gpu.attention_dropout import dropped, pair_bits, slopes
from electra.kernels.cuda.runtime import WARPGROUPS, WARP_ROWS, launch, tensor_map, is_supported
from electra.kernels.any_gpu.dropout import bit_keys, by_halves, drop_count, keys_at, rescale
from electra.kernels.any_gpu.launch import call_next, early, programs
from electra.kernels.any_gpu.reduce import over_rows

SHORT = 128
"""Rows up to this length have one kernel for all of the way back."""
FORWARD = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 2, "maxnreg": 128}
BACKWARD = {"TALL": 32, "WIDE": SHORT, "num_warps": 4, "num_stages": 2}
LONE = {"TALL": 32, "WIDE": SHORT, "num_warps": 8, "num_stages": 3}
HEAVY = {"TALL": 16, "WIDE": SHORT, "num_warps": 8, "num_stages": 2}
LONG = {"TALL": 128, "WIDE": 64, "num_warps": 8, "num_stages": 3, "maxnreg": 128}
QUERIES = {"TALL": 64, "WIDE": 32, "num_warps": 4, "num_stages": 4, "maxnreg": 128}
KEYS = {"TALL": 64, "WIDE": 64, "num_warps": 4, "num_stages": 3}
"""The fastest on an H200: forth and back for short rows; forth, and back in two, for long ones. The
keys of a tile are a multiple of 16, as the pairs of dropout want it. Back over short rows `LONE` is
where no processor has two programs anyway, and `HEAVY`, which was not timed, where tiles of 32
queries would take more registers than there are: for the widest heads, and in fp32."""
WIDEST, ROOM = 128, 128 * 1024
"""A size of heads, and the shared memory that a processor has to have for it: tiles of long rows do
not fit the 100 KiB of cards for desktops."""
WHOLE, SIZE, FORTH_GROUPS = 128, 64, 3
FORTH_SHARED, BACK_SHARED = 223360, 231808
"""In CUDA: tokens of a row, size of a head, groups that compute forth; and bytes on the chip."""
LOG2E = 1.4426950408889634
LN2 = tl.constexpr(1 / LOG2E)
"""Scores and their logarithms are in powers of two, which the processor knows by itself."""


def attend(
    qkv: Tensor, documents: Tensor, heads: int, seed: Tensor, p: float, out: Tensor
) -> Tensor:
    """`out` gets the mixtures (tokens, heads x size); returns the logarithms of the softmax's
    denominators."""
    rows, length = documents.shape
    size = qkv.shape[1] // (3 * heads)
    logs = torch.empty(rows, heads, length, dtype=torch.float32, device=qkv.device)
    numbers = settings(length, heads, size, p)
    if whole_rows(length, size, qkv.dtype, qkv.device, p):
        given = (tensor_map(qkv), tensor_map(out, WARP_ROWS), documents, logs, seed, rows, *numbers[1:])
        grid = programs(rows * heads, qkv.device, 1)
        launch("attention.attention_forward", grid, FORTH_SHARED, *given, warpgroups=FORTH_GROUPS)
        return logs
    shape = FORWARD if length <= SHORT else LONG
    attend_kernel[(rows * heads * triton.cdiv(length, shape["TALL"]),)](
        qkv, documents, out, logs, seed, *numbers, FULL=triton.next_power_of_2(length), SIZE=size,
        LONG=length > SHORT, EVEN=_even(length, shape), EARLY=early(qkv.device), **shape,
    )  # fmt: skip
    return logs


def attend_backward(
    grad: Tensor, qkv: Tensor, documents: Tensor, out: Tensor, logs: Tensor, heads: int,
    seed: Tensor, p: float, of_qkv: Tensor, sums: Tensor,
) -> None:  # fmt: skip
    """`of_qkv` gets the gradient of `qkv`, and `sums` (parts, 3, width) its sums over tokens.

    Those of keys are zero, for a softmax does not see what all its scores have in common.
    """
    rows, length = documents.shape
    size = qkv.shape[1] // (3 * heads)
    numbers = settings(length, heads, size, p)
    if whole_rows(length, size, qkv.dtype, qkv.device, p):
        maps = (tensor_map(grad), tensor_map(qkv), tensor_map(out), tensor_map(of_qkv))
        tensors = (documents, logs, sums, seed)
        grid = programs(rows * heads, qkv.device, 1)
        launch("attention.attention_backward", grid, BACK_SHARED, *maps, *tensors, rows, *numbers[1:])
        return
    if length <= SHORT:
        shape = back_tiles(rows * heads, size, qkv)
        of_queries, of_keys = (rows, shape["TALL"], size), (rows, shape["WIDE"], size)
        attend_backward_kernel[(rows * heads,)](
            in_rows(grad, *of_queries), in_rows(qkv, *of_queries), in_rows(qkv, *of_keys),
            documents, in_rows(out, *of_queries), logs, in_rows(of_qkv, *of_queries),
            in_rows(of_qkv, *of_keys), sums, seed, *numbers, SIZE=size,
            EVEN=_even(length, shape), **shape,
        )  # fmt: skip
        return
    notes = logs.new_empty(*logs.shape, 4)
    full = triton.next_power_of_2(length)
    queries_kernel[(rows * heads * triton.cdiv(length, QUERIES["TALL"]),)](
        grad, qkv, documents, out, logs, notes, of_qkv, sums, seed, *numbers, FULL=full,
        SIZE=size, EVEN=_even(length, QUERIES), **QUERIES,
    )  # fmt: skip
    keys_kernel[(rows * heads * triton.cdiv(length, KEYS["TALL"]),)](
        grad, qkv, documents, notes, of_qkv, sums, seed, *numbers, FULL=full, SIZE=size,
        EVEN=_even(length, KEYS), **KEYS,
    )  # fmt: skip


def settings(length: int, heads: int, size: int, p: float) -> tuple[int, int, float, int, float]:
    """As kernels take them: besides the first two, the factor of scores, and dropout's numbers."""
    return length, heads, LOG2E * size**-0.5, drop_count(p), rescale(p)


def whole_rows(length: int, size: int, dtype: torch.dtype, device: torch.device, p: float) -> bool:
    """Whether attention is that in CUDA, both ways."""
    fits = length == WHOLE and size == SIZE and by_halves(p)
    return fits and dtype == torch.bfloat16 and is_supported(device)


def back_tiles(count: int, size: int, qkv: Tensor) -> dict[str, int]:
    """For the way back of so many heads of short rows."""
    exact, widest = qkv.dtype == torch.float32, size == WIDEST
    if exact and widest:
        return HEAVY | {"num_stages": 1}  # which has 200 KiB
    if exact or widest:
        return HEAVY
    return LONE if programs(count, qkv.device, 1) == count else BACKWARD


def in_rows(x: Tensor, rows: int, tall: int, size: int) -> TensorDescriptor:
    """Tokens by rows, as a kernel reads and writes tiles: those beyond the end of a row are read
    as zeros, and are not written."""
    return TensorDescriptor.from_tensor(x.view(rows, -1, x.shape[1]), [1, tall, size])


def _even(length: int, shape: dict[str, int]) -> bool:
    """Whether no tile ends beyond the row: then nothing has to be masked."""
    return length % shape["TALL"] == length % shape["WIDE"] == 0


def sum_parts(documents: Tensor, size: int, dtype: torch.dtype, p: float) -> int:
    """How many parts the sums of `attend_backward` come in."""
    rows, length = documents.shape
    if whole_rows(length, size, dtype, documents.device, p):
        return rows * WARPGROUPS
    return rows if length <= SHORT else rows * triton.cdiv(length, KEYS["TALL"])


def attention_fits(size: int, device: torch.device) -> bool:
    """Whether heads of this size can be computed on this device."""
    if size == WIDEST and device.type == "cuda":
        return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor >= ROOM
    return size in (16, 32, 64, WIDEST)


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
def within(scores, mine, papers, start, length, stretch, EVEN: tl.constexpr):
    """Scores of a tile, from `start` on, of which those between two documents count nothing."""
    first, end, one = stretch
    WIDE: tl.constexpr = scores.shape[1]
    if not (one and start >= first and start + WIDE <= end):
        line = tl.arange(0, WIDE)
        theirs = fetch(papers + start + line, line < length - start, -2, EVEN)
        scores = tl.where(mine[:, None] == theirs[None, :], scores, -1e30)
    return scores


@triton.jit
def fetch(at, inside, other, EVEN: tl.constexpr):
    """A load; the mask costs instructions, and is left out where nothing is outside."""
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, inside, other)


@triton.jit
def note(notes, place, inside, log, back, key):
    """What `keys_kernel` has to know of queries: 16 bytes each, which one instruction loads."""
    key = key.to(tl.float32, bitcast=True)
    four = tl.join(tl.join(log, key), tl.join(back, tl.zeros_like(back)))
    at = notes + place[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(at, tl.reshape(four, (place.shape[0], 4)), inside[:, None])


@triton.jit
def noted(notes, inside, EVEN: tl.constexpr):
    """The logarithms, the `back` and the keys of as many queries as `inside` has."""
    COUNT: tl.constexpr = inside.shape[0]
    at = notes + tl.arange(0, COUNT)[:, None] * 4 + tl.arange(0, 4)[None, :]
    even, odd = tl.split(tl.reshape(fetch(at, inside[:, None], 0.0, EVEN), (COUNT, 2, 2)))
    log, key = tl.split(even)
    back, _ = tl.split(odd)
    return log, back, key.to(tl.uint32, bitcast=True)


@triton.jit
def attend_kernel(
    qkv, documents, out, logs, seed, length, heads, scale, drop: tl.constexpr,
    rescale: tl.constexpr, FULL: tl.constexpr, SIZE: tl.constexpr, LONG: tl.constexpr,
    EVEN: tl.constexpr, EARLY: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    call_next(EARLY)
    row, head, both, begin = whose(length, heads, TALL)
    stride = 3 * heads * SIZE
    here = qkv + row.to(tl.int64) * length * stride + head * SIZE
    papers = documents + row * length
    col = tl.arange(0, SIZE)
    m = begin + tl.arange(0, TALL)
    valid = (m < length)[:, None]
    q = fetch(here + m[:, None] * stride + col[None, :], valid, 0.0, EVEN)
    mine = fetch(papers + m, m < length, 2**30, EVEN)
    first, end = 0, length
    one = tl.load(papers) == tl.load(papers + length - 1)
    if LONG:
        first, end, one = reach(papers, begin, length, TALL, FULL)
    of_queries, of_pairs = bit_keys(seed)
    down = keys_at(both * length + m, of_queries)
    top = tl.full((TALL,), -1e20, tl.float32)
    total = tl.zeros((TALL,), tl.float32)
    mixed = tl.zeros((TALL, SIZE), tl.float32)
    for start in range(first // WIDE * WIDE, end, WIDE):
        n = start + tl.arange(0, WIDE)
        inside = (n < length)[:, None]
        at = here + n[:, None] * stride + col[None, :]
        k = fetch(at + heads * SIZE, inside, 0.0, EVEN)
        v = fetch(at + 2 * heads * SIZE, inside, 0.0, EVEN)
        across = keys_at(start // 2 + tl.arange(0, WIDE // 2), of_pairs)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = within(scores, mine, papers, start, length, (first, end, one), EVEN)
        high = tl.maximum(top, tl.max(scores, 1) * scale)
        odds = tl.exp2(scores * scale - high[:, None])
        shrink = tl.exp2(top - high)
        total = total * shrink + tl.sum(odds, 1)
        used = dropped(odds, pair_bits(down, across, 1), drop, 1)
        mixed = mixed * shrink[:, None]
        mixed = tl.dot(used.to(v.dtype), v, mixed, input_precision="ieee")
        top = high
    total = tl.maximum(total, 1e-30)  # queries beyond the end have seen nothing
    mixed = mixed * (rescale / total)[:, None]
    to = (row.to(tl.int64) * length + m[:, None]) * heads * SIZE + head * SIZE + col[None, :]
    tl.store(out + to, mixed, valid)
    tl.store(logs + both * length + m, top + tl.log2(total), m < length)


@triton.jit
def attend_backward_kernel(
    grad, queries, keys, documents, out, logs, to_queries, to_keys, sums, seed, length, heads,
    scale, drop: tl.constexpr, rescale: tl.constexpr, SIZE: tl.constexpr, EVEN: tl.constexpr,
    TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """All of one head of a short row, so that nothing has to be added up between programs.

    Tiles are (keys, queries): so the two products whose sums stay here need no transposition.
    The slope of a score is used * slope + odds * back, where back is minus the sum of the former
    over all keys; all without `rescale`, by which the sums are multiplied in the end.
    Beyond the end of the row all that is read is zero. No document has its tokens, so that their
    odds and slopes are zero too, and they add nothing to any sum.
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    wide = heads * SIZE
    first = head * SIZE
    logs += tl.program_id(0) * length
    papers = documents + row * length
    n = tl.arange(0, WIDE)
    theirs = fetch(papers + n, n < length, -1, EVEN)
    one = EVEN and tl.load(papers) == tl.load(papers + length - 1)
    k = keys.load([row, 0, first + wide]).reshape(WIDE, SIZE)
    v = keys.load([row, 0, first + 2 * wide]).reshape(WIDE, SIZE)
    of_queries, of_pairs = bit_keys(seed)
    across = keys_at(tl.arange(0, WIDE // 2), of_pairs)
    of_k = tl.zeros((WIDE, SIZE), tl.float32)
    of_v = tl.zeros((WIDE, SIZE), tl.float32)
    total = tl.zeros((SIZE, 2, 4), tl.float32)
    for begin in range(0, length, TALL):
        m = begin + tl.arange(0, TALL)
        q = queries.load([row, begin, first]).reshape(TALL, SIZE)
        g = grad.load([row, begin, first]).reshape(TALL, SIZE)
        o = out.load([row, begin, first]).reshape(TALL, SIZE)
        log = fetch(logs + m, m < length, 0.0, EVEN)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        slope = tl.dot(v, tl.trans(g), input_precision="ieee")
        back = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) * (-1 / rescale)
        if not one:
            mine = fetch(papers + m, m < length, -2, EVEN)
            scores = tl.where(theirs[:, None] == mine[None, :], scores, -1e30)
        odds = tl.exp2(scores * scale - log[None, :])
        down = keys_at(tl.program_id(0) * length + m, of_queries)
        used = dropped(odds, pair_bits(down, across, 0), drop, 0)
        ds = (used * slope + odds * back[None, :]).to(q.dtype)
        of_v = tl.dot(used.to(g.dtype), g, of_v, input_precision="ieee")
        of_k = tl.dot(ds, q, of_k, input_precision="ieee")
        of_q = tl.dot(tl.trans(k), ds, input_precision="ieee")
        done = (tl.trans(of_q) * (scale * LN2 * rescale)).to(q.dtype)
        to_queries.store([row, begin, first], done.reshape(1, TALL, SIZE))
        # Here each is a sum over queries that one thread has.
        total += tl.sum(tl.sum(tl.reshape(of_q, (SIZE, 2, TALL // 16, 4, 2)), 4), 2)
    of_k = (of_k * (scale * LN2 * rescale)).to(k.dtype)
    to_keys.store([row, 0, first + wide], of_k.reshape(1, WIDE, SIZE))
    of_v = (of_v * rescale).to(v.dtype)
    to_keys.store([row, 0, first + 2 * wide], of_v.reshape(1, WIDE, SIZE))
    to = sums + row * 3 * wide + first + tl.arange(0, SIZE)
    # One dimension at a time: Triton 3.6 adds up wrongly where the threads that have parts of a sum
    # do not lie side by side, as in fp32 those of both dimensions together.
    tl.store(to, tl.sum(tl.sum(total, 2), 1) * (scale * LN2 * rescale))
    tl.store(to + wide, tl.zeros((SIZE,), tl.float32))
    tl.store(to + 2 * wide, over_rows(of_v))


@triton.jit
def queries_kernel(
    grad, qkv, documents, out, logs, notes, of_qkv, sums, seed, length, heads, scale,
    drop: tl.constexpr, rescale: tl.constexpr, FULL: tl.constexpr, SIZE: tl.constexpr,
    EVEN: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries of a long row; `notes` are for `keys_kernel`.

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
    q = fetch(here + to, valid, 0.0, EVEN)
    g = fetch(grad + spot, valid, 0.0, EVEN)
    o = fetch(out + spot, valid, 0.0, EVEN)
    mine = fetch(papers + m, m < length, 2**30, EVEN)
    place = both * length + m
    log = fetch(logs + place, m < length, 0.0, EVEN)
    back = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) * (-1 / rescale)
    of_queries, of_pairs = bit_keys(seed)
    down = keys_at(place, of_queries)
    note(notes, place, m < length, log, back, down)
    of_q = tl.zeros((TALL, SIZE), tl.float32)
    first, end, one = reach(papers, begin, length, TALL, FULL)
    for start in range(first // WIDE * WIDE, end, WIDE):
        n = start + tl.arange(0, WIDE)
        inside = (n < length)[:, None]
        at = here + n[:, None] * stride + col[None, :]
        k = fetch(at + wide, inside, 0.0, EVEN)
        v = fetch(at + 2 * wide, inside, 0.0, EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        slope = tl.dot(g, tl.trans(v), input_precision="ieee")
        across = keys_at(start // 2 + tl.arange(0, WIDE // 2), of_pairs)
        scores = within(scores, mine, papers, start, length, (first, end, one), EVEN)
        odds = tl.exp2(scores * scale - log[:, None])
        bits = pair_bits(down, across, 1)
        ds = slopes(odds, slope, back[:, None], bits, drop)
        of_q = tl.dot(ds.to(k.dtype), k, of_q, input_precision="ieee")
    of_q = (of_q * (scale * LN2 * rescale)).to(q.dtype)
    tl.store(of_qkv + base * stride + head * SIZE + to, of_q, valid)
    part = row * tl.cdiv(length, TALL) + begin // TALL
    tl.store(sums + part * 3 * wide + head * SIZE + col, over_rows(of_q))


@triton.jit
def keys_kernel(
    grad, qkv, documents, notes, of_qkv, sums, seed, length, heads, scale, drop: tl.constexpr,
    rescale: tl.constexpr, FULL: tl.constexpr, SIZE: tl.constexpr, EVEN: tl.constexpr,
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
    k = fetch(here + at + wide, inside, 0.0, EVEN)
    v = fetch(here + at + 2 * wide, inside, 0.0, EVEN)
    theirs = fetch(papers + n, n < length, 2**30, EVEN)
    _, of_pairs = bit_keys(seed)
    across = keys_at(begin // 2 + tl.arange(0, TALL // 2), of_pairs)
    of_k = tl.zeros((TALL, SIZE), tl.float32)
    of_v = tl.zeros((TALL, SIZE), tl.float32)
    first, end, one = reach(papers, begin, length, TALL, FULL)
    for start in range(first // WIDE * WIDE, end, WIDE):
        m = start + tl.arange(0, WIDE)
        valid = (m < length)[:, None]
        q = fetch(here + m[:, None] * stride + col[None, :], valid, 0.0, EVEN)
        g = fetch(grad + m[:, None] * wide + col[None, :], valid, 0.0, EVEN)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        slope = tl.dot(v, tl.trans(g), input_precision="ieee")
        # The place is one number, so that all addresses come from one.
        log, back, down = noted(notes + (both * length + start) * 4, m < length, EVEN)
        scores = within(scores, theirs, papers, start, length, (first, end, one), EVEN)
        odds = tl.exp2(scores * scale - log[None, :])
        used = dropped(odds, pair_bits(down, across, 0), drop, 0)
        ds = used * slope + odds * back[None, :]
        of_v = tl.dot(used.to(g.dtype), g, of_v, input_precision="ieee")
        of_k = tl.dot(ds.to(q.dtype), q, of_k, input_precision="ieee")
    there = of_qkv + base * stride + head * SIZE + at
    tl.store(there + wide, of_k * (scale * LN2 * rescale), inside)
    of_v = (of_v * rescale).to(v.dtype)
    tl.store(there + 2 * wide, of_v, inside)
    if not EVEN:  # what is beyond the end is no zero
        of_v = tl.where(inside, of_v, tl.zeros_like(of_v))
    part = row * tl.cdiv(length, TALL) + begin // TALL
    to = sums + (3 * part + 1) * wide + head * SIZE + col
    tl.store(to, tl.zeros((SIZE,), tl.float32))
    tl.store(to + wide, over_rows(of_v))
