"""A start for short runs: heads that look at the neighbouring tokens from the first step on.

From the paper's initialisation, attention is almost uniform, and both networks spend their first
thousands of steps on a plateau where they know how frequent words are but not where they stand
(with a toy's budget they never leave it). Here the position table starts as waves, for which 'one
place to the left' is a rotation, and the queries and keys of each head start as that rotation.
Everything stays trainable, and the exported model is an ordinary ELECTRA.
"""

import math

import torch
from torch import Tensor, nn

from electra.models.encoder import Encoder, Layer

OFFSETS = (-1, 1, -2, 2, -3, 3, -4, 4)
"""Which neighbour each head looks at, in this order."""
AMPLITUDE = 0.2
"""Of the waves; some two times as strong as the token table at an init_std of 0.1."""
SHARPNESS = 0.25
"""Standard deviation of queries and keys; the neighbour gets most of the attention."""


@torch.no_grad()
def look_at_neighbours_(encoder: Encoder) -> None:
    """Set the position table and every layer's queries and keys."""
    table = encoder.embeddings.position.weight  # (positions, embedding)
    frequencies = wave_frequencies(table.shape[1])
    angles = torch.arange(table.shape[0])[:, None] * frequencies
    table.zero_()
    table[:, 0 : 2 * len(frequencies) : 2] = AMPLITUDE * angles.cos()
    table[:, 1 : 2 * len(frequencies) : 2] = AMPLITUDE * angles.sin()
    back = torch.eye(table.shape[1])
    if isinstance(encoder.project, nn.Linear):  # undo the projection, as far as it can be undone
        back = torch.linalg.pinv(encoder.project.weight)
    for layer in encoder.layers:
        assert isinstance(layer, Layer)
        width = encoder.config.hidden
        queries, keys, _ = layer.qkv.weight.view(3, layer.heads, -1, width)
        for head in range(layer.heads):
            look = SHARPNESS * torch.randn(queries.shape[1], table.shape[1])
            queries[head] = look @ rotation(frequencies, OFFSETS[head % len(OFFSETS)]) @ back
            keys[head] = look @ back


def wave_frequencies(width: int) -> Tensor:
    """Evenly spaced up to one half turn a place, which makes near places as good as orthogonal."""
    count = width // 2
    return (torch.arange(count) + 0.5) * math.pi / count


def rotation(frequencies: Tensor, offset: int) -> Tensor:
    """The matrix that takes the waves at any place to those `offset` places further."""
    pairs = 2 * len(frequencies)
    turned = torch.zeros(pairs, pairs)
    even, odd = torch.arange(0, pairs, 2), torch.arange(1, pairs, 2)
    cos, sin = (frequencies * offset).cos(), (frequencies * offset).sin()
    turned[even, even], turned[even, odd] = cos, -sin
    turned[odd, even], turned[odd, odd] = sin, cos
    return turned
