"""Sizes, sharing and initialisation of the two networks."""

from dataclasses import replace

import pytest
import torch

from electra.errors import UserError
from electra.models.electra import (
    GeneratorConfig,
    build_pair,
    generator_sizes,
)
from electra.models.encoder import Encoder, EncoderConfig
from electra.models.flops import row_flops, workloads_of
from electra.objectives.batch import unpack
from electra.objectives.objective import VocabInfo
from electra.objectives.rtd import ReplacedTokenDetection
from electra.objectives.settings import ObjectiveConfig
from electra.recipes import recipe

SMALL = EncoderConfig(layers=2, hidden=64, embedding=48, vocab_size=100)


@pytest.mark.parametrize(
    ("name", "sizes", "published"),
    [
        ("paper.small", (64, 12, 1, 256, 128), 13_548_800),
        ("paper.base", (256, 12, 4, 1024, 768), 109_482_240),
        ("paper.large", (256, 24, 4, 1024, 1024), 335_141_888),
    ],
)
def test_sizes_of_the_paper(name, sizes, published):
    """The generators' sizes, and the published parameter counts of the discriminators' bodies."""
    config = recipe(name)
    g = generator_sizes(config.model, config.generator)
    assert (g.hidden, g.layers, g.head_count, g.feed_forward_width, g.embedding) == sizes
    model = replace(config.model, vocab_size=30522, vocab_multiple=1)
    with torch.device("meta"):
        body = Encoder(model)
    pooler = model.hidden * (model.hidden + 1)  # counted there, though ELECTRA never had one
    assert sum(p.numel() for p in body.parameters()) == published - pooler


def test_generator_width_is_rounded_not_cut():
    config = EncoderConfig(hidden=768, embedding=768)
    assert generator_sizes(config, GeneratorConfig(width=0.33333)).hidden == 256


def test_a_small_generator_has_at_least_one_layer_and_head():
    sizes = generator_sizes(replace(SMALL, heads=4), GeneratorConfig(width=0.1, depth=0.1))
    assert (sizes.layers, sizes.heads, sizes.hidden) == (1, 1, 6)


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UserError, match="does not divide into 3 attention heads"):
        EncoderConfig(hidden=200)


def test_positions_are_512_whatever_the_length():
    for name in ("paper.small", "paper.base", "paper.large", "toy"):
        assert recipe(name).model.max_positions == 512


def test_what_is_shared():
    generator, discriminator = build_pair(SMALL, GeneratorConfig(width=0.5))
    ours, theirs = generator.encoder, discriminator.encoder
    assert ours.embeddings is theirs.embeddings  # tables and LayerNorm
    assert ours.embedding_proj is not theirs.embedding_proj
    assert ours.embeddings.token.weight.shape[1] == 48  # the discriminator's width

    generator, discriminator = build_pair(SMALL, GeneratorConfig(width=0.5, tie="none"))
    assert not {*generator.parameters()} & {*discriminator.parameters()}
    assert generator.encoder.embeddings.token.weight.shape[1] == 32  # its own hidden width
    assert isinstance(generator.encoder.embedding_proj, torch.nn.Identity)

    generator, discriminator = build_pair(SMALL, GeneratorConfig(width=1, tie="all"))
    assert generator.encoder is discriminator.encoder

    with pytest.raises(UserError, match="same size"):
        build_pair(SMALL, GeneratorConfig(width=0.5, tie="all"))


def test_documents_do_not_attend_to_each_other():
    encoder = Encoder(EncoderConfig(layers=2, hidden=32, embedding=16, vocab_size=60)).eval()
    ids, segments = torch.randint(5, 60, (2, 12)), torch.zeros(2, 12, dtype=torch.long)
    numbers = torch.tensor([[1] * 5 + [2] * 4 + [9] * 3, [1] * 12])
    found = encoder(ids, segments, numbers)
    alone = encoder(ids[:, :5], segments[:, :5])
    torch.testing.assert_close(found[0, :5], alone[0])
    assert (found[1, :5] - alone[1]).abs().max() > 1e-3  # here all twelve are one document
    ids[0, 2] = 59 - ids[0, 2] % 2
    torch.testing.assert_close(encoder(ids, segments, numbers)[0, 5:], found[0, 5:])


def test_dropout_falls_on_the_embeddings_and_on_both_outputs_of_a_layer():
    """With everything dropped, nothing but the residual stream is left."""
    encoder = Encoder(SMALL).train()
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 1.0
    ids = torch.randint(100, (2, 10))
    assert not encoder.embeddings(ids, torch.zeros_like(ids)).any()
    layer, x = encoder.layers[0], torch.randn(2, 10, 64)
    torch.testing.assert_close(layer(x, None), layer.output_norm(layer.attention_norm(x)))


def test_attention_dropout_is_off_in_evaluation():
    attention, x = Encoder(replace(SMALL, attention_dropout=0.5)).layers[0].attention, torch.eye(8)
    kept = attention.train()(*[x[None, None]] * 3, None)
    assert (kept == 0).any()
    assert (attention.eval()(*[x[None, None]] * 3, None) > 0).all()


def test_output_weights_are_the_token_embeddings():
    generator, _ = build_pair(SMALL, GeneratorConfig(width=0.5))
    hidden = torch.randn(1, 1, 32)
    before = generator.predict(hidden)
    with torch.no_grad():
        generator.encoder.embeddings.token.weight[7] += 1
    after = generator.predict(hidden)
    changed = (before != after)[0, 0].nonzero().flatten()
    assert changed.tolist() == [7]


@pytest.mark.parametrize("std", [0.02, 0.1])
def test_initialisation(std):
    """Truncated normal of 0.02 everywhere, but Glorot for the projection and the last layer."""
    torch.manual_seed(0)
    config = EncoderConfig(layers=2, hidden=256, embedding=128, vocab_size=5000, init_std=std)
    generator, discriminator = build_pair(config, GeneratorConfig())
    glorot = {
        "encoder.embedding_proj.weight": (6 / (128 + 256)) ** 0.5,
        "score.weight": (6 / (256 + 1)) ** 0.5,
    }
    for network in (discriminator, generator):
        for name, p in network.named_parameters():
            p = p.detach()
            if name in glorot and network is discriminator:
                assert p.abs().max() <= glorot[name]
                assert p.abs().max() > 0.9 * glorot[name]
                assert p.std() == pytest.approx(glorot[name] / 3**0.5, rel=0.15)
            elif p.ndim == 2 and "embedding_proj" not in name:
                assert p.abs().max() <= 2 * std
                assert p.std() == pytest.approx(0.88 * std, rel=0.1)  # cut at two sigma
            elif "norm" in name and name.endswith("weight"):
                assert (p == 1).all()
            elif p.ndim == 1:
                assert (p == 0).all()


def test_flops_agree_with_torch():
    from torch.utils.flop_counter import FlopCounterMode

    generator, discriminator = build_pair(SMALL, GeneratorConfig(width=0.5))
    objective = ReplacedTokenDetection(
        ObjectiveConfig(), generator, discriminator, VocabInfo(4, (0, 1, 2, 3, 4))
    )
    rows = torch.randint(5, 100, (2, 130))
    rows[:, -2:] = 128
    batch = unpack(rows)
    masked = objective.mask(batch)
    with FlopCounterMode(display=False) as counter:
        objective(batch, masked, objective.totals(batch, masked)).loss.backward()
    slots = masked.positions.shape[1]
    ours = 2 * row_flops(workloads_of("rtd", SMALL, GeneratorConfig(width=0.5), 128, slots), 128)
    assert counter.get_total_flops() == pytest.approx(ours, rel=0.02)
