"""The paper's recipes: the sizes of its networks and the tokens that they read."""

from dataclasses import replace

import pytest
import torch

from electra.models.encoder import Encoder
from electra.recipes import recipe
from electra.train.pretrain import budget_steps


@pytest.mark.parametrize(
    ("name", "millions", "tokens"),
    [("paper.small", 14, 16.4e9), ("paper.base", 110, 100.4e9), ("paper.large", 335, 419.4e9)],
)
def test_parameters_and_tokens(name, millions, tokens):
    """Tables 1 and 2 of the paper, with its vocabulary of 30,522."""
    config = recipe(name)
    with torch.device("meta"):
        encoder = Encoder(replace(config.model, vocab_size=30522))
    found = sum(p.numel() for p in encoder.parameters())
    assert found / 1e6 == pytest.approx(millions, rel=0.04)
    per_step = config.data.batch_size * config.data.seq_length
    assert budget_steps(config) * per_step == pytest.approx(tokens, rel=0.01)
