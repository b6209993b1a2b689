"""Back through the contraction and gelu at once: the gradient between them never lies in memory.

For narrow models, whose products are so shallow that what they write takes longer than they do.
The same for the way forth was no faster than the library's product with `bias_gelu` after it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from electra.models.kernels.gelu import bell_at, share_below, slope_at
from electra.models.kernels.launch import programs
from electra.models.kernels.sums import column_sums

DEEPEST = 256
"""Up to this width a tile of the weights stays whole on the chip while rows pass by."""
TILE = {"TALL": 64, "WIDE": 128, "num_warps": 8, "num_stages": 1, "maxnreg": 128}
GROUP = tl.constexpr(16)
"""Rows that sums are kept for in registers; a multiple of the rows that a block of threads stores
at once, so that adding up takes no exchange between threads."""


def shallow(depth: int) -> bool:
    """Whether a model of this width is computed here."""
    return depth <= DEEPEST


def contract_backward(
    through: Tensor, weight: Tensor, inner: Tensor, bias: Tensor, sums: Tensor, of_inner: Tensor
) -> None:
    """From the gradient of the contracted, that of `inner`, whose gelu(inner + bias) it was.

    `sums` gets the bias's gradient in `contract_parts` parts.
    """
    (rows, depth), width = through.shape, weight.shape[1]
    grid = (triton.cdiv(width, TILE["WIDE"]), len(sums))
    tensors = (through, weight, inner, bias, of_inner, sums)
    deep = max(16, triton.next_power_of_2(depth))
    contract_backward_kernel[grid](*tensors, rows, width, depth, DEEP=deep, **TILE)


def contract_parts(rows: int, width: int, device: torch.device) -> int:
    """How many parts the sums of `contract_backward` come in; `width` is the wide one."""
    tiles, across = triton.cdiv(rows, TILE["TALL"]), triton.cdiv(width, TILE["WIDE"])
    # Two programs on a processor: one multiplies while the other computes gelu.
    return programs(tiles, device, 2 / across)


@triton.jit
def contract_backward_kernel(
    through, weight, inner, bias, of_inner, sums, rows, width: tl.constexpr,
    depth: tl.constexpr, DEEP: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Some columns, for which the program keeps weights and sums, times some rows after others.

    Rows are (GROUP, TALL / GROUP), and `inner` is read after the product: so the compiler brings
    the product, in half precision, into the order in which memory is read, and does the rest once,
    in this order. Otherwise it would compute gelu twice, in two orders.
    """
    deep = tl.arange(0, DEEP)
    col = tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    # Widths are known to the compiler: comparisons that hold for all columns vanish.
    inside = (col < width) | (width % WIDE == 0)
    within = (deep < depth) | (depth == DEEP)
    offset = tl.load(bias + col, inside, 0.0)[None, None, :]
    b = weight + deep[:, None] * width + col[None, :]
    b = tl.load(b, within[:, None] & inside[None, :], 0.0)
    of_bias = tl.zeros((GROUP, WIDE), tl.float32)
    each = tl.arange(0, TALL)
    line = tl.arange(0, GROUP)[:, None] * (TALL // GROUP) + tl.arange(0, TALL // GROUP)[None, :]
    for first in range(tl.program_id(1) * TALL, rows, tl.num_programs(1) * TALL):
        row = first + each
        a = through + row[:, None] * depth + deep[None, :]
        a = tl.load(a, (row < rows)[:, None] & within[None, :], 0.0)
        g = tl.dot(a, b, input_precision="ieee")
        g = tl.reshape(g.to(inner.dtype.element_ty), (GROUP, TALL // GROUP, WIDE))
        row = (first + line)[:, :, None]
        here = (row < rows) & inside[None, None, :]
        to = row * width + col[None, None, :]
        z = tl.load(inner + to, here, 0.0).to(tl.float32) + offset
        bell = bell_at(z)
        g = g.to(tl.float32) * slope_at(z, share_below(z, bell), bell)
        tl.store(of_inner + to, g, here)
        of_bias += tl.sum(g, 1)
    tl.store(sums + tl.program_id(1) * width + col, column_sums(of_bias), inside)
