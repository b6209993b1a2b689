"""A tiny objective of each kind, rows of text, and where gradients went."""

import math

import pytest
import torch

from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.batch import Batch, unpack
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.objectives.random import row_keys
from electra.objectives.settings import ObjectiveConfig

VOCAB = 60
SPECIAL = (0, 2, 3, 4)  # [PAD] [CLS] [SEP] [MASK]; 1 is [UNK]


@pytest.fixture
def make():
    """`make("mlm", mask_rate=0.3)`; the generator by `generator={...}`, sizes by `model={...}`."""

    def made(kind, *, generator=None, model=None, absent=(), **settings):
        torch.manual_seed(0)
        sizes = {"layers": 2, "hidden": 32, "embedding": 16, "vocab_size": VOCAB}
        quiet = {"dropout": 0.0, "attention_dropout": 0.0}
        wanted = {"width": 0.5}
        if kind == "two-stage":
            wanted = {"width": 1.0, "tie": "none"}
        return build(
            ObjectiveConfig(kind=kind, **settings),
            EncoderConfig(**sizes | quiet | (model or {})),
            GeneratorConfig(**wanted | (generator or {})),
            VocabInfo(4, SPECIAL, absent),
        )

    return made


@pytest.fixture
def batch():
    """Six rows of different lengths."""
    torch.manual_seed(1)
    length = 40
    stored = torch.zeros(6, length + 2, dtype=torch.int32)
    for row in range(6):
        total = length - 5 * row
        first = total // 2
        stored[row, :total] = torch.randint(5, VOCAB, (total,))
        stored[row, 0] = 2
        stored[row, [first - 1, total - 1]] = 3
        stored[row, -2], stored[row, -1] = first, total
    return unpack(stored)


@pytest.fixture
def ask():
    """One pass: the masked batch, the output, and the sums by name."""

    def asked(objective, batch, seed=3):
        torch.manual_seed(seed)
        batch = batch._replace(row_keys=row_keys(torch.tensor([seed, 0, 0]), len(batch.ids)))
        masked = objective.mask(batch)
        output = objective(batch, masked, objective.totals(batch, masked))
        return (
            masked,
            output,
            dict(zip(objective.metric_names, output.metric_sums.tolist(), strict=True)),
        )

    return asked


@pytest.fixture
def repeat():
    """`repeat(batch, 100)`: the rows many times, each with random numbers of its own."""

    def repeated(batch, times, seed=0):
        fields = [t.repeat(times, 1) for t in batch[:4]]
        return Batch(*fields, row_keys(torch.tensor([seed, 0, 0]), times * len(batch.ids)))

    return repeated


@pytest.fixture
def reached(ask):
    """The names of the parameters that the loss moves."""

    def names(objective, batch):
        objective.zero_grad()
        ask(objective, batch)[1].loss.backward()
        return {
            n
            for n, p in objective.named_parameters()
            if p.grad is not None and p.grad.abs().sum() > 0
        }

    return names


@pytest.fixture
def losses_at():
    """Return a function that computes -log p of each masked token, one by one."""

    def losses(logits, masked) -> list[float]:
        return [
            -math.log(logits[row, slot].detach().double().softmax(0)[masked.labels[row, slot]])
            for row, slot in masked.is_masked.nonzero().tolist()
        ]

    return losses
