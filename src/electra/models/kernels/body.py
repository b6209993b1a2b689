"""All layers of an encoder as one function: what `electra.models.encoder.Layer` says, fused.

A layer is six kernels forward, eight in a wide model, and about thirteen back; in the narrowest
four and twelve. The residual stream is in the precision of the products. Kept for the way back: per
token and layer 16 x width numbers, gelu's value among them: to compute it again would save a
quarter, but it would have to be written a second time.
Where rows are few, the gradients of the matrices wait for the last layer, and are found together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.models.kernels.attention import attend, attend_backward, sum_parts
from electra.models.kernels.dropout import draw_seeds
from electra.models.kernels.ffn import (
    contract_backward,
    contract_parts,
    ffn_backward,
    ffn_fits,
    ffn_forward,
    ffn_parts,
    shallow,
)
from electra.models.kernels.gelu import bias_gelu, bias_gelu_backward_, gelu_parts
from electra.models.kernels.join import joins, product_norm
from electra.models.kernels.norm import add_norm, add_norm_backward, norm_parts

NAMES = (
    "qkv.weight",
    "attended.weight",
    "expand.weight",
    "contract.weight",
    "qkv.bias",
    "attended.bias",
    "attention_norm.weight",
    "attention_norm.bias",
    "expand.bias",
    "contract.bias",
    "output_norm.weight",
    "output_norm.bias",
)
"""The parameters of a layer in the order in which they travel; the first five take part in
products, and are cast."""
CAST = 5
SMALL = 5e9
"""Multiplications of a product that is too small to fill a GPU."""


class Shape(NamedTuple):
    """What is not a tensor."""

    heads: int
    dropout: float
    attention_dropout: float
    eps: float
    recompute: bool = False
    """Keep each layer's input alone, and compute the rest again on the way back."""


class Forth(NamedTuple):
    """Factors of the gradients of the four matrices that the way forth has."""

    x: Tensor
    mixed: Tensor
    y: Tensor
    active: Tensor


class Back(NamedTuple):
    """The other factors, which the way back finds."""

    of_qkv: Tensor
    of_attended: Tensor
    of_inner: Tensor
    of_outer: Tensor


class Kept(NamedTuple):
    """What else one layer keeps for the way back."""

    qkv: Tensor
    logs: Tensor
    normal1: Tensor
    scale1: Tensor
    gelu: Tensor
    """What goes into it, without the bias; where `ffn_fits`, its slope."""
    normal2: Tensor
    scale2: Tensor


