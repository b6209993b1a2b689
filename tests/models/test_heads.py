"""The heads by themselves: what they look at, how they start, and what they leave out."""

import pytest
import torch
from torch import nn

from electra.models.encoder import Encoder, EncoderConfig
from electra.models.heads import (
    QA_HIDDEN,
    DeepTextHead,
    PlainSpanHead,
    SpanHead,
    TagHead,
    TextHead,
    build_head,
)

HIDDEN = 32
ENCODER = Encoder(EncoderConfig(layers=1, hidden=HIDDEN, heads=2, embedding=16, vocab_size=40))


def vectors(rows: int = 3, length: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, length, HIDDEN, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("kind", "head", "wanted"),
    [
        ("classify", "paper", TextHead),
        ("classify", "transformers", DeepTextHead),
        ("regress", "paper", TextHead),
        ("regress", "transformers", DeepTextHead),
        ("choice", "paper", TextHead),
        ("choice", "transformers", DeepTextHead),
        ("tag", "paper", TagHead),
        ("tag", "transformers", TagHead),
        ("qa", "paper", SpanHead),
        ("qa", "transformers", PlainSpanHead),
    ],
)
def test_each_kind_has_its_head(kind, head, wanted):
    built = build_head(kind, ENCODER, 5, head=head, dropout=0.3)
    assert type(built) is wanted
    attention_mask = torch.ones(3, 6, dtype=torch.bool)
    shape = {"classify": (3, 5), "tag": (3, 6, 5), "qa": (3, 6)}.get(kind, (3, 1))
    if wanted is PlainSpanHead:
        shape = (3, 6, 2)
    assert built(vectors(), attention_mask).shape == shape
    drops = {m.p for m in built.modules() if isinstance(m, nn.Dropout)}
    # transformers drops the input of its classifier, but not that of its multiple choice
    assert drops == {(): set(), ("choice", "transformers"): {0.0, 0.3}}.get(
        (kind, head) if kind != "qa" else (), {0.3}
    )


def test_the_papers_head_is_one_layer_on_the_first_token():
    head = build_head("classify", ENCODER, 4).eval()
    assert sum(p.numel() for p in head.parameters()) == 4 * HIDDEN + 4
    x, attention_mask = vectors(), torch.ones(3, 6, dtype=torch.bool)
    other = vectors(seed=1)
    other[:, 0] = x[:, 0]
    torch.testing.assert_close(head(x, attention_mask), head(other, attention_mask))
    torch.testing.assert_close(
        head(x, attention_mask), x[:, 0] @ head.output.weight.T + head.output.bias
    )


def test_the_strongest_value_is_not_that_of_padding():
    head = build_head("classify", ENCODER, 4, pool="max").eval()
    x = vectors()
    x[:, 4:] = 1e6
    attention_mask = torch.arange(6).expand(3, 6) < 4
    torch.testing.assert_close(
        head(x, attention_mask), x[:, :4].amax(1) @ head.output.weight.T + head.output.bias
    )


def test_how_the_heads_start():
    """The paper's as TensorFlow does (Glorot, zero bias), the others as BERT does."""
    torch.manual_seed(0)
    for head in (build_head("tag", ENCODER, 9), build_head("qa", ENCODER, 1)):
        for linear in (m for m in head.modules() if isinstance(m, nn.Linear)):
            limit = (6 / sum(linear.weight.shape)) ** 0.5
            assert linear.weight.abs().max() <= limit
            assert linear.weight.abs().max() > 0.8 * limit
            assert not linear.bias.any()
    for kind in ("classify", "qa"):
        head = build_head(kind, ENCODER, 9, head="transformers")
        for linear in (m for m in head.modules() if isinstance(m, nn.Linear)):
            std = ENCODER.config.init_std
            assert 0.5 * std < linear.weight.std() < 1.1 * std
            assert linear.weight.abs().max() <= 2 * std
            assert not linear.bias.any()


def test_a_head_starts_differently_for_each_seed():
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(build_head("classify", ENCODER, 4).output.weight)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_dropout_acts_in_training_alone():
    head = build_head("classify", ENCODER, 4, dropout=0.5)
    x, attention_mask = vectors(), torch.ones(3, 6, dtype=torch.bool)
    assert not torch.equal(head.train()(x, attention_mask), head(x, attention_mask))
    assert torch.equal(head.eval()(x, attention_mask), head(x, attention_mask))


def test_the_joint_head_has_the_originals_width_and_no_dropout():
    head = build_head("qa", ENCODER, 1)
    assert QA_HIDDEN == 512
    assert head.end_hidden.weight.shape == head.null_hidden.weight.shape == (512, 2 * HIDDEN)
    assert not hasattr(build_head("qa", ENCODER, 0), "null")  # every question has its answer


def test_an_end_knows_its_start():
    head = build_head("qa", ENCODER, 1).eval()
    x, allowed = vectors(), torch.ones(3, 6, dtype=torch.bool)
    one, two = (head.ends(x, torch.full((3,), start), allowed) for start in (1, 2))
    assert (one - two).abs().min(1).values.max() > 0
    mixed = head.ends(x, torch.tensor([1, 2, 1]), allowed)  # each row its own start
    torch.testing.assert_close(mixed, torch.stack([one[0], two[1], one[2]]))


@pytest.mark.parametrize("kind", ["paper", "transformers"])
def test_what_is_not_allowed_has_no_chance(kind):
    head = build_head("qa", ENCODER, 1, head=kind).eval()
    allowed = torch.tensor([[True, False, False, True, True, False]]).expand(3, 6)
    logits = head(vectors(), allowed)
    assert torch.equal(logits.isinf() if kind == "paper" else logits.isinf().all(2), ~allowed)
    if kind == "paper":
        assert torch.equal(head.ends(vectors(), torch.zeros(3).long(), allowed).isinf(), ~allowed)
        changed = vectors()
        changed[:, [1, 2, 5]] = 50.0  # nor has it a part in 'no answer'
        one, two = (head.no_answer(x, head(x, allowed)) for x in (vectors(), changed))
        torch.testing.assert_close(one, two)
