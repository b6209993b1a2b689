"""An initialisation for short runs: heads attend to neighbouring tokens from the first step.

With the paper's initialisation, attention is almost uniform, and both networks spend their first
thousands of steps on a plateau where they know token frequencies only. Here the position embeddings
start as waves, for which "one position to the left" is a rotation, and the queries and keys of each
head start as that rotation. Everything is trainable, and the exported model is an ordinary ELECTRA.
"""

import math

import torch
from torch import Tensor, nn

from electra.models.encoder import Encoder, Layer

OFFSETS = (-1, 1, -2, 2, -3, 3, -4, 4)
"""The neighbour that each head attends to, in this order over heads and layers."""
AMPLITUDE = 2.0
"""Amplitude of the waves, in standard deviations of the token embeddings."""
SHARPNESS = 16.0
"""How far a neighbour's attention logit is above the others."""


@torch.no_grad()
def init_local_attention_(encoder: Encoder) -> None:
    """Set the position embeddings and the queries and keys of every layer."""
    table = encoder.embeddings.position.weight  # (positions, embedding)
    frequencies = wave_frequencies(table.shape[1])
    angles = torch.arange(table.shape[0])[:, None] * frequencies
    amplitude = AMPLITUDE * encoder.config.init_std
    table[:, 0::2], table[:, 1::2] = amplitude * angles.cos(), amplitude * angles.sin()
    inverse = torch.eye(table.shape[1])
    if isinstance(encoder.embedding_proj, nn.Linear):  # undo the projection
        inverse = torch.linalg.pinv(encoder.embedding_proj.weight)
    for number, layer in enumerate(encoder.layers):
        assert isinstance(layer, Layer)
        width = encoder.config.hidden
        queries, keys, _ = layer.qkv.weight.view(3, layer.heads, -1, width)
        # Two thirds of a normalised embedding are waves, so this gives the logit SHARPNESS
        scale = math.sqrt(1.5 * SHARPNESS / (table.shape[1] * math.sqrt(queries.shape[1])))
        for head in range(layer.heads):
            projection = scale * torch.randn(queries.shape[1], table.shape[1])
            offset = OFFSETS[(number * layer.heads + head) % len(OFFSETS)]
            queries[head] = projection @ rotation(frequencies, offset) @ inverse
            keys[head] = projection @ inverse


def wave_frequencies(width: int) -> Tensor:
    """Return frequencies up to half a turn per position, so that near positions are orthogonal."""
    count = width // 2
    return (torch.arange(count) + 0.5) * math.pi / count


def rotation(frequencies: Tensor, offset: int) -> Tensor:
    """Return the matrix that shifts the waves by `offset` positions."""
    pairs = 2 * len(frequencies)
    matrix = torch.zeros(pairs, pairs)
    even, odd = torch.arange(0, pairs, 2), torch.arange(1, pairs, 2)
    cos, sin = (frequencies * offset).cos(), (frequencies * offset).sin()
    matrix[even, even], matrix[even, odd] = cos, -sin
    matrix[odd, even], matrix[odd, odd] = sin, cos
    return matrix
