"""A choice by odds, in a kernel."""

import triton
import triton.language as tl

from electra.kernels.any_gpu.dropout import random_bits


@triton.jit
def choose(odds, number):
    """An index, by the odds; `number` is from `uniform`. 0 where none has odds, or they are NaN.

    A GPU adds up the steps of the ladder in different orders, so that one without odds may lie
    below the one before it: such a step is never the one.
    """
    COUNT: tl.constexpr = odds.shape[0]
    ladder = tl.where(odds > 0, tl.cumsum(odds, 0), 0.0)
    above = ladder > tl.max(ladder, 0) * number
    return tl.min(tl.where(above, tl.arange(0, COUNT), COUNT), 0) % COUNT


@triton.jit
def uniform(index, seed):
    """In [0, 1 - 2^-23], so that a product with it is always below the other factor."""
    return (random_bits(index, seed) >> 9).to(tl.float32) * 1.1920928955078125e-07
