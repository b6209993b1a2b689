"""Attention within documents against the written-out softmax."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.models.kernels.attention import (
    LONG,
    QUERIES,
    WIDE,
    attend,
    attend_backward,
    attention_fits,
    bias_backward,
    bias_parts,
)
from electra.models.kernels.dropout import keep_table

# Beyond its document a score may be anything, and is thrown away
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2")

# rows, length, heads, size; rows above 128 are long, with kernels of their own
SHORT_ROWS = [(2, 5, 3, 16), (2, 40, 2, 32), (1, 40, 1, 128), (2, 128, 1, 64)]
LONG_ROWS = [(2, 150, 1, 16), (2, 200, 2, 32), (1, 257, 1, 64), (2, 300, 1, 32), (2, 512, 1, 64)]


def papers(rows: int, length: int, device: torch.device) -> torch.Tensor:
    """Three texts and padding in the first row, two in the second, which meet where tiles do."""
    documents = torch.zeros(rows, length, dtype=torch.int32)
    for end in (length // 5, length * 2 // 3, length - length // 10):
        documents[0, end:] += 1
    documents[1:, min(128, length // 2) :] = 1
    return documents.to(device)


def written_out(qkv, documents, heads, seed, p):
    rows, length = documents.shape
    size = qkv.shape[1] // (3 * heads)
    q, k, v = qkv.view(rows, length, 3, heads, size).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) * size**-0.5
    apart = documents[:, None, :, None] != documents[:, None, None, :]
    odds = scores.masked_fill(apart, float("-inf")).softmax(-1)
    odds = odds * keep_table(rows * heads * length, length, seed, p).view_as(odds)
    return (odds @ v).transpose(1, 2).reshape(rows * length, heads * size)


def agree(documents, heads, size, p, seed, normal, near):
    """Forward and back, with what is written out."""
    rows, length = documents.shape
    qkv = normal(rows * length, 3 * heads * size)
    wanted = written_out(qkv, documents, heads, seed, p)
    found, logs = attend(qkv, documents, heads, seed, p)
    near(found, wanted)
    grad = normal(*wanted.shape).detach()
    (expected,) = torch.autograd.grad(wanted, qkv, grad)
    of_qkv = attend_backward(grad, qkv, documents, found, logs, heads, seed, p)
    parts = (t.view(-1, 3, heads * size).unbind(1) for t in (of_qkv, expected))
    for name, a, b in zip(("queries", "keys", "values"), *parts, strict=True):
        near(a, b, name)


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "length", "heads", "size"), [*SHORT_ROWS, *LONG_ROWS])
def test_attention(rows, length, heads, size, p, device, seed, normal, near):
    agree(papers(rows, length, device), heads, size, p, seed, normal, near)


@pytest.mark.parametrize("length", [128, 200, 512])
def test_texts_of_all_lengths(length, device, seed, normal, near):
    """A tile may lie in one text, in many, at the beginning or the end of one."""
    single = torch.zeros(length, dtype=torch.int32)
    short = torch.arange(length, dtype=torch.int32) // 7
    mixed = single.clone()
    for start in (1, 63, 64, 65, 190, 192, 448):
        mixed[start:] += 1
    agree(torch.stack([single, short, mixed]).to(device), 1, 32, 0.1, seed, normal, near)


@pytest.mark.parametrize("length", [40, 150])
def test_large_scores_do_not_overflow(length, device, seed, normal, near):
    qkv, documents = normal(length, 3 * 16), papers(1, length, device)
    qkv = (qkv * 40).detach().requires_grad_()
    wanted = written_out(qkv, documents, 1, seed, 0.0)
    found, logs = attend(qkv, documents, 1, seed, 0.0)
    near(found, wanted, share=1e-4)
    of_qkv = attend_backward(found, qkv, documents, found, logs, 1, seed, 0.0)
    near(of_qkv, torch.autograd.grad(wanted, qkv, found)[0], share=1e-3)


@pytest.mark.parametrize("length", [40, 300])
def test_a_text_does_not_see_its_neighbours(length, device, seed, normal):
    """Not a bit of it: neither forward nor back."""
    documents = papers(1, length, device)
    mine = (documents == 1).flatten()
    qkv = normal(length, 3 * 32).detach()
    other = torch.where(mine[:, None], qkv, 100.0)
    grad = normal(length, 32).detach() * mine[:, None]
    seen = []
    for given in (qkv, other):
        out, logs = attend(given, documents, 1, seed, 0.0)
        back = attend_backward(grad, given, documents, out, logs, 1, seed, 0.0)
        assert (back[~mine] == 0).all()
        seen.append((out[mine], back[mine]))
    for before, after in zip(*seen, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(("rows", "width"), [(1, 48), (37, 96), (150, 192)])
def test_the_bias_of_the_projection(rows, width, device, normal, near):
    """Sums over rows; keys have none, whatever rounding leaves of theirs."""
    of_qkv = normal(rows, width).detach()
    sums = torch.full((bias_parts(rows, width, device), width), torch.nan, device=device)
    bias_backward(of_qkv, sums)
    wanted = of_qkv.sum(0)
    wanted.view(3, -1)[1] = 0
    near(sums.sum(0), wanted)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_bias_of_all_keys_is_not_seen(p, device, seed, normal, near):
    qkv, documents = normal(80, 3 * 32).detach(), papers(2, 40, device)
    out, logs = attend(qkv, documents, 2, seed, p)
    moved = qkv.clone()
    moved[:, 32:64] += normal(32).detach()
    near(attend(moved, documents, 2, seed, p)[0], out)
    of_qkv = attend_backward(out, qkv, documents, out, logs, 2, seed, p)
    of_keys = of_qkv[:, 32:64]
    assert of_keys.sum(0).abs().max() < 1e-5 * of_keys.abs().sum(0).max()


def test_which_heads_fit():
    assert [size for size in range(1, 300) if attention_fits(size)] == [16, 32, 64, 128]


def test_tiles_fit():
    """What is tested as long is; keys for dropout are made for whole tiles of `WIDE`."""
    assert max(length for _, length, *_ in SHORT_ROWS) == WIDE
    assert min(length for _, length, *_ in LONG_ROWS) > WIDE
    assert WIDE % LONG["WIDE"] == WIDE % QUERIES["WIDE"] == 0
