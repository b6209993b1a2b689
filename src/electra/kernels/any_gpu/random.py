"""Random bits computed inside the kernels, and computed again in the backward pass.

Philox, which torch uses, would cost more than everything else that these kernels compute. For
dropout, rows have keys, and so have pairs of columns. The 64-bit product of two keys, its upper
half ^ its lower half, is two 16-bit words, which decide about the two elements of a pair in a row.
In a table of rows the lower word is for column 2n and the upper one for 2n + 1; in attention a pair
is columns n and n ^ 8, which one thread holds in tiles (queries, keys) and (keys, queries) alike.

Of the 65,536 values of a word, as many as the dropout rate asks for drop their element; they are
consecutive, and the last is 0x7C00. Up to a rate of 48 % these are the float16 numbers from a bound
to infinity, and one instruction of NVIDIA GPUs compares both words. Above that, and on other GPUs,
integers are compared, to the same effect.

The second half of the file holds reference implementations in plain torch, for the tests.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# The finaliser called lowbias32, found by Chris Wellons' search for hashes with little bias.
FIRST, SECOND = tl.constexpr(0x7FEB352D), tl.constexpr(0x846CA68B)
GOLDEN = tl.constexpr(0x9E3779B1)
WORD = 2**32 - 1
INFINITY = tl.constexpr(0x7C00)
"""Of float16: as many patterns are between zero and this, 48 % of all."""


def draw_seeds(count: int, device: torch.device) -> Tensor:
    """Draw seeds from torch's generator, on the device."""
    # Four numbers, of which two are used: every row is aligned to 16 bytes.
    return torch.randint(-(2**31), 2**31, (count, 4), dtype=torch.int32, device=device)


def drop_count(p: float) -> int:
    """How many of the 65,536 values of a word drop an element."""
    return min(round(p * 65536), 65535)


def pairwise_compare(p: float) -> bool:
    """Whether one instruction compares both words of a pair, as the CUDA C++ kernels require."""
    return drop_count(p) <= INFINITY.value


def rescale(p: float) -> float:
    """The factor of kept elements: the expectation is exact although `p` is rounded."""
    return 65536 / (65536 - drop_count(p))


@triton.jit
def mix(x):
    x ^= x >> 16
    x *= FIRST
    x ^= x >> 15
    x *= SECOND
    return x ^ (x >> 16)


ASM = tl.constexpr(torch.version.cuda is not None and isinstance(mix, triton.JITFunction))
"""Whether inline PTX can be used: not on other GPUs, nor in the interpreter."""


@triton.jit
def seed_keys(seed):
    """Two keys from a row of `draw_seeds`. Call it before a loop: the compiler does not hoist
    it."""
    return mix(tl.load(seed).to(tl.uint32)), mix(tl.load(seed + 1).to(tl.uint32))


@triton.jit
def fold(x, y):
    """Upper half ^ lower half of the product.

    In PTX, because the compiler would emit a full 64-bit multiplication.
    """
    if ASM:
        return tl.inline_asm_elementwise(
            """{
            .reg .b64 w;
            .reg .b32 l, h;
            mul.wide.u32 w, $1, $2;
            mov.b64 {l, h}, w;
            xor.b32 $0, l, h;
            }""",
            "=r,r,r", [x, y], tl.uint32, True, 1,
        )  # fmt: skip
    else:
        product = x.to(tl.uint64) * y.to(tl.uint64)
        return (product >> 32).to(tl.uint32) ^ product.to(tl.uint32)


@triton.jit
def hash_keys(index, start):
    """Keys of rows or of pairs; `start` is the first or the second of `seed_keys`.

    They are odd: a key that ends with zero bits would leave zeros in all its products.
    """
    x = index.to(tl.uint32) * GOLDEN + start
    return fold(x, tl.full(x.shape, SECOND, tl.uint32)) | 1


@triton.jit
def drops(bits, drop: tl.constexpr):
    """Whether the lower 16 bits drop their element."""
    return ((bits + (drop + 65535 - INFINITY)) & 0xFFFF) < drop


