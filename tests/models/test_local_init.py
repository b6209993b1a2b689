"""The start for short runs: each head looks at its neighbour."""

import pytest
import torch

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.local_init import OFFSETS


def attention(encoder: Encoder, layer: int, ids: torch.Tensor) -> torch.Tensor:
    """Mean attention of a layer over rows: (heads, length, length)."""
    x = encoder.embedding_proj(encoder.embeddings(ids, torch.zeros_like(ids)))
    weights = encoder.layers[layer].qkv(x).view(*ids.shape, 3, encoder.config.head_count, -1)
    q, k, _ = weights.permute(2, 0, 3, 1, 4)
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1).mean(0)


@pytest.mark.parametrize(
    ("embedding", "hidden", "layers", "heads"), [(64, 64, 1, 2), (64, 128, 1, 2), (64, 64, 3, 1)]
)
@torch.no_grad()
def test_heads_attend_to_their_neighbours(embedding, hidden, layers, heads):
    torch.manual_seed(0)
    config = EncoderConfig(
        layers=layers,
        hidden=hidden,
        heads=heads,
        embedding=embedding,
        vocab_size=200,
        init_std=0.1,
        init="local",
    )
    generator, discriminator = build_pair(config, GeneratorConfig(width=1))
    ids = torch.randint(5, 200, (32, 24))
    for network in (generator, discriminator):
        each = [attention(network.encoder.eval(), layer, ids) for layer in range(layers)]
        for offset, found in zip(OFFSETS, torch.cat(each), strict=False):
            here = [found[i, i + offset].item() for i in range(2, 22)]
            assert sum(here) / len(here) > 0.5, (offset, here)


@torch.no_grad()
def test_attention_of_the_papers_initialisation_is_almost_uniform():
    torch.manual_seed(0)
    config = EncoderConfig(layers=1, hidden=64, heads=2, embedding=64, vocab_size=200)
    found = attention(Encoder(config).eval(), 0, torch.randint(5, 200, (32, 24)))
    assert found.max() < 0.1
