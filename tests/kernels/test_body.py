"""All layers as one function against the layers of the encoder."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import body
from electra.kernels.any_gpu.attention_dropout import keep_table
from electra.kernels.encoder_stack import Shape
from electra.kernels.any_gpu.dropout import keep_mask
from electra.kernels.layer_params import NAMES
from electra.kernels.hopper.fused_layer import narrow as fits_narrow
from electra.models.encoder import EncoderConfig, Layer

EPS = 1e-12


@pytest.fixture
def layers(device):
    """`layers(48, 3)`: two layers whose biases and norms are at no round number."""

    def made(hidden: int, heads: int, feed_forward: int = 0) -> nn.ModuleList:
        torch.manual_seed(2)
        config = EncoderConfig(
            hidden=hidden, heads=heads, feed_forward=feed_forward,
            embedding=hidden, vocab_size=9, dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip
        layers = nn.ModuleList(Layer(config) for _ in range(2))
        with torch.no_grad():
            for p in layers.parameters():
                p.add_(0.1 * torch.randn_like(p))
        return layers.to(device)

    return made


def params_of(layers) -> list[torch.Tensor]:
    return [layer.get_parameter(name) for layer in layers for name in NAMES]


def texts(rows: int, length: int, device: torch.device) -> torch.Tensor:
    """Two texts in the first row, and padding, of which each row has more than the one before."""
    documents = torch.zeros(rows, length, dtype=torch.int32)
    documents[0, length // 3 :] = 1
    for row in range(rows):
        documents[row, length - 1 - row * length // 4 :] = 2
    return documents.to(device)


def compare(found, wanted, x, layers, near) -> None:
    """Output and every gradient."""
    near(found, wanted)
    grad = torch.randn(wanted.shape).to(wanted)
    leaves = x, *params_of(layers)
    grads = (torch.autograd.grad(out, leaves, grad) for out in (found, wanted))
    for name, a, b in zip(("x", *NAMES, *NAMES), *grads, strict=True):
        near(a, b, name, share=5e-5)


def test_every_parameter_of_a_layer_travels():
    layer = Layer(EncoderConfig(hidden=64, vocab_size=9))
    assert sorted(NAMES) == sorted(name for name, _ in layer.named_parameters())


@pytest.mark.parametrize(
    ("rows", "length", "hidden", "heads", "inner"),
    [
        (2, 5, 48, 3, 0),
        (3, 40, 96, 3, 0),
        (2, 40, 64, 1, 80),
        (1, 150, 32, 2, 0),
        (3, 50, 64, 2, 0),
    ],
)
@pytest.mark.parametrize("narrow", [True, False])
def test_the_layers(
    narrow, rows, length, hidden, heads, inner, device, layers, normal, near, monkeypatch, through
):
    """Narrow and wide models go back through the feed-forward part on two ways, the last two have
    one kernel for it; and gradients of matrices come from one product for all layers, or one for
    each."""
    fits = fits_narrow(torch.empty(hidden, inner or 4 * hidden))
    assert fits == ((hidden, inner) in ((32, 0), (64, 0)))
    if not narrow:
        monkeypatch.setattr(body, "ffn_fits", lambda _: False)
        monkeypatch.setattr(body, "SMALL", 0)
    made, x = layers(hidden, heads, inner), normal(rows * length, hidden)
    documents = texts(rows, length, device)
    mask = (documents[:, None, :, None] == documents[:, None, None, :]).contiguous()
    wanted = x.view(rows, length, hidden)
    for layer in made:
        wanted = layer(wanted, mask)
    found = through(x, documents, Shape(heads, 0.0, 0.0, EPS), *params_of(made))
    compare(found, wanted.flatten(0, 1), x, made, near)


def with_dropout(layer, x, documents, seeds, p, attention_p):
    """What a layer computes, with the kernels' random numbers."""
    rows, length = documents.shape
    q, k, v = layer.qkv(x).view(rows, length, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
    apart = documents[:, None, :, None] != documents[:, None, None, :]
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(apart, float("-inf"))
    table = keep_table(rows * layer.heads * length, length, seeds[0], attention_p)
    mixed = (scores.softmax(-1) * table.view_as(scores)) @ v
    attended = layer.attended(mixed.transpose(1, 2).reshape(x.shape))
    x = layer.attention_norm(x + attended * keep_mask(x.shape, seeds[1], p))
    inner = layer.contract(F.gelu(layer.expand(x)))
    return layer.output_norm(x + inner * keep_mask(x.shape, seeds[2], p))


@pytest.mark.parametrize(("hidden", "heads"), [(48, 3), (64, 2)])
@pytest.mark.parametrize(
    ("p", "attention_p", "recompute"),
    [(0.3, 0.0, False), (0.0, 0.2, False), (0.2, 0.3, False), (0.2, 0.3, True)],
)
def test_the_layers_with_dropout(
    p, attention_p, recompute, hidden, heads, device, layers, normal, near, monkeypatch, through
):
    """Of a width where a product and LayerNorm are two kernels, and of one where they are one, and
    the whole feed-forward part is."""
    rows, length = 2, 21
    seeds = body.draw_seeds(6, device)
    monkeypatch.setattr(body, "draw_seeds", lambda *_: seeds)
    made, x, documents = layers(hidden, heads), normal(rows * length, hidden), texts(2, 21, device)
    wanted = x
    for layer, numbers in zip(made, seeds.view(2, 3, 4), strict=True):
        wanted = with_dropout(layer, wanted, documents, numbers, p, attention_p)
    shape = Shape(heads, p, attention_p, EPS, recompute)
    found = through(x, documents, shape, *params_of(made))
    compare(found, wanted, x, made, near)


def test_a_gradient_that_repeats_one_number(device, layers, normal, near, through):
    """As that of a plain sum: expanded, not stored."""
    made, x, documents = layers(48, 3), normal(10, 48), texts(2, 5, device)
    leaves = x, *params_of(made)
    found = through(x, documents, Shape(3, 0.0, 0.0, EPS), *leaves[1:])
    grads = [
        torch.autograd.grad(found, leaves, grad, retain_graph=True)
        for grad in (torch.full((1, 48), 0.3).to(x).expand(10, 48), torch.full((10, 48), 0.3).to(x))
    ]
    for name, a, b in zip(("x", *NAMES, *NAMES), *grads, strict=True):
        near(a, b, name)


def test_each_pass_and_each_layer_has_its_own_dropout(device, layers, normal, through):
    made, x, documents = layers(48, 3), normal(10, 48), texts(2, 5, device)
    doc_ids = []
    for p, attention_p in ((0.5, 0.0), (0.0, 0.5)):
        shape = Shape(3, p, attention_p, EPS)
        doc_ids += [through(x, documents, shape, *params_of(made)) for _ in range(2)]
        assert not torch.allclose(doc_ids[-1], doc_ids[-2])


def test_what_is_computed_again_is_not_kept(device, layers, normal, through):
    """Each layer's input alone."""
    made, x, documents = layers(48, 3), normal(10, 48), texts(2, 5, device)
    counts = []
    for recompute in (False, True):
        out = through(x, documents, Shape(3, 0.1, 0.1, EPS, recompute), *params_of(made))
        counts.append(sum(t.numel() for t in out.grad_fn.saved_tensors))
    assert counts[0] - counts[1] > 2 * 10 * 10 * 48  # two layers, ten tokens
