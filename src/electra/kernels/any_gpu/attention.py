"""Attention on the fused QKV projection; each token attends to its own document only.

Queries, keys and values are read where the projection wrote them, (rows, length, 3, heads,
head_dim), and their gradients are written in the same layout: no transposition, no copy. `doc_ids`
is (rows, length), ascending in each row: a token attends to the tokens with its own id, so padding
is a document of its own, and several texts can share a row. Scores are never stored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from electra.kernels.any_gpu.random import (
    drop_count,
    dropped,
    hash_keys,
    pair_bits,
    rescale,
    score_grads,
    seed_keys,
)
from electra.kernels.any_gpu.reduce import (
    num_programs,
    pdl_launch_dependents,
    pdl_supported,
    sum_rows_by_dot,
)

SHORT_LENGTH = 128
"""Rows up to this length have one kernel for the whole backward pass."""
FORWARD = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2, "maxnreg": 128}
BACKWARD = {"BLOCK_M": 32, "BLOCK_N": SHORT_LENGTH, "num_warps": 4, "num_stages": 2}
SINGLE_WAVE = {"BLOCK_M": 32, "BLOCK_N": SHORT_LENGTH, "num_warps": 8, "num_stages": 3}
LARGE_HEADS = {"BLOCK_M": 16, "BLOCK_N": SHORT_LENGTH, "num_warps": 8, "num_stages": 2}
FORWARD_LONG = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3, "maxnreg": 128}
GRAD_Q = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 4, "maxnreg": 128}
GRAD_KV = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
"""The fastest tiles on an H200: forward and backward for short rows; forward, and backward in two
kernels, for long ones. `BLOCK_N` is a multiple of 16, as the pairs of dropout need it. In the short
backward pass `SINGLE_WAVE` is for grids that give no SM two programs, and `LARGE_HEADS`, which was
not timed, for tiles that would not fit the registers: the widest heads, and fp32."""
HEAD_DIMS = (16, 32, 64, 128)
MAX_HEAD_SHARED = 128 * 1024
"""Shared memory per SM that heads of 128 need: tiles of long rows do not fit the 100 KiB of
desktop GPUs."""
LOG2E = 1.4426950408889634
LN2 = tl.constexpr(1 / LOG2E)
"""Scores and their logarithms are powers of two: exp2 is a hardware instruction."""


def supports(head_dim: int, device: torch.device) -> bool:
    """Whether heads of this size can be computed on this device."""
    if head_dim == max(HEAD_DIMS) and device.type == "cuda":
        shared = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
        return shared >= MAX_HEAD_SHARED
    return head_dim in HEAD_DIMS


def attention_forward(
    qkv: Tensor, doc_ids: Tensor, heads: int, seed: Tensor, p: float, out: Tensor
) -> Tensor:
    """Write the attention output (tokens, heads x head_dim) to `out`; return the log-sum-exp."""
    rows, length = doc_ids.shape
    head_dim = qkv.shape[1] // (3 * heads)
    lse = torch.empty(rows, heads, length, dtype=torch.float32, device=qkv.device)
    scalars = kernel_scalars(length, heads, head_dim, p)
    tiles = FORWARD if length <= SHORT_LENGTH else FORWARD_LONG
    attention_forward_kernel[(rows * heads * triton.cdiv(length, tiles["BLOCK_M"]),)](
        qkv, doc_ids, out, lse, seed, *scalars, FULL=triton.next_power_of_2(length),
        HEAD_DIM=head_dim, LONG=length > SHORT_LENGTH, EVEN=_even(length, tiles),
        PDL=pdl_supported(qkv.device), **tiles,
    )  # fmt: skip
    return lse


def attention_backward(
    grad: Tensor, qkv: Tensor, doc_ids: Tensor, out: Tensor, lse: Tensor, heads: int,
    seed: Tensor, p: float, grad_qkv: Tensor, partials: Tensor,
) -> None:  # fmt: skip
    """Write the gradient of `qkv`, and its sums over tokens to `partials` (parts, 3, hidden).

    The sums of the keys are zero: a softmax ignores what all its scores have in common.
    """
    rows, length = doc_ids.shape
    head_dim = qkv.shape[1] // (3 * heads)
    scalars = kernel_scalars(length, heads, head_dim, p)
    if length <= SHORT_LENGTH:
        tiles = backward_tiles(rows * heads, head_dim, qkv)
        q_tile, k_tile = (rows, tiles["BLOCK_M"], head_dim), (rows, tiles["BLOCK_N"], head_dim)
        attention_backward_kernel[(rows * heads,)](
            row_descriptor(grad, *q_tile), row_descriptor(qkv, *q_tile),
            row_descriptor(qkv, *k_tile), doc_ids, row_descriptor(out, *q_tile), lse,
            row_descriptor(grad_qkv, *q_tile), row_descriptor(grad_qkv, *k_tile), partials, seed,
            *scalars, HEAD_DIM=head_dim, EVEN=_even(length, tiles), **tiles,
        )  # fmt: skip
        return
    query_stats = lse.new_empty(*lse.shape, 4)
    full = triton.next_power_of_2(length)
    grad_q_kernel[(rows * heads * triton.cdiv(length, GRAD_Q["BLOCK_M"]),)](
        grad, qkv, doc_ids, out, lse, query_stats, grad_qkv, partials, seed, *scalars, FULL=full,
        HEAD_DIM=head_dim, EVEN=_even(length, GRAD_Q), **GRAD_Q,
    )  # fmt: skip
    grad_kv_kernel[(rows * heads * triton.cdiv(length, GRAD_KV["BLOCK_M"]),)](
        grad, qkv, doc_ids, query_stats, grad_qkv, partials, seed, *scalars, FULL=full,
        HEAD_DIM=head_dim, EVEN=_even(length, GRAD_KV), **GRAD_KV,
    )  # fmt: skip


def num_partials(rows: int, length: int) -> int:
    """How many partial sums `attention_backward` writes."""
    return rows if length <= SHORT_LENGTH else rows * triton.cdiv(length, GRAD_KV["BLOCK_M"])


def kernel_scalars(
    length: int, heads: int, head_dim: int, p: float
) -> tuple[int, int, float, int, float]:
    """The kernels' scalar arguments: length, heads, softmax scale, and dropout's two numbers."""
    return length, heads, LOG2E * head_dim**-0.5, drop_count(p), rescale(p)


def backward_tiles(heads: int, head_dim: int, qkv: Tensor) -> dict[str, int]:
    """Tiles of the backward pass over short rows, for the heads of all rows together."""
    exact, widest = qkv.dtype == torch.float32, head_dim == max(HEAD_DIMS)
    if exact and widest:
        return LARGE_HEADS | {"num_stages": 1}  # which takes 200 KiB
    if exact or widest:
        return LARGE_HEADS
    return SINGLE_WAVE if num_programs(heads, qkv.device, 1) == heads else BACKWARD


def row_descriptor(x: Tensor, rows: int, block: int, head_dim: int) -> TensorDescriptor:
    """Tokens by rows, in tiles; reads beyond the end of a row give zeros, writes are dropped."""
    return TensorDescriptor.from_tensor(x.view(rows, -1, x.shape[1]), [1, block, head_dim])


def _even(length: int, tiles: dict[str, int]) -> bool:
    """Whether no tile ends beyond the row: then nothing has to be masked."""
    return length % tiles["BLOCK_M"] == length % tiles["BLOCK_N"] == 0


@triton.jit
def program_tile(length, heads, BLOCK_M: tl.constexpr):
    """The row, the head, both as one index, and the first token of this program's tile.

    Tiles of one row and head follow each other, so that they share keys and values in L2.
    """
    num_tiles = tl.cdiv(length, BLOCK_M)
    head_index = tl.program_id(0) // num_tiles
    return (
        head_index // heads,
        head_index % heads,
        head_index,
        tl.program_id(0) % num_tiles * BLOCK_M,
    )


@triton.jit
def document_span(row_docs, begin, length, BLOCK_M: tl.constexpr, FULL: tl.constexpr):
    """The span of the row that holds a tile's documents, and whether they are one document."""
    low = tl.load(row_docs + begin)
    high = tl.load(row_docs + tl.minimum(begin + BLOCK_M, length) - 1)
    place = tl.arange(0, FULL)
    every = tl.load(row_docs + place, place < length, 2**30)
    first = tl.sum((every < low).to(tl.int32))
    return first, tl.sum((every <= high).to(tl.int32)), low == high


