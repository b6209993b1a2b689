"""The heads alone: what they read, how they are initialized and what they mask."""

import pytest
import torch
from torch import nn

from electra.models.heads import (
    QA_HIDDEN,
    ClassificationHead,
    SpanHead,
    TokenClassificationHead,
    TransformersClassificationHead,
    TransformersSpanHead,
)

HIDDEN, STD = 32, 0.02


def vectors(rows: int = 3, length: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, length, HIDDEN, generator=torch.Generator().manual_seed(seed))


def test_classification_head_is_one_linear_layer_on_the_first_token():
    head = ClassificationHead(HIDDEN, 4, 0.1).eval()
    assert sum(p.numel() for p in head.parameters()) == 4 * HIDDEN + 4
    x, attention_mask = vectors(), torch.ones(3, 6, dtype=torch.bool)
    other = vectors(seed=1)
    other[:, 0] = x[:, 0]
    torch.testing.assert_close(head(x, attention_mask), head(other, attention_mask))
    torch.testing.assert_close(
        head(x, attention_mask), x[:, 0] @ head.output.weight.T + head.output.bias
    )


def test_max_pooling_ignores_padding():
    head = ClassificationHead(HIDDEN, 4, 0.1, pool="max").eval()
    x = vectors()
    x[:, 4:] = 1e6
    attention_mask = torch.arange(6).expand(3, 6) < 4
    torch.testing.assert_close(
        head(x, attention_mask), x[:, :4].amax(1) @ head.output.weight.T + head.output.bias
    )


def test_initialization():
    """The paper's heads as in TensorFlow (Glorot, zero bias), the others as in BERT."""
    torch.manual_seed(0)
    for head in (TokenClassificationHead(HIDDEN, 9), SpanHead(HIDDEN, answerability=True)):
        for linear in (m for m in head.modules() if isinstance(m, nn.Linear)):
            limit = (6 / sum(linear.weight.shape)) ** 0.5
            assert linear.weight.abs().max() <= limit
            assert linear.weight.abs().max() > 0.8 * limit
            assert not linear.bias.any()
    for head in (
        TransformersClassificationHead(HIDDEN, 9, 0.1, STD),
        TransformersSpanHead(HIDDEN, STD),
    ):
        for linear in (m for m in head.modules() if isinstance(m, nn.Linear)):
            assert 0.5 * STD < linear.weight.std() < 1.1 * STD
            assert linear.weight.abs().max() <= 2 * STD
            assert not linear.bias.any()


def test_initialization_depends_on_the_seed():
    found = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        found.append(ClassificationHead(HIDDEN, 4, 0.1).output.weight)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_dropout_only_in_training():
    head = ClassificationHead(HIDDEN, 4, 0.5)
    x, attention_mask = vectors(), torch.ones(3, 6, dtype=torch.bool)
    assert not torch.equal(head.train()(x, attention_mask), head(x, attention_mask))
    assert torch.equal(head.eval()(x, attention_mask), head(x, attention_mask))


def test_span_head_has_the_width_of_google_research_electra_and_no_dropout():
    head = SpanHead(HIDDEN, answerability=True)
    assert QA_HIDDEN == 512
    assert head.end_hidden.weight.shape == head.null_hidden.weight.shape == (512, 2 * HIDDEN)
    assert not [m for m in head.modules() if isinstance(m, nn.Dropout)]
    assert not hasattr(SpanHead(HIDDEN, answerability=False), "null")


def test_end_logits_depend_on_the_start():
    head = SpanHead(HIDDEN, answerability=True).eval()
    x, allowed = vectors(), torch.ones(3, 6, dtype=torch.bool)
    one, two = (head.end_logits(x, torch.full((3,), start), allowed) for start in (1, 2))
    assert (one - two).abs().min(1).values.max() > 0
    mixed = head.end_logits(x, torch.tensor([1, 2, 1]), allowed)  # a start per row
    torch.testing.assert_close(mixed, torch.stack([one[0], two[1], one[2]]))


@pytest.mark.parametrize("kind", ["paper", "transformers"])
def test_masked_positions_have_probability_zero(kind):
    paper = SpanHead(HIDDEN, answerability=True).eval()
    head = paper if kind == "paper" else TransformersSpanHead(HIDDEN, STD)
    allowed = torch.tensor([[True, False, False, True, True, False]]).expand(3, 6)
    logits = head(vectors(), allowed)
    assert torch.equal(logits.isinf() if kind == "paper" else logits.isinf().all(2), ~allowed)
    if kind == "paper":
        start = torch.zeros(3).long()
        assert torch.equal(paper.end_logits(vectors(), start, allowed).isinf(), ~allowed)
        changed = vectors()
        changed[:, [1, 2, 5]] = 50.0  # no influence on the null logit either
        one, two = (paper.null_logit(x, paper(x, allowed)) for x in (vectors(), changed))
        torch.testing.assert_close(one, two)
