"""Gradient-disentangled sharing of embeddings: gradients, export and vocabulary size."""

import torch

from electra.models.electra import (
    DisentangledEmbeddings,
    GeneratorConfig,
    build_pair,
    merge_disentangled,
)
from electra.models.encoder import EncoderConfig


def test_gdes_starts_like_shared_embeddings(batch):
    sizes = EncoderConfig(layers=2, hidden=32, embedding=16, vocab_size=60, dropout=0.0)
    for init in ("paper", "local"):
        model = EncoderConfig(**{n: getattr(sizes, n) for n in sizes.__slots__} | {"init": init})
        torch.manual_seed(0)
        generator, discriminator = build_pair(model, GeneratorConfig(width=0.5, tie="gdes"))
        ids, segments, *_ = batch
        mine = discriminator.encoder.embeddings(ids, segments)
        torch.testing.assert_close(mine, generator.encoder.embeddings(ids, segments))


def test_gdes_detection_trains_the_difference_only(make, batch, reached):
    """E_D = stop_gradient(E_G) + E_delta."""
    tables = ("token.weight", "position.weight", "segment.weight")
    theirs = {f"generator.encoder.embeddings.{t}" for t in tables}
    mine = {f"discriminator.encoder.embeddings.{t}" for t in tables}
    found = reached(make("rtd", generator={"tie": "gdes"}, generator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("generator.")}
    assert mine <= found
    found = reached(make("rtd", generator={"tie": "gdes"}, discriminator_weight=0.0), batch)
    assert not {n for n in found if n.startswith("discriminator.")}
    assert theirs <= found


def test_gdes_reads_the_sum_and_exports_it(make, batch):
    objective = make("rtd", generator={"tie": "gdes"})
    block = objective.discriminator.encoder.embeddings
    assert isinstance(block, DisentangledEmbeddings)
    with torch.no_grad():
        for p in objective.parameters():
            p += 0.1 * torch.randn_like(p)
    random = torch.get_rng_state()
    plain = merge_disentangled(objective.discriminator)
    assert torch.equal(torch.get_rng_state(), random)
    source = objective.generator.encoder.embeddings
    summed = plain.encoder.embeddings
    assert type(summed) is type(source)
    for name in ("token", "position", "segment"):
        expected = getattr(source, name).weight + getattr(block, name).weight
        assert torch.equal(getattr(summed, name).weight, expected), name
    torch.testing.assert_close(plain(*batch[:3]), objective.discriminator(*batch[:3]))
    assert objective.networks()["discriminator"].encoder.embeddings is not block
    assert objective.discriminator.encoder.embeddings is block  # as it was
    pair = build_pair(objective.discriminator.encoder.config, GeneratorConfig(width=0.5))
    assert merge_disentangled(pair[1]) is pair[1]
