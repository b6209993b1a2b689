"""All layers of a very narrow encoder as one kernel, and one for the backward pass.

Each layer of ELECTRA-Small's generator takes a GPU less time than a launch. Its rows are
independent, so that a thread block can take a row from the first layer to the last
(`fused_encoder_forward.cu`), and back (`fused_encoder_backward.cu`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from electra.kernels.any_gpu.attention import kernel_scalars
from electra.kernels.any_gpu.random import drop_count, pairwise_compare, rescale
from electra.kernels.any_gpu.reduce import num_programs
from electra.kernels.cuda.attention import HEAD_DIM, LENGTH
from electra.kernels.cuda.runtime import (
    WARP_ROWS,
    WARPGROUPS,
    is_supported,
    launch,
    tensor_map,
)
from electra.kernels.layer_params import (
    ActivationGrads,
    LayerParams,
    LinearInputs,
    SavedForBackward,
)

WIDTH, INNER = 64, 256
FORWARD_SHARED, BACKWARD_SHARED = 219264, 231936
"""Bytes of shared memory of each kernel."""


def supports(
    length: int, heads: int, hidden: int, inner: int, dropouts: Sequence[float],
    dtype: torch.dtype, device: torch.device,
) -> bool:  # fmt: skip
    """Whether an encoder of these sizes is computed here."""
    sizes = (length, heads, hidden, inner) == (LENGTH, WIDTH // HEAD_DIM, WIDTH, INNER)
    fits = sizes and all(map(pairwise_compare, dropouts))
    return fits and dtype == torch.bfloat16 and is_supported(device)


def stack_vectors(layers: Sequence[LayerParams]) -> Tensor:
    """The vectors that are not cast (layers, 640), in the kernels' order."""
    order = (
        (p.b_out, p.norm1_weight, p.norm1_bias, p.b_down, p.norm2_weight, p.norm2_bias, p.b_up)
        for p in layers
    )
    return torch.cat([vector for layer in order for vector in layer]).view(len(layers), -1)


def fused_encoder_forward(
    x: Tensor, doc_ids: Tensor, seeds: Tensor, weights: Sequence[Tensor], vectors: Tensor,
    eps: float, dropout: float, attention_dropout: float,
) -> tuple[Tensor, LinearInputs, SavedForBackward]:  # fmt: skip
    """The output, and what the backward pass needs, of all layers together.

    `weights` are stacks of the cast parameters of all layers, `vectors` is from `stack_vectors`.
    """
    layers, tokens = len(vectors), len(x)

    def empty(*widths: int, dtype: torch.dtype = x.dtype) -> Tensor:
        return x.new_empty(layers, tokens, *widths, dtype=dtype)

    def per_token() -> Tensor:
        return empty(dtype=torch.float32)

    every = x.new_empty(layers + 1, tokens, WIDTH)  # each layer's input, and the output
    every[0] = x
    inputs = LinearInputs(every[:-1], empty(WIDTH), empty(WIDTH), empty(INNER))
    norms = empty(WIDTH), per_token(), empty(WIDTH), per_token()
    gelu_grad = empty(INNER, dtype=torch.uint8)
    saved = SavedForBackward(empty(3 * WIDTH), per_token(), *norms, gelu_grad)
    *matrices, bias = weights
    read = (every, *matrices, saved.qkv)
    written = (*inputs[1:], saved.x_hat1, saved.x_hat2, every)
    length, _, *attention = kernel_scalars(LENGTH, 1, HEAD_DIM, attention_dropout)
    scale, *attention_drop = attention
    rows = tokens // length
    launch(
        "fused_encoder_forward.fused_encoder_forward", num_programs(rows, x.device, 1),
        FORWARD_SHARED, *(tensor_map(t.flatten(0, 1)) for t in read),
        *(tensor_map(t.flatten(0, 1), WARP_ROWS) for t in written),
        vectors, bias, saved.lse, saved.rstd1, saved.rstd2, saved.gelu_grad, doc_ids, seeds, rows,
        layers, scale, eps, drop_count(dropout), rescale(dropout), *attention_drop,
    )  # fmt: skip
    return every[-1], inputs, saved


def fused_encoder_backward(
    grad: Tensor, doc_ids: Tensor, seeds: Tensor, weights: Sequence[Tensor], vectors: Tensor,
    inputs: LinearInputs, saved: SavedForBackward, dropout: float, attention_dropout: float,
    partials: Sequence[Tensor],
) -> tuple[Tensor, ActivationGrads]:  # fmt: skip
    """The gradient of the input, and the activation gradients of all layers together.

    `partials` get the sums over tokens: both norms (layers, 2, parts, 3, 64), the up-projection
    (layers, parts, 256) and QKV (layers, parts, 3, 64).
    """
    like = (saved.qkv, inputs.context, inputs.gelu_out, inputs.y)
    grads = ActivationGrads._make(map(torch.empty_like, like))
    grad_input = torch.empty_like(grad)
    read = (*weights[:-1], saved.qkv, inputs.context, saved.x_hat1, saved.x_hat2)
    length, _, *attention = kernel_scalars(LENGTH, 1, HEAD_DIM, attention_dropout)
    scale, *attention_drop = attention
    layers, rows = len(vectors), len(grad) // length
    launch(
        "fused_encoder_backward.fused_encoder_backward", num_programs(rows, grad.device, 1),
        BACKWARD_SHARED, tensor_map(grad),
        *(tensor_map(t.flatten(0, 1)) for t in (*read, *grads)), tensor_map(grad_input),
        vectors, saved.gelu_grad, saved.rstd1, saved.rstd2, saved.lse, doc_ids, seeds, *partials,
        rows, layers, scale, drop_count(dropout), rescale(dropout), *attention_drop,
    )  # fmt: skip
    return grad_input, grads


def num_partials(rows: int) -> int:
    """How many partial sums `fused_encoder_backward` writes: one for each warpgroup."""
    return WARPGROUPS * rows
