"""Attention within documents against the written-out softmax."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import attention
from electra.kernels.any_gpu.attention import (
    BACKWARD,
    FORWARD,
    FORWARD_LONG,
    GRAD_KV,
    GRAD_Q,
    LARGE_HEADS,
    SHORT_LENGTH,
    SINGLE_WAVE,
    num_partials,
    supports,
)
from electra.kernels.any_gpu.random import attention_keep_mask

# Beyond its document a score may be anything, and is thrown away
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2")

# rows, length, heads, size; rows above 128 are long, with kernels of their own
SHORT_ROWS = [(2, 5, 3, 16), (2, 40, 2, 32), (1, 70, 1, 128), (2, 128, 2, 64)]
LONG_ROWS = [(2, 129, 1, 16), (2, 200, 2, 32), (1, 257, 1, 64), (2, 300, 1, 32), (2, 512, 1, 64)]
LONG_ROWS += [(1, 150, 1, 128), (1, 256, 2, 16)]


def attention_forward(qkv, doc_ids, heads, *rest):
    """What the kernels write, into memory that has no numbers in it."""
    out = torch.full((len(qkv), qkv.shape[1] // 3), torch.nan, device=qkv.device)
    return out, attention.attention_forward(qkv, doc_ids, heads, *rest, out)


def attention_backward(grad, qkv, doc_ids, *rest):
    return with_sums(grad, qkv, doc_ids, *rest)[0]


def with_sums(grad, qkv, doc_ids, *rest):
    grad_qkv = torch.full_like(qkv, torch.nan)
    parts = num_partials(*doc_ids.shape)
    sums = torch.full((parts, 3, grad.shape[1]), torch.nan, device=qkv.device)
    attention.attention_backward(grad, qkv, doc_ids, *rest, grad_qkv, sums)
    return grad_qkv, sums.sum(0)


def make_doc_ids(rows: int, length: int, device: torch.device) -> torch.Tensor:
    """Three texts and padding in the first row, two in the second, which meet where tiles do."""
    doc_ids = torch.zeros(rows, length, dtype=torch.int32)
    for end in (length // 5, length * 2 // 3, length - length // 10):
        doc_ids[0, end:] += 1
    doc_ids[1:, min(128, length // 2) :] = 1
    return doc_ids.to(device)


def written_out(qkv, doc_ids, heads, seed, p):
    rows, length = doc_ids.shape
    size = qkv.shape[1] // (3 * heads)
    q, k, v = qkv.view(rows, length, 3, heads, size).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) * size**-0.5
    apart = doc_ids[:, None, :, None] != doc_ids[:, None, None, :]
    probs = scores.masked_fill(apart, float("-inf")).softmax(-1)
    probs = probs * attention_keep_mask(rows * heads * length, length, seed, p).view_as(probs)
    return (probs @ v).transpose(1, 2).reshape(rows * length, heads * size)


def passes(doc_ids, heads, size, p, seed, normal):
    """The mixtures and the gradients: found, and written out."""
    rows, length = doc_ids.shape
    qkv = normal(rows * length, 3 * heads * size)
    wanted = written_out(qkv, doc_ids, heads, seed, p)
    found, lse = attention_forward(qkv, doc_ids, heads, seed, p)
    grad = normal(*wanted.shape).detach()
    (expected,) = torch.autograd.grad(wanted, qkv, grad)
    grad_qkv = attention_backward(grad, qkv, doc_ids, found, lse, heads, seed, p)
    return found, wanted, grad_qkv, expected


def agree(doc_ids, heads, size, p, seed, normal, near):
    """Forward and back, with what is written out."""
    found, wanted, *grads = passes(doc_ids, heads, size, p, seed, normal)
    near(found, wanted)
    parts = (t.view(-1, 3, heads * size).unbind(1) for t in grads)
    for name, a, b in zip(("queries", "keys", "values"), *parts, strict=True):
        near(a, b, name)


def sums_agree(doc_ids, heads, size, seed, normal, near):
    """Sums over tokens, of queries and of values, with those of the gradients; keys' are zero."""
    qkv = normal(doc_ids.numel(), 3 * heads * size).detach()
    out, lse = attention_forward(qkv, doc_ids, heads, seed, 0.1)
    grad = normal(*out.shape).detach()
    grad_qkv, sums = with_sums(grad, qkv, doc_ids, out, lse, heads, seed, 0.1)
    near(sums[::2], grad_qkv.view(len(grad_qkv), 3, -1).sum(0)[::2])
    assert not sums[1].any()


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "length", "heads", "size"), [*SHORT_ROWS, *LONG_ROWS])
def test_attention(rows, length, heads, size, p, device, seed, normal, near):
    agree(make_doc_ids(rows, length, device), heads, size, p, seed, normal, near)