@triton.jit
def drop_both(low, high, bits, drop: tl.constexpr):
    """Drop elements of pairs: `low` by the lower word, `high` by the upper one."""
    if ASM and drop <= INFINITY:
        bound = tl.full(bits.shape, (INFINITY + 1 - drop) * 0x10001, tl.uint32)
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .pred p, q;
            setp.ge.f16x2 p|q, $2, $3;
            selp.f32 $0, 0f00000000, $4, p;
            selp.f32 $1, 0f00000000, $5, q;
            }""",
            "=&f,=&f,r,r,f,f", [bits, bound, low, high], (tl.float32, tl.float32), True, 1,
        )  # fmt: skip
    else:
        low = tl.where(drops(bits, drop), 0.0, low)
        high = tl.where(drops(bits >> 16, drop), 0.0, high)
    return low, high


@triton.jit
def column_keys(BLOCK_N: tl.constexpr, start):
    """Keys of the pairs of columns of a table; `start` is the second of `seed_keys`."""
    return hash_keys(tl.arange(0, BLOCK_N // 2), start)


@triton.jit
def drop_rows(x, row, start, across, drop: tl.constexpr, rescale):
    """Dropout of a tile (rows, columns) of a table, or (rows, rows, columns).

    `row` are the numbers of its rows, with a last dimension of one, `start` is the first of
    `seed_keys`, and `across` comes from `column_keys`. No element leaves its thread.
    """
    HALF: tl.constexpr = x.shape[len(x.shape) - 1] // 2
    if len(x.shape) == 2:
        pairs = tl.reshape(x, (x.shape[0], HALF, 2))
        across = across[None, :]
    else:
        pairs = tl.reshape(x, (x.shape[0], x.shape[1], HALF, 2))
        across = across[None, None, :]
    low, high = tl.split(pairs)
    low, high = drop_both(low, high, fold(hash_keys(row, start), across), drop)
    return tl.reshape(tl.join(low, high), x.shape) * rescale


@triton.jit
def pair_bits(queries, pairs, axis: tl.constexpr):
    """Random words of a tile from the keys of its queries and of its pairs of columns, on
    `axis`."""
    pairs = tl.reshape(pairs, (pairs.shape[0] // 8, 8))
    if axis == 1:
        return fold(queries[:, None, None], pairs[None, :, :])
    else:
        return fold(pairs[:, :, None], queries[None, None, :])


@triton.jit
def halves(x, axis: tl.constexpr):
    """Split a tile in the layout of `pair_bits`: columns with bit 3 clear, and with it set.

    No element leaves its thread.
    """
    A: tl.constexpr = x.shape[0]
    B: tl.constexpr = x.shape[1]
    if axis == 1:
        return tl.split(tl.permute(tl.reshape(x, (A, B // 16, 2, 8)), (0, 1, 3, 2)))
    else:
        return tl.split(tl.permute(tl.reshape(x, (A // 16, 2, 8, B)), (0, 2, 3, 1)))


@triton.jit
def whole(low, high, like, axis: tl.constexpr):
    """The inverse of `halves`."""
    x = tl.join(low, high)
    x = tl.permute(x, (0, 1, 3, 2)) if axis == 1 else tl.permute(x, (0, 3, 1, 2))
    return tl.reshape(x, like.shape)


@triton.jit
def dropped(x, bits, drop: tl.constexpr, axis: tl.constexpr):
    """A tile with dropped elements set to zero; not rescaled."""
    if drop == 0:
        return x
    else:
        low, high = halves(x, axis)
        low, high = drop_both(low, high, bits, drop)
        return whole(low, high, x, axis)


@triton.jit
def score_grads(probs, dp, neg_delta, bits, drop: tl.constexpr):
    """dropped(probs) * dp + probs * neg_delta, in two instructions per element."""
    if ASM and drop > 0 and drop <= INFINITY:
        low, high = halves(probs, 1)
        dp_low, dp_high = halves(dp, 1)
        delta_low, delta_high = halves(tl.broadcast_to(neg_delta, probs.shape), 1)
        bound = tl.full(bits.shape, (INFINITY + 1 - drop) * 0x10001, tl.uint32)
        low, high = tl.inline_asm_elementwise(
            """{
            .reg .pred p, q;
            setp.ge.f16x2 p|q, $2, $3;
            mul.f32 $0, $4, $8;
            mul.f32 $1, $5, $9;
            @!p fma.rn.f32 $0, $4, $6, $0;
            @!q fma.rn.f32 $1, $5, $7, $1;
            }""",
            "=&f,=&f,r,r,f,f,f,f,f,f",
            [bits, bound, low, high, dp_low, dp_high, delta_low, delta_high],
            (tl.float32, tl.float32), True, 1,
        )  # fmt: skip
        return whole(low, high, probs, 1)
    else:
        return dropped(probs, bits, drop, 1) * dp + probs * neg_delta


@triton.jit
def sample_categorical(weights, number):
    """Sample an index in proportion to `weights`; `number` is at most 1 - 2^-23.

    Returns 0 where all weights are zero or NaN. The parallel sum may round a step of the cdf below
    the one before it, so steps without weight are excluded.
    """
    COUNT: tl.constexpr = weights.shape[0]
    cdf = tl.where(weights > 0, tl.cumsum(weights, 0), 0.0)
    above = cdf > tl.max(cdf, 0) * number
    return tl.min(tl.where(above, tl.arange(0, COUNT), COUNT), 0) % COUNT


def keep_mask(shape: tuple[int, int], seed: Tensor, p: float) -> Tensor:
    """Reference implementation of `drop_rows`: the factors by which it multiplies."""
    n = torch.arange(shape[1], device=seed.device)
    return keep_factors(shape[0], n // 2, (n % 2).bool(), seed, p)


def attention_keep_mask(rows: int, columns: int, seed: Tensor, p: float) -> Tensor:
    """The factors by which the attention kernels multiply, for all queries of a batch as rows."""
    n = torch.arange(columns, device=seed.device)
    return keep_factors(rows, n // 16 * 8 + n % 8, (n & 8).bool(), seed, p)


def keep_factors(rows: int, pair: Tensor, upper: Tensor, seed: Tensor, p: float) -> Tensor:
    """Dropout factors for columns with these pair numbers; `upper` selects the word of the pair."""
    row_key, pair_key = reference_keys(seed)
    down = _keys(torch.arange(rows, device=seed.device), row_key)
    words = _fold(down[:, None], _keys(pair, pair_key))
    bits = torch.where(upper, words >> 16, words & 0xFFFF)
    return ~_drops(bits, drop_count(p)) * rescale(p)


def reference_keys(seed: Tensor) -> tuple[int, int]:
    """Reference implementation of `seed_keys`."""
    return _mix(int(seed[0]) & WORD), _mix(int(seed[1]) & WORD)


def _mix(x: Any) -> Any:
    x = _scramble(x ^ (x >> 16))
    return x ^ (x >> 16)


def _scramble(x: Any) -> Any:
    x = (x * FIRST.value) & WORD
    x = x ^ (x >> 15)
    return (x * SECOND.value) & WORD


def _keys(index: Tensor, start: int) -> Tensor:
    x = (index * GOLDEN.value + start) & WORD
    return _fold(x, SECOND.value) | 1


def _fold(x: Tensor, y: Tensor | int) -> Tensor:
    """From halves of y: the product does not fit int64."""
    low, high = x * (y & 0xFFFF), x * (y >> 16)
    middle = (low >> 16) + (high & WORD)
    top = (high >> 32 << 16) + (middle >> 16)
    return (top & WORD) ^ (((middle & 0xFFFF) << 16) | (low & 0xFFFF))


def _drops(bits: Tensor, drop: int) -> Tensor:
    return (bits + (drop + 65535 - INFINITY.value)) % 65536 < drop
