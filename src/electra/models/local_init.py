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
"""Which neighbour each head looks at, in this order, from layer to layer: a narrow network may
have one head only."""
AMPLITUDE = 2.0
"""Of the waves, in units of the token table's standard deviation: both must be heard."""
SHARPNESS = 16.0
"""By how much a neighbour's attention logit stands above the others': it gets most of it."""


@torch.no_grad()
def init_local_attention_(encoder: Encoder) -> None:
    """Set the position table and every layer's queries and keys."""
    table = encoder.embeddings.position.weight  # (positions, embedding)
    frequencies = wave_frequencies(table.shape[1])
    angles = torch.arange(table.shape[0])[:, None] * frequencies
    amplitude = AMPLITUDE * encoder.config.init_std
    table[:, 0::2], table[:, 1::2] = amplitude * angles.cos(), amplitude * angles.sin()
    back = torch.eye(table.shape[1])
    if isinstance(
        encoder.embedding_proj, nn.Linear
    ):  # undo the projection, as far as it can be undone
        back = torch.linalg.pinv(encoder.embedding_proj.weight)
    for number, layer in enumerate(encoder.layers):
        assert isinstance(layer, Layer)
        width = encoder.config.hidden
        queries, keys, _ = layer.qkv.weight.view(3, layer.heads, -1, width)
        # Two thirds of a normalised embedding are waves, so this gives the wanted logit.
        scale = math.sqrt(1.5 * SHARPNESS / (table.shape[1] * math.sqrt(queries.shape[1])))
        for head in range(layer.heads):
            look = scale * torch.randn(queries.shape[1], table.shape[1])
            offset = OFFSETS[(number * layer.heads + head) % len(OFFSETS)]
            queries[head] = look @ rotation(frequencies, offset) @ back
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