@triton.jit
def mask_other_documents(scores, query_docs, row_docs, start, length, span, EVEN: tl.constexpr):
    """Mask the scores of a tile, from key `start` on, between tokens of different documents."""
    first, end, one = span
    BLOCK_N: tl.constexpr = scores.shape[1]
    if not (one and start >= first and start + BLOCK_N <= end):
        line = tl.arange(0, BLOCK_N)
        key_docs = load_masked(row_docs + start + line, line < length - start, -2, EVEN)
        scores = tl.where(query_docs[:, None] == key_docs[None, :], scores, -1e30)
    return scores


@triton.jit
def load_masked(at, inside, other, EVEN: tl.constexpr):
    """A load, without the mask and its instructions where nothing is outside."""
    if EVEN:
        return tl.load(at)
    else:
        return tl.load(at, inside, other)


@triton.jit
def store_query_stats(query_stats, place, inside, log, neg_delta, key):
    """Store what `grad_kv_kernel` needs of each query: 16 bytes, which one instruction loads."""
    key = key.to(tl.float32, bitcast=True)
    four = tl.join(tl.join(log, key), tl.join(neg_delta, tl.zeros_like(neg_delta)))
    at = query_stats + place[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(at, tl.reshape(four, (place.shape[0], 4)), inside[:, None])


@triton.jit
def load_query_stats(query_stats, inside, EVEN: tl.constexpr):
    """The log-sum-exp, `neg_delta` and dropout key of each query."""
    COUNT: tl.constexpr = inside.shape[0]
    at = query_stats + tl.arange(0, COUNT)[:, None] * 4 + tl.arange(0, 4)[None, :]
    even, odd = tl.split(tl.reshape(load_masked(at, inside[:, None], 0.0, EVEN), (COUNT, 2, 2)))
    log, key = tl.split(even)
    neg_delta, _ = tl.split(odd)
    return log, neg_delta, key.to(tl.uint32, bitcast=True)


@triton.jit
def attention_forward_kernel(
    qkv, doc_ids, out, lse, seed, length, heads, scale, drop: tl.constexpr,
    rescale: tl.constexpr, FULL: tl.constexpr, HEAD_DIM: tl.constexpr, LONG: tl.constexpr,
    EVEN: tl.constexpr, PDL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    pdl_launch_dependents(PDL)
    row, head, head_index, begin = program_tile(length, heads, BLOCK_M)
    stride = 3 * heads * HEAD_DIM
    here = qkv + row.to(tl.int64) * length * stride + head * HEAD_DIM
    row_docs = doc_ids + row * length
    col = tl.arange(0, HEAD_DIM)
    m = begin + tl.arange(0, BLOCK_M)
    valid = (m < length)[:, None]
    q = load_masked(here + m[:, None] * stride + col[None, :], valid, 0.0, EVEN)
    query_docs = load_masked(row_docs + m, m < length, 2**30, EVEN)
    first, end = 0, length
    one = tl.load(row_docs) == tl.load(row_docs + length - 1)
    if LONG:
        first, end, one = document_span(row_docs, begin, length, BLOCK_M, FULL)
    query_key, pair_key = seed_keys(seed)
    down = hash_keys(head_index * length + m, query_key)
    top = tl.full((BLOCK_M,), -1e20, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    context = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(first // BLOCK_N * BLOCK_N, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = (n < length)[:, None]
        at = here + n[:, None] * stride + col[None, :]
        k = load_masked(at + heads * HEAD_DIM, inside, 0.0, EVEN)
        v = load_masked(at + 2 * heads * HEAD_DIM, inside, 0.0, EVEN)
        across = hash_keys(start // 2 + tl.arange(0, BLOCK_N // 2), pair_key)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = mask_other_documents(
            scores, query_docs, row_docs, start, length, (first, end, one), EVEN
        )
        high = tl.maximum(top, tl.max(scores, 1) * scale)
        exp_scores = tl.exp2(scores * scale - high[:, None])
        shrink = tl.exp2(top - high)
        total = total * shrink + tl.sum(exp_scores, 1)
        used = dropped(exp_scores, pair_bits(down, across, 1), drop, 1)
        context = context * shrink[:, None]
        context = tl.dot(used.to(v.dtype), v, context, input_precision="ieee")
        top = high
    total = tl.maximum(total, 1e-30)  # queries beyond the end have no keys
    context = context * (rescale / total)[:, None]
    to = (
        (row.to(tl.int64) * length + m[:, None]) * heads * HEAD_DIM + head * HEAD_DIM + col[None, :]
    )
    tl.store(out + to, context, valid)
    tl.store(lse + head_index * length + m, top + tl.log2(total), m < length)


@triton.jit
def attention_backward_kernel(
    grad, queries, keys, doc_ids, out, lse, to_queries, to_keys, partials, seed, length, heads,
    scale, drop: tl.constexpr, rescale: tl.constexpr, HEAD_DIM: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """All of one head of a short row, so that nothing has to be added up between programs.

    Tiles are (keys, queries), so the two matmuls that accumulate here need no transposition. The
    gradient of a score is used * dp + probs * neg_delta, where neg_delta is minus the sum of the
    first term over all keys; all without `rescale`, by which the sums are multiplied at the end.
    Reads beyond the end of the row give zero. Those tokens belong to no document, so their
    probabilities and gradients are zero too and add nothing to any sum.
    """
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    wide = heads * HEAD_DIM
    first = head * HEAD_DIM
    lse += tl.program_id(0) * length
    row_docs = doc_ids + row * length
    n = tl.arange(0, BLOCK_N)
    key_docs = load_masked(row_docs + n, n < length, -1, EVEN)
    one = EVEN and tl.load(row_docs) == tl.load(row_docs + length - 1)
    k = keys.load([row, 0, first + wide]).reshape(BLOCK_N, HEAD_DIM)
    v = keys.load([row, 0, first + 2 * wide]).reshape(BLOCK_N, HEAD_DIM)
    query_key, pair_key = seed_keys(seed)
    across = hash_keys(tl.arange(0, BLOCK_N // 2), pair_key)
    grad_k = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    grad_v = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    total = tl.zeros((HEAD_DIM, 2, 4), tl.float32)
    for begin in range(0, length, BLOCK_M):
        m = begin + tl.arange(0, BLOCK_M)
        q = queries.load([row, begin, first]).reshape(BLOCK_M, HEAD_DIM)
        g = grad.load([row, begin, first]).reshape(BLOCK_M, HEAD_DIM)
        o = out.load([row, begin, first]).reshape(BLOCK_M, HEAD_DIM)
        log = load_masked(lse + m, m < length, 0.0, EVEN)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        dp = tl.dot(v, tl.trans(g), input_precision="ieee")
        neg_delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) * (-1 / rescale)
        if not one:
            query_docs = load_masked(row_docs + m, m < length, -2, EVEN)
            scores = tl.where(key_docs[:, None] == query_docs[None, :], scores, -1e30)
        probs = tl.exp2(scores * scale - log[None, :])
        down = hash_keys(tl.program_id(0) * length + m, query_key)
        used = dropped(probs, pair_bits(down, across, 0), drop, 0)
        ds = (used * dp + probs * neg_delta[None, :]).to(q.dtype)
        grad_v = tl.dot(used.to(g.dtype), g, grad_v, input_precision="ieee")
        grad_k = tl.dot(ds, q, grad_k, input_precision="ieee")
        grad_q = tl.dot(tl.trans(k), ds, input_precision="ieee")
        done = (tl.trans(grad_q) * (scale * LN2 * rescale)).to(q.dtype)
        to_queries.store([row, begin, first], done.reshape(1, BLOCK_M, HEAD_DIM))
        # Each is a sum over queries held by one thread.
        total += tl.sum(tl.sum(tl.reshape(grad_q, (HEAD_DIM, 2, BLOCK_M // 16, 4, 2)), 4), 2)
    grad_k = (grad_k * (scale * LN2 * rescale)).to(k.dtype)
    to_keys.store([row, 0, first + wide], grad_k.reshape(1, BLOCK_N, HEAD_DIM))
    grad_v = (grad_v * rescale).to(v.dtype)
    to_keys.store([row, 0, first + 2 * wide], grad_v.reshape(1, BLOCK_N, HEAD_DIM))
    to = partials + row * 3 * wide + first + tl.arange(0, HEAD_DIM)
    # One dimension at a time: Triton 3.6 reduces wrongly where the threads that hold parts of a sum
    # are not adjacent, as in fp32 for both dimensions at once.
    tl.store(to, tl.sum(tl.sum(total, 2), 1) * (scale * LN2 * rescale))
    tl.store(to + wide, tl.zeros((HEAD_DIM,), tl.float32))
    tl.store(to + 2 * wide, sum_rows_by_dot(grad_v))


@triton.jit
def grad_q_kernel(
    grad, qkv, doc_ids, out, lse, query_stats, grad_qkv, partials, seed, length, heads, scale,
    drop: tl.constexpr, rescale: tl.constexpr, FULL: tl.constexpr, HEAD_DIM: tl.constexpr,
    EVEN: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradient of a tile of queries of a long row; `query_stats` are for `grad_kv_kernel`.

    Both kernels compute the scores: otherwise one would have to accumulate the other's gradient in
    global memory.
    """
    row, head, head_index, begin = program_tile(length, heads, BLOCK_M)
    wide = heads * HEAD_DIM
    stride = 3 * wide
    base = row.to(tl.int64) * length
    here = qkv + base * stride + head * HEAD_DIM
    row_docs = doc_ids + row * length
    col = tl.arange(0, HEAD_DIM)
    m = begin + tl.arange(0, BLOCK_M)
    valid = (m < length)[:, None]
    to = m[:, None] * stride + col[None, :]
    spot = base * wide + head * HEAD_DIM + m[:, None] * wide + col[None, :]
    q = load_masked(here + to, valid, 0.0, EVEN)
    g = load_masked(grad + spot, valid, 0.0, EVEN)
    o = load_masked(out + spot, valid, 0.0, EVEN)
    query_docs = load_masked(row_docs + m, m < length, 2**30, EVEN)
    place = head_index * length + m
    log = load_masked(lse + place, m < length, 0.0, EVEN)
    neg_delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1) * (-1 / rescale)
    query_key, pair_key = seed_keys(seed)
    down = hash_keys(place, query_key)
    store_query_stats(query_stats, place, m < length, log, neg_delta, down)
    grad_q = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    first, end, one = document_span(row_docs, begin, length, BLOCK_M, FULL)
    for start in range(first // BLOCK_N * BLOCK_N, end, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = (n < length)[:, None]
        at = here + n[:, None] * stride + col[None, :]
        k = load_masked(at + wide, inside, 0.0, EVEN)
        v = load_masked(at + 2 * wide, inside, 0.0, EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(g, tl.trans(v), input_precision="ieee")
        across = hash_keys(start // 2 + tl.arange(0, BLOCK_N // 2), pair_key)
        scores = mask_other_documents(
            scores, query_docs, row_docs, start, length, (first, end, one), EVEN
        )
        probs = tl.exp2(scores * scale - log[:, None])
        bits = pair_bits(down, across, 1)
        ds = score_grads(probs, dp, neg_delta[:, None], bits, drop)
        grad_q = tl.dot(ds.to(k.dtype), k, grad_q, input_precision="ieee")
    grad_q = (grad_q * (scale * LN2 * rescale)).to(q.dtype)
    tl.store(grad_qkv + base * stride + head * HEAD_DIM + to, grad_q, valid)
    part = row * tl.cdiv(length, BLOCK_M) + begin // BLOCK_M
    tl.store(partials + part * 3 * wide + head * HEAD_DIM + col, sum_rows_by_dot(grad_q))


@triton.jit
def grad_kv_kernel(
    grad, qkv, doc_ids, query_stats, grad_qkv, partials, seed, length, heads, scale,
    drop: tl.constexpr,
    rescale: tl.constexpr, FULL: tl.constexpr, HEAD_DIM: tl.constexpr, EVEN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile of keys and values of a long row; runs after `grad_q_kernel`."""
    row, head, head_index, begin = program_tile(length, heads, BLOCK_M)
    wide = heads * HEAD_DIM
    stride = 3 * wide
    base = row.to(tl.int64) * length
    here = qkv + base * stride + head * HEAD_DIM
    grad += base * wide + head * HEAD_DIM
    row_docs = doc_ids + row * length
    col = tl.arange(0, HEAD_DIM)
    n = begin + tl.arange(0, BLOCK_M)
    inside = (n < length)[:, None]
    at = n[:, None] * stride + col[None, :]
    k = load_masked(here + at + wide, inside, 0.0, EVEN)
    v = load_masked(here + at + 2 * wide, inside, 0.0, EVEN)
    key_docs = load_masked(row_docs + n, n < length, 2**30, EVEN)
    _, pair_key = seed_keys(seed)
    across = hash_keys(begin // 2 + tl.arange(0, BLOCK_M // 2), pair_key)
    grad_k = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    grad_v = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    first, end, one = document_span(row_docs, begin, length, BLOCK_M, FULL)
    for start in range(first // BLOCK_N * BLOCK_N, end, BLOCK_N):
        m = start + tl.arange(0, BLOCK_N)
        valid = (m < length)[:, None]
        q = load_masked(here + m[:, None] * stride + col[None, :], valid, 0.0, EVEN)
        g = load_masked(grad + m[:, None] * wide + col[None, :], valid, 0.0, EVEN)
        scores = tl.dot(k, tl.trans(q), input_precision="ieee")
        dp = tl.dot(v, tl.trans(g), input_precision="ieee")
        # The place is a scalar, so that all addresses derive from one base.
        log, neg_delta, down = load_query_stats(
            query_stats + (head_index * length + start) * 4, m < length, EVEN
        )
        scores = mask_other_documents(
            scores, key_docs, row_docs, start, length, (first, end, one), EVEN
        )
        probs = tl.exp2(scores * scale - log[None, :])
        used = dropped(probs, pair_bits(down, across, 0), drop, 0)
        ds = used * dp + probs * neg_delta[None, :]
        grad_v = tl.dot(used.to(g.dtype), g, grad_v, input_precision="ieee")
        grad_k = tl.dot(ds.to(q.dtype), q, grad_k, input_precision="ieee")
    there = grad_qkv + base * stride + head * HEAD_DIM + at
    tl.store(there + wide, grad_k * (scale * LN2 * rescale), inside)
    grad_v = (grad_v * rescale).to(v.dtype)
    tl.store(there + 2 * wide, grad_v, inside)
    if not EVEN:  # rows beyond the end are not zero
        grad_v = tl.where(inside, grad_v, tl.zeros_like(grad_v))
    part = row * tl.cdiv(length, BLOCK_M) + begin // BLOCK_M
    to = partials + (3 * part + 1) * wide + head * HEAD_DIM + col
    tl.store(to, tl.zeros((HEAD_DIM,), tl.float32))
    tl.store(to + wide, sum_rows_by_dot(grad_v))
