"""Sums over the rows of a tile, which kernels keep in registers until their end."""

import triton
import triton.language as tl


@triton.jit
def column_sums(x):
    """What tl.sum(x, 0) gives, in another way where several warps have rows.

    They exchange their sums through shared memory. Threads have eight columns each, and all of a
    warp would write into one bank, and wait for each other. In this order of columns, which moves
    nothing, threads that write at once have columns side by side.
    """
    x = tl.permute(tl.reshape(x, (x.shape[0], x.shape[1] // 8, 8)), (0, 2, 1))
    x = tl.sum(tl.reshape(x, (x.shape[0], x.shape[1] * x.shape[2])), 0)
    x = tl.permute(tl.reshape(x, (8, x.shape[0] // 8)), (1, 0))
    return tl.reshape(x, (x.shape[0] * x.shape[1],))


@triton.jit
def own_rows(x, LINES: tl.constexpr):
    """Adds up every LINES-th row: those that one thread has, where LINES is what the threads have
    at once."""
    return tl.sum(tl.reshape(x, (x.shape[0] // LINES, LINES, x.shape[1])), 0)
