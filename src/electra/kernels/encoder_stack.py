"""All layers of an encoder as one function: the fused form of `electra.models.encoder.Layer`.

Besides the weight gradients, a layer is five kernels in each direction, eight or nine in a wide
model; or all layers are one (`electra.kernels.cuda.fused_encoder`). A `Plan` names the
implementation of each piece. The residual stream has the precision of the GEMMs. Saved for the
backward pass, per token and layer: 12 x hidden numbers, GELU's output among them, and 4 x hidden
bytes, its derivative.
"""

from collections.abc import Sequence
from itertools import chain
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from electra.kernels.any_gpu import attention as any_attention
from electra.kernels.any_gpu import gemm as any_gemm
from electra.kernels.any_gpu.gemm import add_layernorm_backward, empty_gelu_grad
from electra.kernels.any_gpu.random import draw_seeds
from electra.kernels.any_gpu.reduce import reduce_partials, weight_grad
from electra.kernels.cuda import attention as cuda_attention
from electra.kernels.cuda import fused_encoder
from electra.kernels.cuda import gemm as cuda_gemm
from electra.kernels.hopper import gemm as hopper_gemm
from electra.kernels.layer_params import (
    NUM_CAST,
    PARAM_NAMES,
    ActivationGrads,
    LayerParams,
    LinearInputs,
    SavedForBackward,
)
from electra.kernels.plan import Plan, Tier

ATTENTION: dict[Tier, ModuleType] = {"any_gpu": any_attention, "cuda": cuda_attention}
GEMM: dict[Tier, ModuleType] = {"any_gpu": any_gemm, "hopper": hopper_gemm, "cuda": cuda_gemm}


class StackConfig(NamedTuple):
    """What is not a tensor."""

    heads: int
    dropout: float
    attention_dropout: float
    eps: float
    plan: Plan
    recompute: bool = False
    """Keep only each layer's input, and compute the rest again in the backward pass."""


class QkvProjection(NamedTuple):
    """From a layer's input to its queries, keys and values; in the backward pass `qkv` is their
    gradient."""

    qkv: Tensor
    weight: Tensor
    bias: Tensor


