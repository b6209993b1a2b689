"""The CUDA C++ GEMMs agree with plain torch and with the Triton kernels, on a Hopper GPU."""

import functools
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.gemm import empty_gelu_grad
from electra.kernels.any_gpu.random import draw_seeds
from electra.kernels.cuda import gemm
from electra.kernels.hopper import gemm as triton_gemm

ROWS = [1, 130, 1000, 4096]
DROPOUTS = [0.0, 0.1, 0.48]


def row_major(gelu_grad: torch.Tensor) -> torch.Tensor:
    """Stored derivatives by row and column. In memory: tile of rows, tile of columns, half of it,
    warp, row, pair of columns, eight columns, eight rows, one of a pair."""
    width = gelu_grad.shape[1]
    parts = gelu_grad.view(-1, width // 64, 2, 4, 8, 4, 4, 2, 2)
    return parts.permute(0, 3, 7, 4, 1, 2, 6, 5, 8).reshape(-1, width)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_gemm_bias_gelu_and_its_backward(rows, hopper, draw, guarded, relative_error):
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
def test_gemm_bias(rows, hopper, draw, guarded, relative_error):
    x, weight, bias = draw(rows, 256), draw(768, 256, scale=0.06), draw(768)
    out, behind = guarded(rows, 768, hopper)
    gemm.gemm_bias(x, weight, bias, out)
    assert relative_error(out, x.float() @ weight.float().t() + bias.float()) < 3e-3
    assert (behind == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_gemm_grad_input(rows, hopper, draw, relative_error):
    weight, grad = draw(256, 512, scale=0.06), draw(rows, 256)
    found = gemm.gemm_grad_input(grad, weight)
    assert relative_error(found, grad.float() @ weight.float()) < 3e-3


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize("depth", [256, 1024])
@pytest.mark.parametrize("rows", [1, 130, 1000, 40_000])
def test_gemm_layernorm(rows, depth, p, hopper, draw, guarded, relative_error):
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
    guarded: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    module: ModuleType,
    run: Callable[..., torch.Tensor],
    rows: int,
    seed: torch.Tensor,
    p: float,
) -> tuple[torch.Tensor, ...]:
    """The gradients of residual and branch, and of the norm's weight and bias and of the bias."""
    grad_branch, behind = guarded(rows, 256, seed.device)
    count = module.layernorm_partials(rows, 256, seed.device)
    partials = torch.full((count, 3, 256), torch.nan, device=seed.device)
    grad_residual = run(partials, seed, p, grad_branch)
    assert (behind == 7).all()
    return (grad_residual, grad_branch, *partials.sum(0))


@pytest.mark.gpu
@pytest.mark.parametrize("p", DROPOUTS)
@pytest.mark.parametrize("depth", [768, 1024])
@pytest.mark.parametrize("rows", [1, 130, 1000, 40_000])
def test_gemm_layernorm_backward(rows, depth, p, hopper, draw, relative_error, guarded):
    """As a GEMM followed by the norm's backward kernel, which round in between."""
    x, weight, grad = draw(rows, depth), draw(depth, 256, scale=0.06), draw(rows, 256)
    x_hat, rstd = draw(rows, 256), draw(rows).float().abs() + 0.5
    gamma = draw(256).float() * 1.01
    (seed,) = draw_seeds(1, hopper)
    found = []
    for module in (gemm, triton_gemm):
        given = (x, weight, grad.clone(), x_hat, rstd, gamma)
        run = functools.partial(module.gemm_layernorm_backward, *given)
        found.append(layernorm_grads(guarded, module, run, rows, seed, p))
    for cuda, triton in zip(*found, strict=True):
        assert relative_error(cuda, triton.float()) < 6e-3


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
