"""The start for short runs: each head looks at its neighbour."""

import pytest
import torch

from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.start import OFFSETS


def attention(encoder: Encoder, layer: int, ids: torch.Tensor) -> torch.Tensor:
    """Mean attention of a layer over rows: (heads, length, length)."""
    x = encoder.project(encoder.embeddings(ids, torch.zeros_like(ids)))
    weights = encoder.layers[layer].qkv(x).view(*ids.shape, 3, encoder.config.head_count, -1)
    q, k, _ = weights.permute(2, 0, 3, 1, 4)
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1).mean(0)


@pytest.mark.parametrize(("embedding", "hidden"), [(64, 64), (64, 128)])
@torch.no_grad()
def test_heads_look_at_their_neighbours(embedding, hidden):
    torch.manual_seed(0)
    config = EncoderConfig(
        layers=1,
        hidden=hidden,
        heads=2,
        embedding=embedding,
        vocab_size=200,
        init_std=0.1,
        start="neighbours",
    )
    generator, discriminator = build_pair(config, GeneratorConfig(width=1))
    ids = torch.randint(5, 200, (32, 24))
    for network in (generator, discriminator):
        found = attention(network.encoder.eval(), 0, ids)
        for head in range(2):
            offset = OFFSETS[head]
            here = [found[head, i, i + offset].item() for i in range(2, 22)]
            assert sum(here) / len(here) > 0.5, (offset, here)


@torch.no_grad()
def test_the_papers_start_is_almost_uniform():
    torch.manual_seed(0)
    config = EncoderConfig(layers=1, hidden=64, heads=2, embedding=64, vocab_size=200)
    found = attention(Encoder(config).eval(), 0, torch.randint(5, 200, (32, 24)))
    assert found.max() < 0.1
