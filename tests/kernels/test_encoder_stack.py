"""All layers as one function against the layers of the encoder."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels import encoder_stack
from electra.kernels.any_gpu.random import attention_keep_mask, draw_seeds, keep_mask
from electra.kernels.layer_params import PARAM_NAMES, LayerParams
from electra.models.encoder import EncoderConfig, Layer


@pytest.fixture
def layers(device):
    """`layers(48, 3)`: two layers whose biases and norms are at no round number; or as they are
    initialised."""

    def made(
        hidden: int, heads: int, feed_forward: int = 0, *, perturbed: bool = True
    ) -> nn.ModuleList:
        torch.manual_seed(2)
        config = EncoderConfig(
            hidden=hidden, heads=heads, feed_forward=feed_forward,
            embedding=hidden, vocab_size=9, dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip
        layers = nn.ModuleList(Layer(config) for _ in range(2))
        with torch.no_grad():
            for p in layers.parameters() if perturbed else ():
                p.add_(0.1 * torch.randn_like(p))
        return layers.to(device)

    return made


PLANS = {
    "planned": {},
    "wide": {"gemm": "any_gpu", "gemm_layernorm": "any_gpu", "batch_weight_grads": False},
}


def params_of(layers) -> list[torch.Tensor]:
    return [layer.get_parameter(name) for layer in layers for name in PARAM_NAMES]


def texts(rows: int, length: int, device: torch.device) -> torch.Tensor:
    """Two texts in the first row, and padding, of which each row has more than the one before."""
    doc_ids = torch.zeros(rows, length, dtype=torch.int32)
    doc_ids[0, length // 3 :] = 1
    for row in range(rows):
        doc_ids[row, length - 1 - row * length // 4 :] = 2
    return doc_ids.to(device)


def named_grads(out, x, layers, grad) -> dict[str, torch.Tensor]:
    names = ["x", *(f"{n} {name}" for n in range(len(layers)) for name in PARAM_NAMES)]
    return dict(zip(names, torch.autograd.grad(out, (x, *params_of(layers)), grad), strict=True))


@pytest.fixture
def compare(near, grads_near):
    """Output and every gradient, those of queries, keys and values apart."""

    def compared(found, wanted, x, layers, share=5e-5) -> None:
        near(found, wanted)
        grad = torch.randn(wanted.shape).to(wanted)
        grads_near(*(named_grads(out, x, layers, grad) for out in (found, wanted)), share)

    return compared


def test_every_parameter_of_a_layer_has_a_name():
    layer = Layer(EncoderConfig(hidden=64, vocab_size=9))
    assert sorted(PARAM_NAMES) == sorted(name for name, _ in layer.named_parameters())
    assert len(PARAM_NAMES) == len(LayerParams._fields)


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
@pytest.mark.parametrize("perturbed", [True, False])
@pytest.mark.parametrize("planned", PLANS)
def test_the_layers(
    planned, perturbed, rows, length, hidden, heads, inner, device, layers, normal, compare, through
):
    """By the plan for these sizes, and by the pieces that wide models have; weight gradients come
    from one batched GEMM for all layers, or from one for each."""
    made, x = layers(hidden, heads, inner, perturbed=perturbed), normal(rows * length, hidden)
    doc_ids = texts(rows, length, device)
    mask = (doc_ids[:, None, :, None] == doc_ids[:, None, None, :]).contiguous()
    wanted = x.view(rows, length, hidden)
    for layer in made:
        wanted = layer(wanted, mask)
    found = through(x, doc_ids, heads, 0.0, 0.0, *params_of(made), **PLANS[planned])
    compare(found, wanted.flatten(0, 1), x, made, share=5e-5 if perturbed else 2e-4)


def with_dropout(layer, x, doc_ids, seeds, p, attention_p):
    """What a layer computes, with the kernels' random numbers."""
    rows, length = doc_ids.shape
    q, k, v = layer.qkv(x).view(rows, length, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
    apart = doc_ids[:, None, :, None] != doc_ids[:, None, None, :]
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(apart, float("-inf"))
    table = attention_keep_mask(rows * layer.heads * length, length, seeds[0], attention_p)
    mixed = (scores.softmax(-1) * table.view_as(scores)) @ v
    attended = layer.out_proj(mixed.transpose(1, 2).reshape(x.shape))
    x = layer.attention_norm(x + attended * keep_mask(x.shape, seeds[1], p))
    inner = layer.down_proj(F.gelu(layer.up_proj(x)))
    return layer.output_norm(x + inner * keep_mask(x.shape, seeds[2], p))


@pytest.mark.parametrize(("hidden", "heads"), [(48, 3), (64, 2)])
@pytest.mark.parametrize(
    ("p", "attention_p", "recompute"),
    [(0.3, 0.0, False), (0.0, 0.2, False), (0.2, 0.3, False), (0.2, 0.3, True)],
)
def test_the_layers_with_dropout(
    p, attention_p, recompute, hidden, heads, device, layers, normal, compare, monkeypatch, through
):
    """Of a width where a GEMM and LayerNorm are two kernels, and of one where they are one."""
    rows, length = 2, 21
    seeds = draw_seeds(6, device)
    monkeypatch.setattr(encoder_stack, "draw_seeds", lambda *_: seeds)
    made, x, doc_ids = layers(hidden, heads), normal(rows * length, hidden), texts(2, 21, device)
    wanted = x
    for layer, numbers in zip(made, seeds.view(2, 3, 4), strict=True):
        wanted = with_dropout(layer, wanted, doc_ids, numbers, p, attention_p)
    found = through(x, doc_ids, heads, p, attention_p, *params_of(made), recompute=recompute)
    compare(found, wanted, x, made)


def test_a_gradient_that_repeats_one_number(device, layers, normal, near, through):
    """As that of a plain sum: expanded, not stored."""
    made, x, doc_ids = layers(48, 3), normal(10, 48), texts(2, 5, device)
    leaves = x, *params_of(made)
    found = through(x, doc_ids, 3, 0.0, 0.0, *leaves[1:])
    grads = [
        torch.autograd.grad(found, leaves, grad, retain_graph=True)
        for grad in (torch.full((1, 48), 0.3).to(x).expand(10, 48), torch.full((10, 48), 0.3).to(x))
    ]
    for name, a, b in zip(("x", *PARAM_NAMES, *PARAM_NAMES), *grads, strict=True):
        near(a, b, name)


def test_each_pass_and_each_layer_has_its_own_dropout(device, layers, normal, through):
    made, x, doc_ids = layers(48, 3), normal(10, 48), texts(2, 5, device)
    for rates in ((0.5, 0.0), (0.0, 0.5)):
        first, second = (through(x, doc_ids, 3, *rates, *params_of(made)) for _ in range(2))
        assert not torch.allclose(first, second)


def test_what_is_computed_again_is_not_kept(device, layers, normal, through):
    """Each layer's input alone."""
    made, x, doc_ids = layers(48, 3), normal(10, 48), texts(2, 5, device)
    counts = []
    for recompute in (False, True):
        out = through(x, doc_ids, 3, 0.1, 0.1, *params_of(made), recompute=recompute)
        counts.append(sum(t.numel() for t in out.grad_fn.saved_tensors))
    assert counts[0] - counts[1] > 2 * 10 * 10 * 48  # two layers, ten tokens
