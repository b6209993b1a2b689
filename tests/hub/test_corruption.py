"""Corrupting a text: masks by rate, samples by temperature, probabilities of the generator."""

import numpy as np
import pytest
import torch

from electra.api import load
from electra.errors import UserError
from electra.hub import corruption

TEXT = "the old farmer went to the field to plough the barley ."


@pytest.fixture(scope="module")
def model(finished):
    return load(finished, "cpu")


def test_proposals_are_those_of_transformers(model, finished):
    """Mask by hand what was masked; transformers gives the same probabilities."""
    from transformers import ElectraForMaskedLM

    folder = sorted((finished / "checkpoints").glob("step-*"))[-1] / "generator"
    peer = ElectraForMaskedLM.from_pretrained(folder).eval()
    tokens = model.corrupt(TEXT, mask_rate=0.3, temperature=0.7, seed=3, top=4)
    mask, cls, sep = (model.tokenizer.token_to_id(t) for t in ("[MASK]", "[CLS]", "[SEP]"))
    ids = [mask if t.masked else model.tokenizer.token_to_id(t.original) for t in tokens]
    with torch.no_grad():
        logits = peer(torch.tensor([[cls, *ids, sep]])).logits[0, 1:-1]
    best = (logits / 0.7).softmax(-1).topk(4)
    assert sum(t.masked for t in tokens) == round(0.3 * len(tokens))
    for number, token in enumerate(tokens):
        if token.masked:
            found = [model.tokenizer.token_to_id(p.token) for p in token.proposals]
            assert found == best.indices[number].tolist()
            got = [p.probability for p in token.proposals]
            assert got == pytest.approx(best.values[number].tolist(), abs=1e-5)
        else:
            assert token.token == token.original
            assert not token.proposals


def test_samples_follow_the_probabilities(model):
    counts: dict[str, int] = {}
    # One token that is always masked: the samples of 400 seeds are draws of one distribution.
    for seed in range(400):
        (token,) = model.corrupt("farmer", mask_rate=1.0, seed=seed, top=1000)
        counts[token.token] = counts.get(token.token, 0) + 1
    expected = {p.token: p.probability for p in token.proposals}
    assert sum(expected.values()) == pytest.approx(1, abs=1e-4)
    for name in sorted(expected, key=lambda n: -expected[n])[:8]:
        spread = 5 * np.sqrt(expected[name] * 400) + 1
        assert abs(counts.get(name, 0) - 400 * expected[name]) < spread, name


def test_the_seed_decides_and_low_temperature_takes_the_best(model):
    assert model.corrupt(TEXT, seed=5) == model.corrupt(TEXT, seed=5)
    masks = {tuple(t.masked for t in model.corrupt(TEXT, seed=s)) for s in range(8)}
    assert len(masks) > 1
    for token in model.corrupt(TEXT, mask_rate=0.5, temperature=1e-3):
        assert not token.masked or token.token == token.proposals[0].token


def test_long_texts_are_read_in_windows(model):
    tokens = model.corrupt(" ".join([TEXT] * 12), mask_rate=0.2)
    assert len(tokens) > 64  # the model's positions
    assert all(t.proposals for t in tokens if t.masked)
    assert any(t.masked for t in tokens[62:])


def test_a_token_inside_a_word_keeps_its_place(model):
    """Masks are put in by id: the pieces after a mask are still pieces of a word."""
    tokens = model.corrupt("ploughbarn", mask_rate=0.01, seed=1)
    whole = model.tokenizer.encode("ploughbarn", add_special_tokens=False).tokens
    assert [t.original for t in tokens] == whole
    assert model.detect_tokens(whole) == [t.replaced for t in model.detect("ploughbarn")]


def test_proposals_for_one_position(model):
    tokens = model.tokenizer.encode("the old farmer", add_special_tokens=False).tokens
    position = tokens.index("farmer")
    (same,) = model.fill("the old [MASK]", top=3)
    assert model.propose(tokens, position, top=3) == same


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mask_rate": 0.0}, "mask_rate=0.0"),
        ({"mask_rate": 1.5}, "mask_rate=1.5"),
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"text": "  "}, "empty"),
        ({"text": "\ud800"}, "UTF-8"),
    ],
)
def test_bad_input(model, settings, message):
    with pytest.raises(UserError, match=message):
        model.corrupt(settings.pop("text", TEXT), **settings)


def test_bad_tokens(model):
    with pytest.raises(UserError, match="'nosuchtoken' is not a token"):
        model.detect_tokens(["the", "nosuchtoken"])
    with pytest.raises(UserError, match="position=2"):
        model.propose(["the", "the"], 2)
    with pytest.raises(UserError, match="empty"):
        model.detect_tokens([])


@pytest.mark.parametrize(("number", "sampled"), [(0.0, 1), (0.6, 2), (1 - 2**-53, 2)])
def test_ids_without_probability_are_never_sampled(monkeypatch, number, sampled):
    """Not even by the smallest and the largest random number."""

    class Fixed:
        def random(self, shape):
            return np.full(shape, number)

    monkeypatch.setattr(corruption, "_random", lambda seed, purpose: Fixed())
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]])
    assert corruption._sample(logits, 0) == [sampled]
