"""All layers of a very narrow network over rows of one length, as one kernel each way.

ELECTRA-Small's generator is such a network: each of its layers takes a GPU less time than to begin
with it. Its rows have nothing to do with each other, so that a program can go with one of them from
the first layer to the last (rows.cu), and back (rowsback.cu).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from electra.models.kernels.attention import SIZE, WHOLE, settings
from electra.models.kernels.cuda import GROUPS, launch, tiles, usable
from electra.models.kernels.dropout import INFINITY, drop_count, rescale
from electra.models.kernels.launch import programs

WIDTH, INNER = 64, 256
FORTH_SHARED, BACK_SHARED = 219264, 231936
"""Bytes on the chip."""
SLAB = 16
"""Rows that a warp stores."""
VECTORS = (5, 6, 7, 9, 10, 11, 8)
"""Of the parameters of a layer those that take no part in products, in the kernel's order."""


class Layers(NamedTuple):
    """What the way forth leaves of all layers, (layers, tokens, ...) each; in `x` the result comes
    last, as one more."""

    x: Tensor
    mixed: Tensor
    y: Tensor
    active: Tensor
    qkv: Tensor
    logs: Tensor
    normal1: Tensor
    scale1: Tensor
    normal2: Tensor
    scale2: Tensor
    slope: Tensor


def by_rows(
    documents: Tensor, contract: Tensor, heads: int, dtype: torch.dtype, dropouts: Sequence[float]
) -> bool:
    """Whether a network with such layers is computed here."""
    shape = (documents.shape[1], heads, *contract.shape) == (WHOLE, WIDTH // SIZE, WIDTH, INNER)
    fits = shape and all(drop_count(p) <= INFINITY.value for p in dropouts)
    return fits and dtype == torch.bfloat16 and usable(documents.device)


def rows_forward(
    x: Tensor, documents: Tensor, seeds: Tensor, matrices: Sequence[Tensor], vectors: Tensor,
    eps: float, dropout: float, attention_dropout: float,
) -> Layers:  # fmt: skip
    """`matrices` are the first five parameters of a layer, `vectors` (layers, 640) the others in
    the order of `VECTORS`; of all layers together."""
    layers, tokens = len(vectors), len(x)

    def empty(*widths: int, dtype: torch.dtype = x.dtype) -> Tensor:
        return x.new_empty(layers, tokens, *widths, dtype=dtype)

    real = torch.float32
    found = Layers(
        x.new_empty(layers + 1, tokens, WIDTH), empty(WIDTH), empty(WIDTH), empty(INNER),
        empty(3 * WIDTH), empty(dtype=real), empty(WIDTH), empty(dtype=real), empty(WIDTH),
        empty(dtype=real), empty(INNER, dtype=torch.uint8),
    )  # fmt: skip
    found.x[0] = x
    project, attended, expand, contract, bias = matrices
    read = (found.x, project, attended, expand, contract, found.qkv)
    left = (found.mixed, found.y, found.active, found.normal1, found.normal2, found.x)
    length, _, scale, odds_drops, odds_rescale = settings(WHOLE, 1, SIZE, attention_dropout)
    rows = tokens // length
    launch(
        "rows.rows_forward", programs(rows, x.device, 1), FORTH_SHARED,
        *(tiles(t.flatten(0, 1)) for t in read), *(tiles(t.flatten(0, 1), SLAB) for t in left),
        vectors, bias, found.logs, found.scale1, found.scale2, found.slope, documents, seeds, rows,
        layers, scale, eps, drop_count(dropout), rescale(dropout), odds_drops, odds_rescale,
    )  # fmt: skip
    return found


def rows_backward(
    grad: Tensor, documents: Tensor, seeds: Tensor, matrices: Sequence[Tensor], vectors: Tensor,
    found: Layers, dropout: float, attention_dropout: float, sums: Sequence[Tensor],
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """The gradient of the input, and the factors that `electra.models.kernels.body.Back` names, of
    all layers together.

    `sums` get those over tokens in `rows_parts` parts: of both norms (layers, 2, parts, 3, 64), of
    the expansion (layers, parts, 256) and of the projections (layers, parts, 3, 64).
    """
    project, attended, expand, contract, _ = matrices
    factors = [torch.empty_like(found.qkv), torch.empty_like(found.mixed)]
    factors += [torch.empty_like(found.active), torch.empty_like(found.y)]
    of_input = torch.empty_like(grad)
    length, _, scale, odds_drops, odds_rescale = settings(WHOLE, 1, SIZE, attention_dropout)
    layers, rows = len(vectors), len(grad) // length
    read = (project, attended, expand, contract, found.qkv, found.mixed, found.normal1)
    launch(
        "rowsback.rows_backward", programs(rows, grad.device, 1), BACK_SHARED, tiles(grad),
        *(tiles(t.flatten(0, 1)) for t in (*read, found.normal2, *factors)), tiles(of_input),
        vectors, found.slope, found.scale1, found.scale2, found.logs, documents, seeds, *sums, rows,
        layers, scale, drop_count(dropout), rescale(dropout), odds_drops, odds_rescale,
    )  # fmt: skip
    return of_input, factors


def rows_parts(documents: Tensor) -> int:
    """How many parts the sums of `rows_backward` come in."""
    return GROUPS * len(documents)