@pytest.mark.parametrize("length", [5, 70, 128])
@pytest.mark.parametrize("tiles", [BACKWARD, SINGLE_WAVE, LARGE_HEADS])
def test_all_tiles_of_the_backward_pass(tiles, length, device, seed, normal, near, monkeypatch):
    """In fp32 there would be but one kind of them."""
    monkeypatch.setattr(attention, "backward_tiles", lambda *_: tiles)
    doc_ids = make_doc_ids(2, length, device)
    agree(doc_ids, 2, 16, 0.3, seed, normal, near)
    sums_agree(doc_ids, 2, 16, seed, normal, near)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_rows_of_one_token(p, device, seed, normal, near):
    """The gradients of queries and keys are zero, but for rounding."""
    doc_ids = torch.zeros(3, 1, dtype=torch.int32, device=device)
    found, wanted, grad_qkv, expected = passes(doc_ids, 2, 16, p, seed, normal)
    near(found, wanted)
    near(grad_qkv, expected)


@pytest.mark.parametrize("length", [37, 128, 140])
@pytest.mark.parametrize("p", [0.05, 0.49, 0.9])
def test_any_rate_of_dropout(p, length, device, seed, normal, near):
    agree(make_doc_ids(2, length, device), 1, 16, p, seed, normal, near)


@pytest.mark.parametrize("length", [64, 192])
def test_every_row_head_and_seed_has_its_own_dropout(length, device, seed):
    """Where all scores are zero, and the values of some keys are a unit matrix, the mixture is
    what is left of these keys."""
    rows, heads, size, p = 2, 2, 64, 0.3
    doc_ids = torch.zeros(rows, length, dtype=torch.int32, device=device)
    qkv = torch.zeros(rows, length, 3, heads, size, device=device)
    qkv[:, -size:, 2] = torch.eye(size, device=device)[:, None]
    masks = []
    for is_masked in (seed, seed.roll(1)):
        out, _ = attention_forward(qkv.view(rows * length, -1), doc_ids, heads, is_masked, p)
        found = out.view(rows, length, heads, size).transpose(1, 2) * length
        wanted = attention_keep_mask(rows * heads * length, length, is_masked, p).view(
            rows, heads, length, -1
        )
        torch.testing.assert_close(found, wanted[..., -size:].to(found), atol=1e-4, rtol=1e-4)
        masks += (found > 0.5).flatten(0, 1).unbind()
    for i, mask in enumerate(masks):
        assert 0.65 < mask.float().mean() < 0.75
        for other in masks[:i]:  # 0.58 of the elements are the same by chance
            assert 0.53 < (mask == other).float().mean() < 0.63


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
    qkv, doc_ids = normal(length, 3 * 16), make_doc_ids(1, length, device)
    qkv = (qkv * 40).detach().requires_grad_()
    wanted = written_out(qkv, doc_ids, 1, seed, 0.0)
    found, lse = attention_forward(qkv, doc_ids, 1, seed, 0.0)
    near(found, wanted, share=1e-4)
    grad_qkv = attention_backward(found, qkv, doc_ids, found, lse, 1, seed, 0.0)
    near(grad_qkv, torch.autograd.grad(wanted, qkv, found)[0], share=1e-3)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # in what is not stored
