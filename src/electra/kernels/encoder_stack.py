"""All layers of an encoder as one function: what `electra.models.encoder.Layer` says, fused.

Besides the gradients of its matrices a layer is five kernels each way, eight or nine in a wide
model; in the narrowest two, or all layers are one (`by_rows`). The residual stream is in the
precision of the products. Kept for the way back: per token and layer 12 x width numbers, gelu's
value among them, and 4 x width bytes, its slope.
Where rows are few, the gradients of the matrices wait for the last layer, and are found together.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.kernels.any_gpu.attention import attend, attend_backward, sum_parts
from electra.kernels.any_gpu.dropout import draw_seeds
from electra.kernels.hopper.gemm_gelu import (
    contract_backward,
    expand_gelu,
    ffn_fits,
    ffn_parts,
    product_back,
    product_bias,
)
from electra.kernels.any_gpu.gelu import bend_, bend_parts, bias_gelu, empty_slope
from electra.kernels.hopper.gemm_layernorm import joins, product_norm, product_norm_backward
from electra.kernels.layer_params import CAST, NAMES, Back, Forth, Kept
from electra.kernels.hopper.fused_layer import (
    Projection,
    narrow,
    narrow_backward,
    narrow_forward,
    narrow_parts,
)
from electra.kernels.any_gpu.layernorm import add_norm, add_norm_backward, back_parts
from electra.kernels.cuda.fused_encoder import (
    VECTORS,
    by_rows,
    rows_backward,
    rows_forward,
    rows_parts,
)
from electra.kernels.any_gpu.reduce import add_parts

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


class Body(torch.autograd.Function):
    """(tokens, hidden) through all layers; `documents` is (rows, length).

    `matrices` are copies of the first `CAST` parameters in the precision of x, of all layers.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, documents: Tensor, shape: Shape, matrices: Sequence[Tensor],
        *params: Tensor,
    ) -> Tensor:  # fmt: skip
        layers = _cut(params, len(NAMES))
        cast = [matrix[n] for n in range(len(layers)) for matrix in matrices]
        # A launch between copies and the kernels in CUDA, which read matrices early
        seeds = draw_seeds(3 * len(layers), x.device).view(len(layers), 3, -1)
        ctx.shape = shape
        dropouts = shape.dropout, shape.attention_dropout
        ctx.by_rows = (
            not shape.recompute
            and small(x, layers[0])
            and by_rows(documents, layers[0][3], shape.heads, x.dtype, dropouts)
        )
        if ctx.by_rows:
            vectors = torch.cat([layer[i] for layer in layers for i in VECTORS])
            vectors = vectors.view(len(layers), -1)
            out, forth, saved = rows_forward(
                x, documents, seeds, matrices, vectors, shape.eps, *dropouts
            )
            ctx.save_for_backward(documents, seeds, vectors, *matrices, *forth, *saved)
            return out
        room = 1 if shape.recompute else len(layers)
        forth = Forth._make(empties(x, room, forth_widths(layers[0])))
        if not shape.recompute and small(x, layers[0]):  # in the place where products want it
            forth.x[0] = x
        first = x
        kept: list[Tensor] = []
        own_matrices = _cut(cast, CAST)
        qkv = project(x, projection(x, own_matrices[0]))
        for n, layer in enumerate(layers):
            own = Forth._make(t[n % room] for t in forth)
            if shape.recompute or n == 0:
                own = own._replace(x=x)
            out = forth.x[n + 1] if n + 1 < room else torch.empty_like(x)
            above = projection(x, own_matrices[n + 1]) if n + 1 < len(layers) else None
            p = [*own_matrices[n], *layer[CAST:]]
            saved = forward(own, qkv, documents, shape, seeds[n], p, out, above)
            kept += [x] if shape.recompute else saved
            x, qkv = out, above.qkv if above else qkv
        if not shape.recompute:
            kept += forth
        ctx.save_for_backward(first, documents, seeds, *params, *cast, *kept)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()  # that of a sum repeats one number
        if ctx.by_rows:
            return _back_by_rows(grad, ctx.shape, *ctx.saved_tensors)
        first, documents, seeds, *rest = ctx.saved_tensors
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
        sums = Sums(documents, cast, shape)
        matrices: list[Sequence[Tensor]] = []
        above: Projection | None = None
        for n in reversed(range(count)):
            params = [*cast[n], *layers[n][CAST:]]
            own = Forth._make(t[n % len(t)] for t in forth)
            if n == 0:
                own = own._replace(x=first)
            others: Sequence[Tensor] = kept[n]
            if shape.recompute:
                own = own._replace(x=kept[n][0])
                qkv, out = project(own.x, projection(own.x, params)), torch.empty_like(grad)
                others = forward(own, qkv, documents, shape, seeds[n], params, out, None)
            found = Back._make(t[n % len(t)] for t in back)
            grad = backward(
                grad, above, own, Kept._make(others), documents, shape, seeds[n], params, found,
                sums, n,
            )  # fmt: skip
            above = Projection(found.of_qkv, params[0], params[4])
            if not together:
                matrices.insert(0, [product(a.mT, b) for a, b in zip(found, own, strict=True)])
        if together:
            matrices = products(back, forth)
        return through(grad, above), None, None, None, *sums.finish(matrices)