class Body(torch.autograd.Function):
    """(tokens, hidden) through all layers; `documents` is (rows, length)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, documents: Tensor, shape: Shape, *params: Tensor) -> Tensor:
        layers = _cut(params, len(NAMES))
        cast = cast_all([p for layer in layers for p in layer[:CAST]], x.dtype)
        seeds = draw_seeds(3 * len(layers), x.device).view(len(layers), 3, -1)
        room = 1 if shape.recompute else len(layers)
        forth = Forth._make(empties(x, room, forth_widths(layers[0])))
        if not shape.recompute:
            forth.x[0] = x
        kept: list[Tensor] = []
        for n, (layer, matrices) in enumerate(zip(layers, _cut(cast, CAST), strict=True)):
            own = Forth._make(t[n % room] for t in forth)
            if shape.recompute:
                own = own._replace(x=x)
            out = forth.x[n + 1] if n + 1 < room else torch.empty_like(x)
            saved = forward(own, documents, shape, seeds[n], [*matrices, *layer[CAST:]], out)
            kept += [x] if shape.recompute else saved
            x = out
        if not shape.recompute:
            kept += forth
        ctx.save_for_backward(documents, seeds, *params, *cast, *kept)
        ctx.shape = shape
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()  # that of a sum repeats one number
        documents, seeds, *rest = ctx.saved_tensors
        shape, count = ctx.shape, len(seeds)
        ends = len(NAMES) * count, (len(NAMES) + CAST) * count
        layers, cast = _cut(rest[: ends[0]], len(NAMES)), _cut(rest[ends[0] : ends[1]], CAST)
        if shape.recompute:
            forth = Forth._make(empties(grad, 1, forth_widths(layers[0])))
            kept = _cut(rest[ends[1] :], 1)
        else:
            factors = len(Forth._fields)
            forth = Forth._make(rest[-factors:])
            kept = _cut(rest[ends[1] : -factors], len(Kept._fields))
        together = not shape.recompute and small(grad, layers[0])
        widths = [len(matrix) for matrix in layers[0][:4]]
        back = Back._make(empties(grad, count if together else 1, widths))
        sums = Sums(documents, cast)
        matrices: list[Sequence[Tensor]] = []
        for n in reversed(range(count)):
            params = [*cast[n], *layers[n][CAST:]]
            own = Forth._make(t[n % len(t)] for t in forth)
            others: Sequence[Tensor] = kept[n]
            if shape.recompute:
                own = own._replace(x=kept[n][0])
                out = torch.empty_like(grad)
                others = forward(own, documents, shape, seeds[n], params, out)
            found = Back._make(t[n % len(t)] for t in back)
            grad = backward(
                grad, own, Kept._make(others), documents, shape, seeds[n], params, found, sums, n
            )
            if not together:
                matrices.insert(0, [product(a.mT, b) for a, b in zip(found, own, strict=True)])
        if together:
            every = (product(a.mT, b).unbind() for a, b in zip(back, forth, strict=True))
            matrices = list(zip(*every, strict=True))
        vectors = sums.finish()
        of_params = [g for n in range(count) for g in (*matrices[n], *vectors[n])]
        return grad, None, None, *of_params


def forward(
    own: Forth, documents: Tensor, shape: Shape, seeds: Tensor, p: Sequence[Tensor], out: Tensor
) -> Kept:
    """One layer: from `own.x` the rest of `own`, and `out`."""
    x, mixed, y, active = own
    w_qkv, w_attended, w_expand, w_contract, b_qkv = p[:5]
    b_attended, gain1, shift1, b_expand, b_contract, gain2, shift2 = p[5:]
    qkv = torch.addmm(b_qkv, x, w_qkv.t())
    logs = attend(qkv, documents, shape.heads, seeds[0], shape.attention_dropout, mixed)
    norm1, norm2 = (gain1, shift1, shape.eps), (gain2, shift2, shape.eps)
    rest = (b_attended, x, norm1, seeds[1], shape.dropout, y)
    normal1, scale1 = product_and_norm(mixed, w_attended, *rest)
    if ffn_fits(w_contract):
        gelu = torch.empty_like(active)
        normal2, scale2 = ffn_forward(
            y, w_expand, b_expand, w_contract, b_contract, norm2, seeds[2], shape.dropout,
            active, gelu, out,
        )  # fmt: skip
    else:
        gelu = y @ w_expand.t()
        bias_gelu(gelu, b_expand, active)
        rest = (b_contract, y, norm2, seeds[2], shape.dropout, out)
        normal2, scale2 = product_and_norm(active, w_contract, *rest)
    return Kept(qkv, logs, normal1, scale1, gelu, normal2, scale2)


def product_and_norm(x: Tensor, matrix: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """`add_norm` of a product, in one kernel or two."""
    if joins(matrix):
        return product_norm(x, matrix, *rest)
    return add_norm(x @ matrix.t(), *rest)


def backward(
    grad: Tensor, own: Forth, kept: Kept, documents: Tensor, shape: Shape, seeds: Tensor,
    p: Sequence[Tensor], found: Back, sums: "Sums", number: int,
) -> Tensor:  # fmt: skip
    """The gradient of one layer's input; `found` gets factors of those of its matrices."""
    w_qkv, w_attended, w_expand, w_contract, _ = p[:5]
    _, gain1, _, b_expand, _, gain2, _ = p[5:]
    grad = add_norm_backward(
        grad, kept.normal2, kept.scale2, gain2, sums.norms[number, 1], seeds[2], shape.dropout,
        found.of_outer,
    )  # fmt: skip
    through, of_inner, parts = found.of_outer, found.of_inner, sums.gelu[number]
    if ffn_fits(w_contract):
        ffn_backward(through, w_contract, kept.gelu, w_expand, parts, of_inner, grad)
    else:
        if shallow(w_contract.shape[0]):
            contract_backward(through, w_contract, kept.gelu, b_expand, parts, of_inner)
        else:
            torch.mm(through, w_contract, out=of_inner)
            bias_gelu_backward_(of_inner, kept.gelu, b_expand, parts)
        grad.addmm_(of_inner, w_expand)
    grad = add_norm_backward(
        grad, kept.normal1, kept.scale1, gain1, sums.norms[number, 0], seeds[1], shape.dropout,
        found.of_attended,
    )  # fmt: skip
    attend_backward(
        found.of_attended @ w_attended, kept.qkv, documents, own.mixed, kept.logs, shape.heads,
        seeds[0], shape.attention_dropout, found.of_qkv, sums.qkv[number],
    )  # fmt: skip
    return grad.addmm_(found.of_qkv, w_qkv)


