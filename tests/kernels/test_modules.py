"""The fused forward pass of an encoder: what it passes to the kernels, and what it refuses."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.errors import UserError
from electra.kernels import modules
from electra.kernels.modules import document_ids, encoder_forward
from electra.train.accelerate import use_fused_kernels_

WORDS = 60


def test_without_a_backward_pass_nothing_is_saved_for_it(make, text, monkeypatch):
    """And the result is the same."""
    objective, batch, kept = make("rtd").eval(), text(3, 24, WORDS), []
    use_fused_kernels_(objective)
    encoder = objective.discriminator.encoder
    config = modules.StackConfig
    monkeypatch.setattr(
        modules, "StackConfig", lambda *given: kept.append(given[-1]) or config(*given)
    )
    found = encoder(batch.ids, batch.segments, batch.attention_mask)
    with torch.no_grad():
        assert torch.equal(encoder(batch.ids, batch.segments, batch.attention_mask), found)
    assert kept == [False, True]


def test_each_dropout_has_its_own_rate(make, text, monkeypatch):
    """The embeddings' is that of the layers' outputs, not that of attention."""
    batch, configs = text(2, 24, 60), []

    class Watched:
        @staticmethod
        def apply(x, doc_ids, config, *params):
            configs.append(config)
            return x

    monkeypatch.setattr(modules, "EncoderStack", Watched)
    for p, attention_p in ((0.5, 0.1), (0.0, 0.5)):
        sizes = {"dropout": p, "attention_dropout": attention_p}
        encoder = make("rtd", model=sizes).train().discriminator.encoder
        first, second = (encoder_forward(encoder, *batch[:3]) for _ in range(2))
        assert torch.equal(first, second) == (p == 0)
        encoder_forward(encoder.eval(), *batch[:3])
    rates = [(config.dropout, config.attention_dropout) for config in configs]
    assert rates == [(0.5, 0.1)] * 2 + [(0.0, 0.0)] + [(0.0, 0.5)] * 2 + [(0.0, 0.0)]


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [({}, 2**14), ({"embedding": 512}, 2**13), ({"feed_forward": 64}, 2**15)],
)
def test_too_many_tokens_are_refused(sizes, rows, make, device, monkeypatch):
    """An index of the kernels has 31 bits; the tables may be the widest, or the projections."""
    monkeypatch.setattr(modules, "Embedding", None)  # not begun
    encoder = make("rtd", model=sizes).discriminator.encoder
    ids = torch.zeros(1, 1, dtype=torch.long, device=device).expand(rows, 512)
    with pytest.raises(UserError, match=r"train\.grad_accumulation"):
        encoder_forward(encoder, ids, ids)


def test_padding_is_a_document_of_its_own(device):
    """Without a mask all tokens are of one; a mask of documents numbers them already."""
    ids = torch.tensor([[2, 9, 3, 0], [2, 8, 7, 3]], device=device)
    assert document_ids(ids, None).tolist() == [[0] * 4] * 2
    assert document_ids(ids, ids != 0).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    numbers = torch.tensor([[0, 0, 1, 2], [0, 1, 1, 1]], device=device)
    found = document_ids(ids, numbers)
    assert (found.dtype, found.tolist()) == (torch.int32, numbers.tolist())
