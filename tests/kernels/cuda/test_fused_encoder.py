"""The CUDA C++ encoder in one launch agrees with the encoder layer by layer, on a Hopper GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.encoder_stack import EncoderStack, StackConfig
from electra.kernels.layer_params import NUM_CAST, PARAM_NAMES
from electra.kernels.plan import EncoderShape, plan_encoder
from electra.kernels.shadow_weights import ShadowWeights

DROPOUTS = [0.0, 0.1, 0.48]


def narrow_layer(draw) -> list[torch.Tensor]:
    """In the order of `PARAM_NAMES`; the vectors, except the QKV bias, are not in bf16."""
    shapes = [(192, 64), (64, 64), (256, 64), (64, 256)]
    weights = [draw(*shape, scale=shape[1] ** -0.5) for shape in shapes]
    vectors = [draw(n, scale=0.1).float() * 1.01 for n in (64, 64, 64, 256, 64, 64, 64)]
    for gamma in (1, 5):
        vectors[gamma] += 1
    return [*weights, draw(192), *vectors]


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize(("batch_size", "layers"), [(1, 1), (7, 12), (300, 3)])
def test_fused_encoder(batch_size, layers, p, hopper, draw, relative_error, several_documents):
    """As layer by layer, forward and backward; 300 rows are several per thread block."""
    doc_ids = several_documents(batch_size, (50, 77, 100), hopper)
    doc_ids[5:] = 0
    params = [t.float().requires_grad_() for _ in range(layers) for t in narrow_layer(draw)]
    x, grad = draw(batch_size * 128, 64).requires_grad_(), draw(batch_size * 128, 64)
    weights = [params[i : i + NUM_CAST] for i in range(0, len(params), len(PARAM_NAMES))]
    cast = ShadowWeights(weights, x.dtype).refresh()
    plan = plan_encoder(EncoderShape(batch_size, 128, 64, 256, 1, p, p, x.dtype, hopper))
    assert plan.encoder == "fused"
    found = []
    for chosen in (plan, plan._replace(encoder="layers")):
        torch.manual_seed(0)
        out = EncoderStack.apply(x, doc_ids, StackConfig(1, p, p, 1e-12, chosen), cast, *params)
        found.append((out, *torch.autograd.grad(out, [x, *params], grad)))
    for number, (fused, layerwise) in enumerate(zip(*found, strict=True)):
        # Each layer rounds in other places
        assert relative_error(fused, layerwise.float()) < 1e-2 + 5e-3 * layers, number
