"""The CUDA C++ attention agrees with the Triton kernels, on a Hopper GPU."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import attention as triton_attention
from electra.kernels.any_gpu.random import draw_seeds
from electra.kernels.cuda import attention

DROPOUTS = [0.0, 0.1, 0.48]


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 200])
@pytest.mark.parametrize("starts", [(), (50, 77, 100)])
def test_attention_forward(
    batch_size, heads, p, starts, hopper, draw, guarded, relative_error, several_documents
):
    """As in Triton, which drops the same elements; 200 rows are several heads per thread block."""
    hidden, tokens = heads * 64, batch_size * 128
    doc_ids = several_documents(batch_size, starts, hopper)
    doc_ids[100:] = 0
    (seed,) = draw_seeds(1, hopper)
    qkv = draw(tokens, 3 * hidden)
    found = []
    for module in (attention, triton_attention):
        out, behind = guarded(tokens, hidden, hopper)
        out.fill_(torch.nan)
        lse = module.attention_forward(qkv, doc_ids, heads, seed, p, out)
        assert (behind == 7).all()
        found.append((out, lse))
    (cuda, cuda_lse), (triton, triton_lse) = found
    # The scale in which exp scores are rounded differs where the highest score comes late.
    assert relative_error(cuda, triton.float()) < 4e-3
    torch.testing.assert_close(cuda, triton, atol=0.03, rtol=0.02)
    torch.testing.assert_close(cuda_lse, triton_lse, atol=1e-4, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("batch_size", "heads", "p"), [(1, 1, 0.0), (7, 3, 0.1), (150, 4, 0.48)])
@pytest.mark.parametrize("starts", [(), (50, 77, 100)])
def test_attention_backward(batch_size, heads, p, starts, hopper, draw, guarded, several_documents):
    """The gradients of q, k and v, each by itself, and their sums over tokens, as in Triton."""
    hidden, tokens = heads * 64, batch_size * 128
    doc_ids = several_documents(batch_size, starts, hopper)
    (seed,) = draw_seeds(1, hopper)
    qkv, grad, out = draw(tokens, 3 * hidden), draw(tokens, hidden), draw(tokens, hidden)
    lse = attention.attention_forward(qkv, doc_ids, heads, seed, p, out)
    found = []
    for module, per_row in ((attention, 2), (triton_attention, 1)):
        grad_qkv, behind = guarded(tokens, 3 * hidden, hopper)
        grad_qkv.fill_(torch.nan)
        count = module.num_partials(batch_size, 128)
        assert count == per_row * batch_size
        partials = torch.full((count, 3, hidden), torch.nan, device=hopper)
        given = (grad, qkv, doc_ids, out, lse, heads, seed, p)
        module.attention_backward(*given, grad_qkv, partials)
        assert (behind == 7).all()
        q, k, v = grad_qkv.float().split(hidden, 1)
        sum_q, sum_k, sum_v = partials.sum(0)
        found.append({"q": q, "k": k, "v": v, "sum q": sum_q, "sum v": sum_v, "sum k": sum_k})
    cuda, triton = found
    limits = {"q": 1e-3, "k": 1e-3, "v": 1e-3, "sum q": 5e-3, "sum v": 5e-3, "sum k": 0}
    for name, limit in limits.items():
        assert (cuda[name] - triton[name]).norm() <= limit * triton[name].norm(), name