def forth_widths(layer: Sequence[Tensor]) -> list[int]:
    """Of the members of `Forth`: what each matrix is multiplied with."""
    return [matrix.shape[1] for matrix in layer[:4]]


def empties(like: Tensor, layers: int, widths: Sequence[int]) -> list[Tensor]:
    """Room for factors of several layers."""
    return [like.new_empty(layers, len(like), width) for width in widths]


def small(x: Tensor, layer: Sequence[Tensor]) -> bool:
    """Whether the gradients of a layer's matrices are such products.

    Then those of all layers are found at once. It costs memory: the factors of all layers.
    """
    return len(x) * layer[2].numel() < SMALL


class Sums:
    """Gradients of the vectors: each kernel leaves parts, which are added up for all layers."""

    def __init__(self, documents: Tensor, layers: Sequence[Sequence[Tensor]]) -> None:
        device, tokens = documents.device, documents.numel()
        hidden, inner = layers[0][1].shape[0], layers[0][2].shape[0]

        def empty(*shape: int) -> Tensor:
            return torch.empty(len(layers), *shape, device=device)

        self.norms = empty(2, norm_parts(tokens, hidden, device), 3, hidden)
        parts = contract_parts if shallow(hidden) else gelu_parts
        fits = ffn_fits(layers[0][3])
        self.gelu = empty(ffn_parts(tokens) if fits else parts(tokens, inner, device), inner)
        self.qkv = empty(sum_parts(*documents.shape), 2, hidden)  # keys' are zero

    def finish(self) -> list[tuple[Tensor, ...]]:
        """In the order of `NAMES`, for each layer."""
        layers, _, _, hidden = self.qkv.shape
        qkv = self.qkv.new_zeros(layers, 3, hidden)
        torch.sum(self.qkv, 1, out=qkv[:, ::2])
        qkv, gelu = qkv.flatten(1), self.gelu.sum(1)
        first, second = self.norms.sum(2).unbind(1)  # each (layers, 3, hidden)
        (weight1, shift1, bias1), (weight2, shift2, bias2) = first.unbind(1), second.unbind(1)
        every = (qkv, bias1, weight1, shift1, gelu, bias2, weight2, shift2)
        return list(zip(*every, strict=True))


def product(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of a matrix, or of one for each layer, in fp32 whatever its factors are."""
    if a.dtype == torch.float32:
        return a @ b
    multiply = torch.bmm if a.ndim == 3 else torch.mm
    return multiply(a, b, out_dtype=torch.float32)


def cast_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies in another precision, in few launches."""
    copies = [torch.empty_like(t, dtype=dtype) for t in tensors]
    torch._foreach_copy_(copies, [t.detach() for t in tensors])
    return copies


def _cut(tensors: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]