@pytest.mark.parametrize("length", [40, 150])
def test_where_all_scores_are_low_nothing_beyond_the_end_counts(length, device, seed, normal, near):
    """A score of zero would be infinitely likely beside them."""
    doc_ids = torch.zeros(1, length, dtype=torch.int32, device=device)
    qkv = normal(length, 3, 16).detach() / 4
    qkv[:, 0] += 6
    qkv[:, 1] -= 6
    qkv = qkv.flatten(1).requires_grad_()
    wanted = written_out(qkv, doc_ids, 1, seed, 0.0)
    found, lse = attention_forward(qkv, doc_ids, 1, seed, 0.0)
    assert lse.max() < -150
    near(found, wanted, share=1e-4)
    grad_qkv = attention_backward(found, qkv, doc_ids, found, lse, 1, seed, 0.0)
    near(grad_qkv, torch.autograd.grad(wanted, qkv, found)[0], share=1e-3)


@pytest.mark.parametrize("length", [40, 300])
def test_a_text_does_not_see_its_neighbours(length, device, seed, normal):
    """Not a bit of it: neither forward nor back."""
    doc_ids = make_doc_ids(1, length, device)
    mine = (doc_ids == 1).flatten()
    qkv = normal(length, 3 * 32).detach()
    other = torch.where(mine[:, None], qkv, 100.0)
    grad = normal(length, 32).detach() * mine[:, None]
    results = []
    for given in (qkv, other):
        out, lse = attention_forward(given, doc_ids, 1, seed, 0.0)
        back = attention_backward(grad, given, doc_ids, out, lse, 1, seed, 0.0)
        assert (back[~mine] == 0).all()
        results.append((out[mine], back[mine]))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize(("rows", "length", "heads", "size"), SHORT_ROWS + LONG_ROWS)
def test_the_bias_of_the_projection(rows, length, heads, size, device, seed, normal, near):
    sums_agree(make_doc_ids(rows, length, device), heads, size, seed, normal, near)


@pytest.mark.parametrize("p", [0.0, 0.3])
def test_a_bias_of_all_keys_is_not_seen(p, device, seed, normal, near):
    qkv, doc_ids = normal(80, 3 * 32).detach(), make_doc_ids(2, 40, device)
    out, lse = attention_forward(qkv, doc_ids, 2, seed, p)
    moved = qkv.clone()
    moved[:, 32:64] += normal(32).detach()
    near(attention_forward(moved, doc_ids, 2, seed, p)[0], out)
    grad_qkv = attention_backward(out, qkv, doc_ids, out, lse, 2, seed, p)
    of_keys = grad_qkv[:, 32:64]
    assert of_keys.sum(0).abs().max() < 1e-5 * of_keys.abs().sum(0).max()


def test_which_heads_fit(device):
    fit = [size for size in range(1, 300) if supports(size, device)]
    assert fit == [16, 32, 64, 128]


@pytest.mark.parametrize(("kib", "fits"), [(100, False), (164, True), (228, True)])
def test_wide_heads_need_shared_memory(kib, fits, monkeypatch):
    """Cards for desktops have 100 KiB, an A100 164 and an H200 228."""
    card = SimpleNamespace(shared_memory_per_multiprocessor=kib * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert supports(128, torch.device("cuda")) == fits
    assert supports(64, torch.device("cuda"))


def test_tiles_fit():
    """What is tested as long is; tiles over keys hold whole pairs of dropout."""
    assert max(length for _, length, *_ in SHORT_ROWS) == SHORT_LENGTH == BACKWARD["BLOCK_N"]
    assert min(length for _, length, *_ in LONG_ROWS) == SHORT_LENGTH + 1
    assert BACKWARD["BLOCK_N"] == SINGLE_WAVE["BLOCK_N"] == LARGE_HEADS["BLOCK_N"]
    over_keys = [tiles["BLOCK_N"] for tiles in (FORWARD, BACKWARD, FORWARD_LONG, GRAD_Q)] + [
        GRAD_KV["BLOCK_M"]
    ]
    assert all(width % 16 == 0 for width in over_keys)
    assert GRAD_Q["BLOCK_M"] == GRAD_KV["BLOCK_M"]  # the parts of sums