def _back_by_rows(
    grad: Tensor, shape: Shape, documents: Tensor, seeds: Tensor, vectors: Tensor, *rest: Tensor
) -> tuple[Tensor | None, ...]:
    """The way back where `rows_forward` was the way forth."""
    matrices, forth = rest[:CAST], Forth._make(rest[CAST : -len(Kept._fields)])
    kept = Kept._make(rest[-len(Kept._fields) :])
    layers = [[matrix[n] for matrix in matrices] for n in range(len(seeds))]
    sums = Sums(documents, layers, shape, by_rows=True)
    of_input, back = rows_backward(
        grad, documents, seeds, matrices, vectors, forth, kept, shape.dropout,
        shape.attention_dropout, (sums.norms, sums.gelu, sums.qkv),
    )  # fmt: skip
    return of_input, None, None, None, *sums.finish(products(back, forth))


def products(back: Back, forth: Forth) -> list[Sequence[Tensor]]:
    """The gradients of the matrices of each layer, from both factors of all layers."""
    every = (product(a.mT, b).unbind() for a, b in zip(back, forth, strict=True))
    return list(zip(*every, strict=True))


def forward(
    own: Forth, qkv: Tensor, documents: Tensor, shape: Shape, seeds: Tensor, p: Sequence[Tensor],
    out: Tensor, above: Projection | None,
) -> Kept:  # fmt: skip
    """One layer: from `own.x` and its projections the rest of `own`, `out`, and those above."""
    x, mixed, y, active = own
    logs = attend(qkv, documents, shape.heads, seeds[0], shape.attention_dropout, mixed)
    slope = empty_slope(active)
    if narrow(p[3]):
        normals = narrow_forward(
            mixed, x, y, active, slope, out, p, seeds[1:], shape.dropout, shape.eps, above
        )
        return Kept(qkv, logs, *normals, slope)
    _, w_attended, w_expand, w_contract, _ = p[:5]
    b_attended, gain1, shift1, b_expand, b_contract, gain2, shift2 = p[5:]
    norm1, norm2 = (gain1, shift1, shape.eps), (gain2, shift2, shape.eps)
    rest = (b_attended, x, norm1, seeds[1], shape.dropout, y)
    first = product_and_norm(mixed, w_attended, *rest)
    if ffn_fits(w_contract):
        expand_gelu(y, w_expand, b_expand, active, slope)
    else:
        bias_gelu(y @ w_expand.t(), b_expand, active, slope)
    rest = (b_contract, y, norm2, seeds[2], shape.dropout, out)
    second = product_and_norm(active, w_contract, *rest)
    if above:
        project(out, above)
    return Kept(qkv, logs, *first, *second, slope)


def projection(x: Tensor, p: Sequence[Tensor]) -> Projection:
    """From `x` through the first parameters of a layer."""
    return Projection(x.new_empty(len(x), len(p[0])), p[0], p[4])


def project(x: Tensor, to: Projection) -> Tensor:
    """Queries, keys and values."""
    if joins(to.matrix[: x.shape[1]]):  # a third of it is square
        product_bias(x, to.matrix, to.bias, to.qkv)
        return to.qkv
    return torch.addmm(to.bias, x, to.matrix.t(), out=to.qkv)


