"""The distribution of a generator that does not learn, worked out by hand."""

import pytest
import torch

from electra.models.encoder import EncoderConfig
from electra.models.frequency_generator import FrequencyGenerator

CONFIG = EncoderConfig(layers=1, hidden=32, vocab_size=8)
SPECIAL, ABSENT = (0, 2), (5,)
ORDINARY = [1, 3, 4, 6, 7]


@pytest.fixture
def generator() -> FrequencyGenerator:
    return FrequencyGenerator(CONFIG, ABSENT, SPECIAL, counted=True)


def probs(generator: FrequencyGenerator) -> list[float]:
    """The probabilities of the vocabulary; the rows that pad the table have none."""
    found = generator.logits.exp()
    assert not found[8:].any()
    return found[:8].tolist()


def test_without_counts_ordinary_tokens_are_alike(generator):
    assert probs(generator) == pytest.approx([0, 0.2, 0, 0.2, 0.2, 0, 0.2, 0.2])


def test_probabilities_are_shares_of_the_counts(generator):
    """Counts of special tokens, of holes and of rows that pad the table do not matter."""
    counts = torch.full_like(generator.logits, 1e6, dtype=torch.float64)
    counts[ORDINARY] = torch.tensor([10.0, 20.0, 30.0, 39.99, 0.0], dtype=torch.float64)
    generator.set_counts(counts)
    # A token that was never seen counts 0.01, so that the sum is 100
    assert probs(generator) == pytest.approx([0, 0.1, 0, 0.2, 0.3, 0, 0.3999, 1e-4])


def test_every_position_has_the_same_logits(generator):
    ids, positions = torch.arange(12).view(2, 6) % 8, torch.zeros(2, 3, dtype=torch.long)
    found = generator(ids, torch.zeros_like(ids), None, positions)
    assert found.shape == (2, 3, len(generator.logits))
    assert (found == generator.logits).all()


def test_a_checkpoint_has_the_distribution_and_nothing_else(generator):
    """A resumed run does not count again, and nothing is trained."""
    assert not list(generator.parameters())
    generator.set_counts(torch.arange(len(generator.logits), dtype=torch.float64))
    state = generator.state_dict()
    assert state.keys() == {"logits"}
    other = FrequencyGenerator(CONFIG, ABSENT, SPECIAL, counted=True)
    other.load_state_dict(state)
    assert probs(other) == pytest.approx([0, 1 / 21, 0, 3 / 21, 4 / 21, 0, 6 / 21, 7 / 21])
