"""All layers of a very narrow network over rows of one length, as one kernel each way.

ELECTRA-Small's generator is such a network: each of its layers takes a GPU less time than to begin
with it. Its rows have nothing to do with each other, so that a program can go with one of them from
the first layer to the last (rows.cu), and back (rowsback.cu).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from electra.kernels.any_gpu.attention import SIZE, WHOLE, settings
from electra.kernels.cuda.runtime import WARPGROUPS, WARP_ROWS, launch, tensor_map, is_supported
from electra.kernels.any_gpu.dropout import by_halves, drop_count, rescale
from electra.kernels.any_gpu.launch import programs
from electra.kernels.layer_params import NAMES, Back, Forth, Kept

WIDTH, INNER = 64, 256
FORTH_SHARED, BACK_SHARED = 219264, 231936
"""Bytes on the chip."""
VECTORS = [
    *map(NAMES.index, ("attended.bias", "attention_norm.weight", "attention_norm.bias")),
    *map(NAMES.index, ("contract.bias", "output_norm.weight", "output_norm.bias", "expand.bias")),
]
"""Of the parameters of a layer those that are not cast, in the kernels' order."""


def by_rows(
    documents: Tensor, contract: Tensor, heads: int, dtype: torch.dtype, dropouts: Sequence[float]
) -> bool:
    """Whether a network with such layers is computed here."""
    shape = (documents.shape[1], heads, *contract.shape) == (WHOLE, WIDTH // SIZE, WIDTH, INNER)
    fits = shape and all(map(by_halves, dropouts))
    return fits and dtype == torch.bfloat16 and is_supported(documents.device)


def rows_forward(
    x: Tensor, documents: Tensor, seeds: Tensor, matrices: Sequence[Tensor], vectors: Tensor,
    eps: float, dropout: float, attention_dropout: float,
) -> tuple[Tensor, Forth, Kept]:  # fmt: skip
    """The result, and what is kept for the way back of all layers together.

    `matrices` are the first five parameters of a layer, `vectors` (layers, 640) the others in the
    order of `VECTORS`, of all layers too.
    """
    layers, tokens = len(vectors), len(x)

    def empty(*widths: int, dtype: torch.dtype = x.dtype) -> Tensor:
        return x.new_empty(layers, tokens, *widths, dtype=dtype)

    def scales() -> Tensor:
        return empty(dtype=torch.float32)

    every = x.new_empty(layers + 1, tokens, WIDTH)  # each layer's input, and the result
    every[0] = x
    forth = Forth(every[:-1], empty(WIDTH), empty(WIDTH), empty(INNER))
    norms = empty(WIDTH), scales(), empty(WIDTH), scales()
    kept = Kept(empty(3 * WIDTH), scales(), *norms, empty(INNER, dtype=torch.uint8))
    *factors, bias = matrices
    read = (every, *factors, kept.qkv)
    left = (*forth[1:], kept.normal1, kept.normal2, every)
    length, _, scale, odds_drops, odds_rescale = settings(WHOLE, 1, SIZE, attention_dropout)
    rows = tokens // length
    launch(
        "fused_encoder_forward.fused_encoder_forward", programs(rows, x.device, 1), FORTH_SHARED,
        *(tensor_map(t.flatten(0, 1)) for t in read), *(tensor_map(t.flatten(0, 1), WARP_ROWS) for t in left),
        vectors, bias, kept.logs, kept.scale1, kept.scale2, kept.slope, documents, seeds, rows,
        layers, scale, eps, drop_count(dropout), rescale(dropout), odds_drops, odds_rescale,
    )  # fmt: skip
    return every[-1], forth, kept


def rows_backward(
    grad: Tensor, documents: Tensor, seeds: Tensor, matrices: Sequence[Tensor], vectors: Tensor,
    forth: Forth, kept: Kept, dropout: float, attention_dropout: float, sums: Sequence[Tensor],
) -> tuple[Tensor, Back]:  # fmt: skip
    """The gradient of the input, and the factors of all layers together.

    `sums` get those over tokens in `rows_parts` parts: of both norms (layers, 2, parts, 3, 64), of
    the expansion (layers, parts, 256) and of the projections (layers, parts, 3, 64).
    """
    back = Back._make(map(torch.empty_like, (kept.qkv, forth.mixed, forth.active, forth.y)))
    of_input = torch.empty_like(grad)
    read = (*matrices[:-1], kept.qkv, forth.mixed, kept.normal1, kept.normal2)
    length, _, scale, odds_drops, odds_rescale = settings(WHOLE, 1, SIZE, attention_dropout)
    layers, rows = len(vectors), len(grad) // length
    launch(
        "fused_encoder_backward.fused_encoder_backward", programs(rows, grad.device, 1), BACK_SHARED, tensor_map(grad),
        *(tensor_map(t.flatten(0, 1)) for t in (*read, *back)), tensor_map(of_input),
        vectors, kept.slope, kept.scale1, kept.scale2, kept.logs, documents, seeds, *sums, rows,
        layers, scale, drop_count(dropout), rescale(dropout), odds_drops, odds_rescale,
    )  # fmt: skip
    return of_input, back


def rows_parts(documents: Tensor) -> int:
    """How many parts the sums of `rows_backward` come in."""
    return WARPGROUPS * len(documents)
