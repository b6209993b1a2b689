"""All layers of an encoder as one function: what `electra.models.encoder.Layer` says, fused.

A layer is eight kernels forward and about fourteen back. The residual stream is in the precision
of the products. Kept for the way back: per token and layer 16 x width numbers, gelu's value among
them: to compute it again would save a quarter, but it would have to be written a second time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.models.kernels.attention import (
    attend,
    attend_backward,
    bias_backward,
    bias_parts,
)
from electra.models.kernels.dropout import draw_seeds
from electra.models.kernels.ffn import contract_backward, contract_parts, shallow
from electra.models.kernels.gelu import bias_gelu, bias_gelu_backward_, gelu_parts
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


class Shape(NamedTuple):
    """What is not a tensor."""

    heads: int
    dropout: float
    attention_dropout: float
    eps: float
    recompute: bool = False
    """Keep each layer's input alone, and compute the rest again on the way back."""


class Kept(NamedTuple):
    """What one layer keeps for the way back."""

    x: Tensor
    qkv: Tensor
    mixed: Tensor
    logs: Tensor
    normal1: Tensor
    scale1: Tensor
    y: Tensor
    inner: Tensor
    active: Tensor
    normal2: Tensor
    scale2: Tensor


class Body(torch.autograd.Function):
    """(tokens, hidden) through all layers; `documents` is (rows, length)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, documents: Tensor, shape: Shape, *params: Tensor) -> Tensor:
        layers = _cut(params, len(NAMES))
        cast = cast_all([p for layer in layers for p in layer[:CAST]], x.dtype)
        seeds = draw_seeds(3 * len(layers), x.device).view(len(layers), 3, -1)
        kept: list[Tensor] = []
        for layer, products, seed in zip(layers, _cut(cast, CAST), seeds, strict=True):
            before = x
            x, saved = forward(x, documents, shape, seed, [*products, *layer[CAST:]])
            kept += [before] if shape.recompute else saved
        ctx.save_for_backward(documents, seeds, *params, *cast, *kept)
        ctx.shape = shape
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()  # that of a sum repeats one number
        documents, seeds, *rest = ctx.saved_tensors
        count = len(seeds)
        ends = len(NAMES) * count, (len(NAMES) + CAST) * count
        layers, cast = _cut(rest[: ends[0]], len(NAMES)), _cut(rest[ends[0] : ends[1]], CAST)
        kept = _cut(rest[ends[1] :], 1 if ctx.shape.recompute else len(Kept._fields))
        sums = Sums(documents, layers)
        matrices: list[list[Tensor]] = [[]] * count
        for n in reversed(range(count)):
            params = [*cast[n], *layers[n][CAST:]]
            own = kept[n]
            if ctx.shape.recompute:
                own = forward(own[0], documents, ctx.shape, seeds[n], params)[1]
            grad, matrices[n] = backward(
                grad, Kept._make(own), documents, ctx.shape, seeds[n], params, sums, n
            )
        vectors = sums.finish()
        of_params = [g for n in range(count) for g in (*matrices[n], *vectors[n])]
        return grad, None, None, *of_params


def forward(
    x: Tensor, documents: Tensor, shape: Shape, seeds: Tensor, p: Sequence[Tensor]
) -> tuple[Tensor, Kept]:
    """One layer."""
    w_qkv, w_attended, w_expand, w_contract, b_qkv = p[:5]
    b_attended, gain1, shift1, b_expand, b_contract, gain2, shift2 = p[5:]
    qkv = torch.addmm(b_qkv, x, w_qkv.t())
    mixed, logs = attend(qkv, documents, shape.heads, seeds[0], shape.attention_dropout)
    attended = mixed @ w_attended.t()
    norm1, norm2 = (gain1, shift1, shape.eps), (gain2, shift2, shape.eps)
    y, normal1, scale1 = add_norm(attended, b_attended, x, norm1, seeds[1], shape.dropout)
    inner = y @ w_expand.t()
    active = bias_gelu(inner, b_expand)
    outer = active @ w_contract.t()
    out, normal2, scale2 = add_norm(outer, b_contract, y, norm2, seeds[2], shape.dropout)
    return out, Kept(x, qkv, mixed, logs, normal1, scale1, y, inner, active, normal2, scale2)


def backward(
    grad: Tensor, kept: Kept, documents: Tensor, shape: Shape, seeds: Tensor, p: Sequence[Tensor],
    sums: "Sums", number: int,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The gradient of one layer's input and those of its four matrices."""
    w_qkv, w_attended, w_expand, w_contract, _ = p[:5]
    _, gain1, _, b_expand, _, gain2, _ = p[5:]
    residual, through = add_norm_backward(
        grad, kept.normal2, kept.scale2, gain2, sums.norms[number, 1], seeds[2], shape.dropout
    )
    if shallow(w_contract.shape[0]):
        of_inner = contract_backward(through, w_contract, kept.inner, b_expand, sums.gelu[number])
    else:
        of_inner = through @ w_contract
        bias_gelu_backward_(of_inner, kept.inner, b_expand, sums.gelu[number])
    of_contract = product(through.t(), kept.active)
    of_expand = product(of_inner.t(), kept.y)
    grad = residual.addmm_(of_inner, w_expand)
    residual, through = add_norm_backward(
        grad, kept.normal1, kept.scale1, gain1, sums.norms[number, 0], seeds[1], shape.dropout
    )
    of_attended = product(through.t(), kept.mixed)
    of_qkv = attend_backward(
        through @ w_attended, kept.qkv, documents, kept.mixed, kept.logs, shape.heads, seeds[0],
        shape.attention_dropout,
    )  # fmt: skip
    bias_backward(of_qkv, sums.qkv[number])
    of_w_qkv = product(of_qkv.t(), kept.x)
    return residual.addmm_(of_qkv, w_qkv), [of_w_qkv, of_attended, of_expand, of_contract]


class Sums:
    """Gradients of the vectors: each kernel leaves parts, which are added up for all layers."""

    def __init__(self, documents: Tensor, layers: Sequence[Sequence[Tensor]]) -> None:
        device, tokens = documents.device, documents.numel()
        hidden, inner = layers[0][1].shape[0], layers[0][2].shape[0]

        def empty(*shape: int) -> Tensor:
            return torch.empty(len(layers), *shape, device=device)

        self.norms = empty(2, norm_parts(tokens, hidden, device), 3, hidden)
        parts = contract_parts if shallow(hidden) else gelu_parts
        self.gelu = empty(parts(tokens, inner, device), inner)
        self.qkv = empty(bias_parts(tokens, 3 * hidden, device), 3 * hidden)

    def finish(self) -> list[tuple[Tensor, ...]]:
        """In the order of `NAMES`, for each layer."""
        qkv, gelu = self.qkv.sum(1), self.gelu.sum(1)
        first, second = self.norms.sum(2).unbind(1)  # each (layers, 3, hidden)
        (weight1, shift1, bias1), (weight2, shift2, bias2) = first.unbind(1), second.unbind(1)
        every = (qkv, bias1, weight1, shift1, gelu, bias2, weight2, shift2)
        return list(zip(*every, strict=True))


def product(a: Tensor, b: Tensor) -> Tensor:
    """The gradient of a matrix, in fp32 whatever its factors are."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32)


def cast_all(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Copies in another precision, in few launches."""
    copies = [torch.empty_like(t, dtype=dtype) for t in tensors]
    torch._foreach_copy_(copies, [t.detach() for t in tensors])
    return copies


def _cut(tensors: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]