class EncoderStack(torch.autograd.Function):
    """(tokens, hidden) through all layers; `doc_ids` is (rows, length).

    `weights` are stacks of the first `NUM_CAST` parameters of all layers in the precision of x.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, doc_ids: Tensor, config: StackConfig, weights: Sequence[Tensor],
        *params: Tensor,
    ) -> Tensor:  # fmt: skip
        layers = [LayerParams._make(p) for p in _chunks(params, len(PARAM_NAMES))]
        # CUDA C++ kernels prefetch weights before the previous launch has ended (PDL): this launch
        # has to stand between them and the kernel that writes the shadow weights.
        seeds = draw_seeds(3 * len(layers), x.device).view(len(layers), 3, -1)
        ctx.config = config
        if config.plan.encoder == "fused":
            return _forward_fused(ctx, x, doc_ids, seeds, weights, layers)
        depth = 1 if config.recompute else len(layers)
        stacks = LinearInputs._make(_empty_stacks(x, depth, _input_widths(layers[0])))
        if config.plan.batch_weight_grads:  # where the batched GEMM reads it
            stacks.x[0] = x
        first = x
        saved: list[Tensor] = []
        cast = [_cast(layer, weights, n) for n, layer in enumerate(layers)]
        qkv = project_qkv(x, _qkv_projection(x, cast[0]), config.plan)
        for n, p in enumerate(cast):
            inputs = LinearInputs._make(t[n % depth] for t in stacks)
            if config.recompute or n == 0:
                inputs = inputs._replace(x=x)
            out = stacks.x[n + 1] if n + 1 < depth else torch.empty_like(x)
            next_qkv = _qkv_projection(x, cast[n + 1]) if n + 1 < len(layers) else None
            kept = forward_layer(inputs, qkv, doc_ids, config, seeds[n], p, out, next_qkv)
            saved += [x] if config.recompute else kept
            x, qkv = out, next_qkv.qkv if next_qkv else qkv
        if not config.recompute:
            saved += stacks
        flat = [t for p in cast for t in p]
        ctx.save_for_backward(first, doc_ids, seeds, *flat, *saved)
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad = grads[0].contiguous()  # the gradient of a sum is expanded
        config, plan = ctx.config, ctx.config.plan
        if plan.encoder == "fused":
            return _backward_fused(grad, config, *ctx.saved_tensors)
        first, doc_ids, seeds, *rest = ctx.saved_tensors
        count = len(seeds)
        size = len(PARAM_NAMES)
        layers = [LayerParams._make(p) for p in _chunks(rest[: size * count], size)]
        rest = rest[size * count :]
        if config.recompute:
            stacks = LinearInputs._make(_empty_stacks(grad, 1, _input_widths(layers[0])))
            saved = _chunks(rest, 1)
        else:
            stacks = LinearInputs._make(rest[-len(LinearInputs._fields) :])
            saved = _chunks(rest[: -len(stacks)], len(SavedForBackward._fields))
        batched = plan.batch_weight_grads
        widths = [len(weight) for weight in layers[0][:4]]
        all_grads = ActivationGrads._make(_empty_stacks(grad, count if batched else 1, widths))
        partials = PartialSums(doc_ids, layers, config)
        weight_grads: list[Sequence[Tensor]] = []
        next_qkv: QkvProjection | None = None
        for n in reversed(range(count)):
            p = layers[n]
            inputs = LinearInputs._make(t[n % len(t)] for t in stacks)
            if n == 0:
                inputs = inputs._replace(x=first)
            kept: Sequence[Tensor] = saved[n]
            if config.recompute:
                inputs = inputs._replace(x=saved[n][0])
                qkv = project_qkv(inputs.x, _qkv_projection(inputs.x, p), plan)
                out = torch.empty_like(grad)
                kept = forward_layer(inputs, qkv, doc_ids, config, seeds[n], p, out, None)
            own = ActivationGrads._make(t[n % len(t)] for t in all_grads)
            grad = backward_layer(
                grad, next_qkv, inputs, SavedForBackward._make(kept), doc_ids, config, seeds[n], p,
                own, partials, n,
            )  # fmt: skip
            next_qkv = QkvProjection(own.grad_qkv, p.w_qkv, p.b_qkv)
            if not batched:
                pairs = zip(own, inputs, strict=True)
                weight_grads.insert(0, [weight_grad(a.mT, b) for a, b in pairs])
        if batched:
            weight_grads = _batched_weight_grads(all_grads, stacks)
        assert next_qkv is not None
        grad_input = grad.addmm_(next_qkv.qkv, next_qkv.weight)
        return grad_input, None, None, None, *partials.param_grads(weight_grads)


def _forward_fused(
    ctx: Any, x: Tensor, doc_ids: Tensor, seeds: Tensor, weights: Sequence[Tensor],
    layers: Sequence[LayerParams],
) -> Tensor:  # fmt: skip
    c = ctx.config
    vectors = fused_encoder.stack_vectors(layers)
    out, inputs, saved = fused_encoder.fused_encoder_forward(
        x, doc_ids, seeds, weights, vectors, c.eps, c.dropout, c.attention_dropout
    )
    ctx.save_for_backward(doc_ids, seeds, vectors, *weights, *inputs, *saved)
    return out


def _backward_fused(
    grad: Tensor, config: StackConfig, doc_ids: Tensor, seeds: Tensor, vectors: Tensor,
    *rest: Tensor,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    weights, others = rest[:NUM_CAST], rest[NUM_CAST:]
    inputs = LinearInputs._make(others[: len(LinearInputs._fields)])
    saved = SavedForBackward._make(others[len(inputs) :])
    layers = [[weight[n] for weight in weights] for n in range(len(seeds))]
    partials = PartialSums(doc_ids, layers, config)
    grad_input, grads = fused_encoder.fused_encoder_backward(
        grad, doc_ids, seeds, weights, vectors, inputs, saved, config.dropout,
        config.attention_dropout, (partials.norms, partials.gelu, partials.qkv),
    )  # fmt: skip
    weight_grads = _batched_weight_grads(grads, inputs)
    return grad_input, None, None, None, *partials.param_grads(weight_grads)


def project_qkv(x: Tensor, to: QkvProjection, plan: Plan) -> Tensor:
    """Queries, keys and values."""
    GEMM[plan.gemm].gemm_bias(x, to.weight, to.bias, to.qkv)
    return to.qkv


def forward_layer(
    inputs: LinearInputs, qkv: Tensor, doc_ids: Tensor, config: StackConfig, seeds: Tensor,
    p: LayerParams, out: Tensor, next_qkv: QkvProjection | None,
) -> SavedForBackward:  # fmt: skip
    """One layer: from `inputs.x` and its QKV to the rest of `inputs`, `out` and the next QKV."""
    plan, dropout = config.plan, config.dropout
    gemm, layernorm = GEMM[plan.gemm], GEMM[plan.gemm_layernorm]
    x, context, y, gelu_out = inputs
    lse = ATTENTION[plan.attention].attention_forward(
        qkv, doc_ids, config.heads, seeds[0], config.attention_dropout, context
    )
    gelu_grad = empty_gelu_grad(gelu_out)
    norm1 = (p.norm1_weight, p.norm1_bias, config.eps)
    norm2 = (p.norm2_weight, p.norm2_bias, config.eps)
    x_hat1, rstd1 = layernorm.gemm_layernorm(
        context, p.w_out, p.b_out, x, norm1, seeds[1], dropout, y
    )
    gemm.gemm_bias_gelu(y, p.w_up, p.b_up, gelu_out, gelu_grad)
    x_hat2, rstd2 = layernorm.gemm_layernorm(
        gelu_out, p.w_down, p.b_down, y, norm2, seeds[2], dropout, out
    )
    if next_qkv:
        project_qkv(out, next_qkv, plan)
    return SavedForBackward(qkv, lse, x_hat1, rstd1, x_hat2, rstd2, gelu_grad)


def backward_layer(
    grad: Tensor, next_qkv: QkvProjection | None, inputs: LinearInputs, saved: SavedForBackward,
    doc_ids: Tensor, config: StackConfig, seeds: Tensor, p: LayerParams, grads: ActivationGrads,
    partials: "PartialSums", n: int,
) -> Tensor:  # fmt: skip
    """Return the gradient of the layer's input and write its activation gradients to `grads`.

    Both gradients, `grad` and the result, lack the part through a QKV projection: that of the
    output comes through `next_qkv`, that of the input through `grads.grad_qkv`.
    """
    plan, dropout = config.plan, config.dropout
    gemm, layernorm = GEMM[plan.gemm], GEMM[plan.gemm_layernorm]
    norm2 = (saved.x_hat2, saved.rstd2, p.norm2_weight)
    rest = (seeds[2], dropout, grads.grad_down_proj)
    if next_qkv:
        grad = layernorm.gemm_layernorm_backward(
            next_qkv.qkv, next_qkv.weight, grad, *norm2, partials.norms[n, 1], *rest
        )
    else:
        grad = add_layernorm_backward(grad, *norm2, partials.last_norm, *rest)
    gemm.gemm_gelu_backward(
        grads.grad_down_proj, p.w_down, saved.gelu_grad, partials.gelu[n], grads.grad_up_proj
    )
    grad = layernorm.gemm_layernorm_backward(
        grads.grad_up_proj, p.w_up, grad, saved.x_hat1, saved.rstd1, p.norm1_weight,
        partials.norms[n, 0], seeds[1], dropout, grads.grad_out_proj,
    )  # fmt: skip
    grad_context = gemm.gemm_grad_input(grads.grad_out_proj, p.w_out)
    ATTENTION[plan.attention].attention_backward(
        grad_context, saved.qkv, doc_ids, inputs.context, saved.lse, config.heads, seeds[0],
        config.attention_dropout, grads.grad_qkv, partials.qkv[n],
    )  # fmt: skip
    return grad


class PartialSums:
    """Gradients of the vectors: each kernel writes partial sums, which are reduced for all
    layers."""

    def __init__(
        self, doc_ids: Tensor, layers: Sequence[Sequence[Tensor]], config: StackConfig
    ) -> None:
        device, (rows, length), plan = doc_ids.device, doc_ids.shape, config.plan
        inner, hidden = layers[0][2].shape  # of the up-projection
        tokens = rows * length

        def empty(*sizes: int) -> Tensor:
            return torch.empty(*sizes, device=device)

        if plan.encoder == "fused":
            norms = gelu = qkv = fused_encoder.num_partials(rows)
        else:
            norms = GEMM[plan.gemm_layernorm].layernorm_partials(tokens, hidden, device)
            gelu = GEMM[plan.gemm].gelu_partials(tokens, inner, device)
            qkv = ATTENTION[plan.attention].num_partials(rows, length)
        self.norms = empty(len(layers), 2, norms, 3, hidden)
        self.gelu = empty(len(layers), gelu, inner)
        self.qkv = empty(len(layers), qkv, 3, hidden)
        self.last_norm = self.norms[-1, 1]
        """Of the norm after which no QKV projection comes: it has a kernel without a GEMM."""
        self.apart = plan.encoder == "layers" and plan.gemm_layernorm == "cuda"
        if self.apart:
            self.last_norm = empty(any_gemm.layernorm_partials(tokens, hidden, device), 3, hidden)

    def param_grads(self, weight_grads: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """The gradients of all parameters in the order of `PARAM_NAMES`, layer by layer."""
        qkv, gelu = reduce_partials(self.qkv, 1).flatten(1), reduce_partials(self.gelu, 1)
        norm1, norm2 = (list(t) for t in reduce_partials(self.norms, 2).unbind(1))
        if self.apart:
            norm2[-1] = reduce_partials(self.last_norm, 0)
        every = []
        for own, b_qkv, first, b_up, second in zip(
            weight_grads, qkv, norm1, gelu, norm2, strict=True
        ):
            (weight1, bias1, b_out), (weight2, bias2, b_down) = first, second
            vectors = (b_qkv, b_out, weight1, bias1, b_up, b_down, weight2, bias2)
            every += [*own, *vectors]
        return every


def _batched_weight_grads(grads: ActivationGrads, inputs: LinearInputs) -> list[Sequence[Tensor]]:
    """The weight gradients of each layer, from stacks of all layers."""
    stacked = (weight_grad(a.mT, b).unbind() for a, b in zip(grads, inputs, strict=True))
    return list(zip(*stacked, strict=True))


def _cast(layer: LayerParams, weights: Sequence[Tensor], n: int) -> LayerParams:
    """A layer's parameters, those that go into GEMMs in their precision."""
    return LayerParams._make(chain((weight[n] for weight in weights), layer[NUM_CAST:]))


def _qkv_projection(x: Tensor, p: LayerParams) -> QkvProjection:
    return QkvProjection(x.new_empty(len(x), len(p.w_qkv)), p.w_qkv, p.b_qkv)


def _input_widths(layer: LayerParams) -> list[int]:
    """Widths of the members of `LinearInputs`."""
    return [weight.shape[1] for weight in layer[:4]]


def _empty_stacks(like: Tensor, layers: int, widths: Sequence[int]) -> list[Tensor]:
    return [like.new_empty(layers, len(like), width) for width in widths]


def _chunks(tensors: Sequence[Tensor], size: int) -> list[Sequence[Tensor]]:
    return [tensors[i : i + size] for i in range(0, len(tensors), size)]
