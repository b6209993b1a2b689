"""Arithmetic that half precision must not touch: LayerNorm's statistics, the erf form of GELU."""

import math

import pytest
import torch

from electra.device import autocast
from electra.models.electra import GeneratorConfig, build_pair
from electra.models.encoder import Encoder, EncoderConfig

SMALL = EncoderConfig(layers=2, hidden=64, embedding=32, vocab_size=100)
CPU = torch.device("cpu")


def test_layernorm_has_fp32_statistics_under_bf16():
    """A mean of 100 with a spread of 1: sums in bf16 would lose the spread."""
    torch.manual_seed(0)
    norm = Encoder(SMALL).layers[0].output_norm
    x = (100 + torch.randn(8, 64)).bfloat16()
    with autocast(CPU, torch.bfloat16):
        found = norm(x).float()
    exact = x.double()
    exact = (exact - exact.mean(-1, keepdim=True)) / exact.var(
        -1, correction=0, keepdim=True
    ).sqrt()
    torch.testing.assert_close(found, exact.float(), atol=0.02, rtol=0.01)  # bf16 of the result
    assert norm.weight.dtype == torch.float32


def test_layernorm_of_equal_values_is_finite_under_bf16():
    """1e-12 is no epsilon at all in half precision statistics."""
    norm = Encoder(SMALL).layers[0].output_norm
    with autocast(CPU, torch.bfloat16):
        assert norm(torch.full((2, 64), 3.0, dtype=torch.bfloat16)).isfinite().all()
    assert norm.eps == 1e-12


def test_every_layernorm_has_the_papers_epsilon():
    networks = build_pair(SMALL, GeneratorConfig(width=0.5))
    norms = [m for n in networks for m in n.modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 2 * (1 + 2 * 2) + 1  # embeddings (twice seen), layers, generator's head
    assert {n.eps for n in norms} == {1e-12}


def test_gelu_is_the_erf_form(monkeypatch):
    """Everywhere: each call that the networks make is without the tanh approximation."""
    import torch.nn.functional as F

    calls, attention_mask = [], F.gelu

    def watched(x, approximate="none"):
        calls.append(approximate)
        return attention_mask(x, approximate=approximate)

    monkeypatch.setattr(F, "gelu", watched)
    generator, discriminator = build_pair(SMALL, GeneratorConfig(width=0.5))
    ids = torch.zeros(1, 4, dtype=torch.long)
    generator(ids, ids, None, ids[:, :1])
    discriminator(ids, ids)
    assert calls == ["none"] * (2 + 1 + 2 + 1)
    x = torch.tensor(1.5)
    assert F.gelu(x).item() == pytest.approx(0.75 * (1 + math.erf(1.5 / math.sqrt(2))), abs=1e-6)


@torch.no_grad()
def test_bf16_is_near_fp32_and_masters_stay_fp32():
    torch.manual_seed(0)
    _, discriminator = build_pair(SMALL, GeneratorConfig(width=0.5))
    discriminator.eval()
    ids = torch.randint(0, 100, (4, 20))
    full = discriminator(ids, torch.zeros_like(ids))
    with autocast(CPU, torch.bfloat16):
        half = discriminator(ids, torch.zeros_like(ids))
    torch.testing.assert_close(half.float(), full, atol=0.05, rtol=0.05)
    assert not torch.equal(half.float(), full)
    assert {p.dtype for p in discriminator.parameters()} == {torch.float32}


@torch.no_grad()
def test_longer_texts_than_in_training_can_be_read():
    """The position table is the model's, not the training length's."""
    _, discriminator = build_pair(SMALL, GeneratorConfig(width=0.5))
    ids = torch.zeros(1, 512, dtype=torch.long)
    assert discriminator(ids, ids).shape == (1, 512)
