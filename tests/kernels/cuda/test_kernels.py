"""The CUDA C++ kernels agree with plain torch and with the Triton kernels, on a Hopper GPU."""

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import attention as triton_attention
from electra.kernels.any_gpu.gemm import empty_gelu_grad
from electra.kernels.any_gpu.random import draw_seeds
from electra.kernels.cuda import attention, gemm
from electra.kernels.encoder_stack import EncoderStack, StackConfig
from electra.kernels.hopper import gemm as triton_gemm
from electra.kernels.layer_params import NUM_CAST, PARAM_NAMES
from electra.kernels.plan import EncoderShape, plan_encoder
from electra.kernels.shadow_weights import ShadowWeights

ROWS = [1, 130, 1000, 4096]
DROPOUTS = [0.0, 0.1, 0.48]


@pytest.fixture
def draw(device):
    """`draw(3, 4, scale=0.1)`: random numbers in bf16."""
    torch.manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape) * scale).to(device, torch.bfloat16)

    return normal


def guarded(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """An output, and memory behind it that has to stay 7."""
    both = torch.full((rows + 64, width), 7.0, dtype=torch.bfloat16, device=device)
    return both[:rows], both[rows:]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.float() - expected).norm() / expected.norm()).item()


def row_major(gelu_grad: torch.Tensor) -> torch.Tensor:
    """Stored derivatives by row and column. In memory: tile of rows, tile of columns, half of it,
    warp, row, pair of columns, eight columns, eight rows, one of a pair."""
    width = gelu_grad.shape[1]
    parts = gelu_grad.view(-1, width // 64, 2, 4, 8, 4, 4, 2, 2)
    return parts.permute(0, 3, 7, 4, 1, 2, 6, 5, 8).reshape(-1, width)


def several_documents(batch_size: int, starts: Sequence[int], device) -> torch.Tensor:
    """Document ids: each of these starts begins a document, in one row and in all after it."""
    doc_ids = torch.zeros(batch_size, 128, dtype=torch.int32, device=device)
    for row, start in enumerate(starts):
        doc_ids[row:, start:] += 1
    return doc_ids


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_gemm_bias_gelu_and_its_backward(rows, hopper, draw):
    x, weight = draw(rows, 256), draw(1024, 256, scale=0.06)
    bias = draw(1024, scale=0.1).float() * 1.01  # not representable in bf16
    inner = (x.float() @ weight.float().t() + bias).requires_grad_()
    expected = F.gelu(inner)
    (derivative,) = torch.autograd.grad(expected.sum(), inner)
    out, behind = guarded(rows, 1024, hopper)
    padded = len(empty_gelu_grad(out))
    memory = torch.full((padded + 64, 1024), 7, dtype=torch.uint8, device=hopper)
    gelu_grad = memory[:-64]
    gemm.gemm_bias_gelu(x, weight, bias, out, gelu_grad)
    assert relative_error(out, expected.detach()) < 3e-3
    assert (out - expected).abs().max() < 0.03
    stored = row_major(gelu_grad)[:rows].float()
    steps = (stored - (derivative * 200 + 27)).abs()
    assert (steps > 1.5).float().mean() <= 1e-3
    assert steps.max() < 2.5
    assert (behind == 7).all()
    assert (memory[-64:] == 7).all()

    grad, weight = draw(rows, 256), draw(256, 1024, scale=0.05)
    count = gemm.gelu_partials(rows, 1024, hopper)
    partials = torch.full((count, 1024), torch.nan, device=hopper)
    grad_inner, behind = guarded(rows, 1024, hopper)
    gemm.gemm_gelu_backward(grad, weight, gelu_grad, partials, grad_inner)
    expected = grad.float() @ weight.float() * ((stored - 27) / 200)
    assert relative_error(grad_inner, expected) < 3e-3
    assert relative_error(partials.sum(0), expected.sum(0)) < 5e-3
    assert (behind == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_gemm_bias(rows, hopper, draw):
    x, weight, bias = draw(rows, 256), draw(768, 256, scale=0.06), draw(768)
    out, behind = guarded(rows, 768, hopper)
    gemm.gemm_bias(x, weight, bias, out)
    assert relative_error(out, x.float() @ weight.float().t() + bias.float()) < 3e-3
    assert (behind == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_gemm_grad_input(rows, hopper, draw):
    weight, grad = draw(256, 512, scale=0.06), draw(rows, 256)
    found = gemm.gemm_grad_input(grad, weight)
    assert relative_error(found, grad.float() @ weight.float()) < 3e-3


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize("depth", [256, 1024])
@pytest.mark.parametrize("rows", [1, 130, 1000, 40_000])
def test_gemm_layernorm(rows, depth, p, hopper, draw):
    """As in Triton, which drops the same elements; 40,000 rows are several tiles per block."""
    x, weight, residual = draw(rows, depth), draw(256, depth, scale=0.06), draw(rows, 256)
    bias, gamma, beta = (draw(256).float() for _ in range(3))
    (seed,) = draw_seeds(1, hopper)
    found = []
    for module in (gemm, triton_gemm):
        out, behind = guarded(rows, 256, hopper)
        norm = (gamma, beta, 1e-12)
        saved = module.gemm_layernorm(x, weight, bias, residual, norm, seed, p, out)
        assert (behind == 7).all()
        found.append((out, *saved))
    for cuda, triton in zip(*found, strict=True):
        assert relative_error(cuda, triton.float()) < 4e-3


def layernorm_grads(
    module: ModuleType, run: Callable[..., torch.Tensor], rows: int, seed: torch.Tensor, p: float
) -> tuple[torch.Tensor, ...]:
    """The gradients of residual and branch, and of the norm's weight and bias and of the bias."""
    grad_branch, behind = guarded(rows, 256, seed.device)
    count = module.num_partials(rows, 256, seed.device)
    partials = torch.full((count, 3, 256), torch.nan, device=seed.device)
    grad_residual = run(partials, seed, p, grad_branch)
    assert (behind == 7).all()
    return (grad_residual, grad_branch, *partials.sum(0))


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize("depth", [768, 1024])
@pytest.mark.parametrize("rows", [1, 130, 1000, 40_000])
def test_gemm_layernorm_backward(rows, depth, p, hopper, draw):
    """As a GEMM followed by the norm's backward kernel, which round in between."""
    x, weight, grad = draw(rows, depth), draw(depth, 256, scale=0.06), draw(rows, 256)
    x_hat, rstd = draw(rows, 256), draw(rows).float().abs() + 0.5
    gamma = draw(256).float() * 1.01
    (seed,) = draw_seeds(1, hopper)
    found = []
    for module in (gemm, triton_gemm):
        given = (x, weight, grad.clone(), x_hat, rstd, gamma)
        run = functools.partial(module.gemm_layernorm_backward, *given)
        found.append(layernorm_grads(module, run, rows, seed, p))
    for cuda, triton in zip(*found, strict=True):
        assert relative_error(cuda, triton.float()) < 6e-3


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("batch_size", [1, 3, 200])
@pytest.mark.parametrize("starts", [(), (50, 77, 100)])
def test_attention_forward(batch_size, heads, p, starts, hopper, draw):
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
def test_attention_backward(batch_size, heads, p, starts, hopper, draw):
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
def test_fused_encoder(batch_size, layers, p, hopper, draw):
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


@pytest.mark.gpu
def test_a_launch_sees_what_the_previous_one_wrote(hopper, draw):
    """Although it begins before the previous launch ends (PDL)."""
    x, weight, bias = draw(20000, 256), draw(256, 256, scale=0.06), draw(256, scale=0.1)

    def chain(between: Callable[[], None]) -> torch.Tensor:
        rows = [x, *torch.full((50, *x.shape), torch.nan, dtype=x.dtype, device=hopper)]
        torch.cuda.synchronize()
        for before, after in pairwise(rows):
            gemm.gemm_bias(before, weight, bias, after)
            between()
        return rows[-1]

    expected = chain(torch.cuda.synchronize)
    assert expected.isfinite().all()
    assert torch.equal(chain(lambda: None), expected)


@pytest.mark.gpu
def test_a_cuda_graph_captures_launches(hopper, draw):
    x, weight, bias = draw(130, 256), draw(768, 256, scale=0.06), draw(768)
    expected, out = (x.new_zeros(130, 768) for _ in range(2))
    gemm.gemm_bias(x, weight, bias, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm.gemm_bias(x, weight, bias, out)
    assert not out.any()
    graph.replay()
    assert torch.equal(out, expected)
