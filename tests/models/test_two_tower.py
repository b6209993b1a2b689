"""The two-tower generator: what each logit depends on."""

import pytest
import torch

from electra.models.encoder import Encoder, EncoderConfig
from electra.models.two_tower import TwoTowerGenerator

CONFIG = EncoderConfig(
    layers=2, hidden=32, embedding=16, vocab_size=50, dropout=0.0, attention_dropout=0.0
)


@pytest.fixture
def network() -> TwoTowerGenerator:
    torch.manual_seed(0)
    forwards = Encoder(CONFIG)
    backwards = Encoder(CONFIG, embeddings=forwards.embeddings)
    return TwoTowerGenerator(forwards, backwards, absent=(7,)).eval()


@torch.no_grad()
def test_a_logit_depends_on_every_token_but_its_own(network):
    ids = torch.arange(10, 22)[None]
    segments, mask = torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool)
    before = network(ids, segments, mask)[0]
    for changed in range(12):
        other = ids.clone()
        other[0, changed] = 40
        difference = (network(other, segments, mask)[0] - before).abs().nan_to_num().amax(1)
        assert difference[changed] == 0
        assert (difference[torch.arange(12) != changed] > 0).all()


@torch.no_grad()
def test_padding_changes_nothing(network):
    ids = torch.arange(10, 22)[None]
    full = torch.ones_like(ids, dtype=torch.bool)
    short = network(ids[:, :9], torch.zeros(1, 9, dtype=torch.long), full[:, :9])
    padded = network(ids, torch.zeros_like(ids), full & (torch.arange(12) < 9))
    torch.testing.assert_close(padded[:, :9], short)
    assert padded[..., 7].isneginf().all()  # a token that the vocabulary does not have
    assert padded[..., :7].isfinite().all()