def product_and_norm(x: Tensor, matrix: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """`add_norm` of a product, in one kernel or two."""
    if joins(matrix):
        return product_norm(x, matrix, *rest)
    return add_norm(x @ matrix.t(), *rest)


def backward(
    grad: Tensor, above: Projection | None, own: Forth, kept: Kept, documents: Tensor, shape: Shape,
    seeds: Tensor, p: Sequence[Tensor], found: Back, sums: "Sums", number: int,
) -> Tensor:  # fmt: skip
    """The gradient of one layer's input; `found` gets factors of those of its matrices.

    In both of these gradients what comes through the projections is missing: `above` are those from
    the output, with their gradients, and those from the input are the first of `found`.
    """
    _, w_attended, w_expand, w_contract, _ = p[:5]
    norm_sums, gelu_sums = sums.norms[number], sums.gelu[number]
    of_qkv, of_attended, of_inner, of_outer = found
    if narrow(w_contract):
        grad, of_mixed = narrow_backward(
            grad, above, kept[2:], p, seeds[1:], shape.dropout, of_attended, of_inner, of_outer,
            norm_sums, gelu_sums,
        )  # fmt: skip
    else:
        grad = norm_backward(
            grad, above, kept.normal2, kept.scale2, p[10], norm_sums[1], seeds[2], shape.dropout,
            of_outer,
        )  # fmt: skip
        if ffn_fits(w_contract):
            contract_backward(of_outer, w_contract, kept.slope, gelu_sums, of_inner)
        else:
            torch.mm(of_outer, w_contract, out=of_inner)
            bend_(of_inner, kept.slope, gelu_sums)
        grad = product_norm_backward(
            of_inner, w_expand, grad, kept.normal1, kept.scale1, p[6], norm_sums[0], seeds[1],
            shape.dropout, of_attended,
        )  # fmt: skip
        of_mixed = product_back(of_attended, w_attended)
    attend_backward(
        of_mixed, kept.qkv, documents, own.mixed, kept.logs, shape.heads, seeds[0],
        shape.attention_dropout, of_qkv, sums.qkv[number],
    )  # fmt: skip
    return grad


def norm_backward(grad: Tensor, above: Projection | None, *rest: Any) -> Tensor:
    """`add_norm_backward` with what comes back through projections, if there are any."""
    if above:
        return product_norm_backward(above.qkv, above.matrix, grad, *rest)
    return add_norm_backward(grad, *rest)


def through(grad: Tensor, above: Projection | None) -> Tensor:
    """A gradient with what comes back through projections, if there are any, in its place."""
    return grad.addmm_(above.qkv, above.matrix) if above else grad


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

    def __init__(
        self, documents: Tensor, layers: Sequence[Sequence[Tensor]], shape: Shape,
        *, by_rows: bool = False,
    ) -> None:  # fmt: skip
        device, tokens = documents.device, documents.numel()
        hidden, inner = layers[0][1].shape[0], layers[0][2].shape[0]

        def empty(*sizes: int) -> Tensor:
            return torch.empty(len(layers), *sizes, device=device)

        contract = layers[0][3]
        of_norms = back_parts(tokens, hidden, contract.dtype, device, shape.dropout)
        of_gelu = bend_parts(tokens, inner, device)
        if narrow(contract):
            of_norms = of_gelu = narrow_parts(tokens)
        elif ffn_fits(contract):
            of_gelu = ffn_parts(tokens, contract)
        head = hidden // shape.heads, contract.dtype, shape.attention_dropout
        of_qkv = sum_parts(documents, *head)
        if by_rows:
            of_norms = of_gelu = of_qkv = rows_parts(documents)
        self.norms = empty(2, of_norms, 3, hidden)
        self.gelu = empty(of_gelu, inner)
        self.qkv = empty(of_qkv, 3, hidden)

    def finish(self, matrices: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """All gradients, in the order of `NAMES`, layer by layer, with those of its matrices."""
        qkv, gelu = add_parts(self.qkv, 1).flatten(1), add_parts(self.gelu, 1)
        first, second = add_parts(self.norms, 2).unbind(1)  # each (layers, 3, hidden)
        (weight1, shift1, bias1), (weight2, shift2, bias2) = first.unbind(1), second.unbind(1)
        every = (qkv, bias1, weight1, shift1, gelu, bias2, weight2, shift2)
        vectors = zip(*every, strict=True)
        return [g for own in zip(matrices, vectors, strict=True) for g in chain(*own)]


def product(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of a matrix, or of one for each layer, in fp32 whatever its factors are."""
    if a.dtype == torch.float32:
        return a @ b
    multiply = torch.bmm if a.ndim == 3 else torch.mm
    return multiply(a, b, out_dtype=torch.float32)


def _cut(tensors: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]
