"""A step of `PaperAdam` in three kernels for all parameters together, most of which are small.

torch passes the addresses of tensors as kernel arguments, of which a launch has few: that makes
many launches, each too small for the device. Here the addresses are in a table on the device, and
one launch has a program for each chunk of each tensor.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK, WARPS = 2048, 4
COLUMNS = tl.constexpr(5)
"""Addresses of a chunk: parameter, both moments, gradient, bf16 shadow weight (or 0)."""
PARTS = 4096
"""Sums of squares, one from each chunk, that are added at once."""


class Chunks:
    """The tensors of a step, cut into chunks; the table says where each chunk is.

    A CUDA graph reads the table in each replay, so create it before the capture: tensors that a
    capture allocates share their memory with others of the graph.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        means: Sequence[Tensor],
        squares: Sequence[Tensor],
        decays: Sequence[float],
    ) -> None:
        sizes = torch.tensor([p.numel() for p in params])
        counts = (sizes + CHUNK - 1) // CHUNK
        self.tensor = torch.arange(len(params)).repeat_interleave(counts)  # (chunks,), its number
        before = (counts.cumsum(0) - counts)[self.tensor]
        self.start = CHUNK * (torch.arange(len(self.tensor)) - before)
        device = params[0].device
        self.sizes = (sizes[self.tensor] - self.start).clamp(max=CHUNK).int().to(device)
        self.decays = torch.tensor(decays)[self.tensor].to(device)
        self.params = params
        columns = [self.addresses(tensors) for tensors in (params, means, squares)]
        columns += [torch.zeros_like(self.start), self.shadows(params)]
        self.on_host = torch.stack(columns, 1)
        self.table = torch.empty_like(self.on_host, device=device)  # (chunks, COLUMNS)

    def addresses(self, tensors: Sequence[Tensor]) -> Tensor:
        """The address of each chunk of these tensors."""
        first = torch.tensor([t.data_ptr() for t in tensors])
        return first[self.tensor] + 4 * self.start

    def shadows(self, params: Sequence[Tensor]) -> Tensor:
        """Addresses of the bf16 shadow weights to write with the parameters, or 0."""
        copies = [getattr(p, "bf16_shadow", None) for p in params]
        assert all(c is None or c.dtype == torch.bfloat16 for c in copies), "the kernel writes bf16"
        first = torch.tensor([0 if copy is None else copy.data_ptr() for copy in copies])
        first = first[self.tensor]
        return torch.where(first > 0, first + 2 * self.start, 0)

    def note(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """Set where the gradients of the parameters are, from the next `fill` on."""
        assert [*map(id, params)] == [*map(id, self.params)], "not those of the table"
        self.on_host[:, 3] = self.addresses(grads)

    def fill(self) -> None:
        """Copy the table to the device, which cannot be done within a capture."""
        self.table.copy_(self.on_host)

    def step(self, rate: Tensor, clip: float, betas: tuple[float, float], eps: float) -> Tensor:
        """Clip and update; returns the norm of the gradient before clipping."""
        parts = torch.empty(len(self.sizes), device=self.sizes.device)
        norm, factor = (torch.empty((), device=parts.device) for _ in range(2))
        grid = (len(parts),)
        squares_kernel[grid](self.table, self.sizes, parts, CHUNK, num_warps=WARPS)
        norm_kernel[(1,)](parts, norm, factor, len(parts), 1 / clip, PARTS, num_warps=16)
        adam_kernel[grid](
            self.table, self.sizes, self.decays, rate, factor, *betas, eps, CHUNK, num_warps=WARPS
        )
        return norm


def aligned(tensor: Tensor) -> bool:
    """Whether the kernels can read it: a thread loads 16 bytes at once."""
    return tensor.is_contiguous() and tensor.data_ptr() % 16 == 0


@triton.jit
def column(table, number: tl.constexpr):
    """The start of this program's chunk of a parameter (0), its moments (1, 2) or gradient (3)."""
    address = tl.load(table + COLUMNS * tl.program_id(0) + number)
    return tl.multiple_of(address.to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def squares_kernel(table, sizes, parts, CHUNK: tl.constexpr):
    """The sum of squares of each chunk."""
    at = tl.arange(0, CHUNK)
    size = tl.load(sizes + tl.program_id(0))
    part = parts + tl.program_id(0)
    grad = column(table, 3) + at
    if size == CHUNK:  # with a constant mask a thread loads 16 bytes at once
        tl.store(part, squares(grad, at < CHUNK))
    else:
        tl.store(part, squares(grad, at < size))


@triton.jit
def squares(grad, here):
    g = tl.load(grad, here, 0.0)
    return tl.sum(g * g)


@triton.jit
def norm_kernel(parts, norm, factor, count, inverse_clip, BLOCK: tl.constexpr):
    """The norm and the clipping factor, in one program: the order of the sum is fixed.

    The factor is 0 if the norm is not finite.
    """
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, count, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(parts + at, at < count, 0.0)
    length = tl.sqrt(tl.sum(total))
    tl.store(norm, length)
    over = tl.maximum(length * inverse_clip, 1.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(factor, tl.where(length < float("inf"), 1 / over, 0.0))  # NaN is not below either


@triton.jit
def adam_kernel(
    table, sizes, decays, rate, factor, beta1: tl.constexpr, beta2: tl.constexpr,
    eps: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    at = tl.arange(0, CHUNK)
    size = tl.load(sizes + tl.program_id(0))
    decay = tl.load(decays + tl.program_id(0))
    param, mean, square = column(table, 0) + at, column(table, 1) + at, column(table, 2) + at
    grad = column(table, 3) + at
    shadow = tl.load(table + COLUMNS * tl.program_id(0) + 4)
    r, f = tl.load(rate), tl.load(factor)
    if f == 0:  # the gradient is not finite: no update
        return
    if size == CHUNK:  # as above
        adam(param, mean, square, grad, shadow, at, at < CHUNK, r, f, decay, beta1, beta2, eps)
    else:
        adam(param, mean, square, grad, shadow, at, at < size, r, f, decay, beta1, beta2, eps)


@triton.jit
def adam(
    param, mean, square, grad, shadow, at, here, rate, factor, decay,
    beta1: tl.constexpr, beta2: tl.constexpr, eps: tl.constexpr,
):  # fmt: skip
    """`electra.optim.adam.foreach_update` for one chunk."""
    g = tl.load(grad, here, 0.0) * factor
    m = beta1 * tl.load(mean, here, 0.0) + (1 - beta1) * g
    s = beta2 * tl.load(square, here, 0.0) + (1 - beta2) * g * g
    p = tl.load(param, here, 0.0)
    p -= rate * (m / (tl.sqrt(s) + eps) + decay * p)
    tl.store(mean, m, here)
    tl.store(square, s, here)
    tl.store(param, p, here)
    if shadow != 0:
        copy = tl.multiple_of(shadow.to(tl.pointer_type(tl.bfloat16)), 16)
        tl.store(copy + at, p.to(tl.bfloat16), here)
