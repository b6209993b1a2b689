"""The feed-forward part of a very narrow layer, forth and back, against the same in double."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.models.kernels.dropout import keep_mask
from electra.models.kernels.ffn import BACK, FORTH, ffn_backward, ffn_fits, ffn_forward, ffn_parts

EPS = 1e-12
CASES = [(1, 16, 128), (128, 64, 256), (150, 64, 128), (70, 32, 384)]
"""Rows, width and inner width."""
SHARES = {torch.float32: 2e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Differences that are allowed: in half precision by two roundings."""


@pytest.fixture(params=SHARES)
def dtype(request, device):
    if not ffn_fits(torch.empty(64, 256, dtype=request.param, device=device)):
        pytest.skip("not in this precision on this GPU")
    if device.type == "cpu" and request.param == torch.bfloat16:
        pytest.skip("Triton's interpreter multiplies bf16 as if it were whole numbers")
    return request.param


@pytest.fixture
def part(normal, dtype):
    """`part(64, 256)`: both matrices and what is added after them."""

    def made(width: int, inner: int) -> tuple[torch.Tensor, ...]:
        shapes = (inner, width), (inner,), (width, inner), (width,)
        numbers = ((normal(*shape) / shape[-1] ** 0.5).detach() for shape in shapes)
        return tuple(t.to(dtype) if t.ndim == 2 else t for t in numbers)

    return made


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "width", "inner"), CASES)
def test_forth(rows, width, inner, p, dtype, part, seed, normal, near):
    expand, b_expand, contract, b_contract = part(width, inner)
    x, (weight, shift) = normal(rows, width).detach().to(dtype), normal(2, width).detach()
    before = (x.double() @ expand.double().t() + b_expand).requires_grad_()
    value = F.gelu(before)
    (slope,) = torch.autograd.grad(value.sum(), before)
    exact = (value @ contract.double().t() + b_contract) * keep_mask((rows, width), seed, p) + x
    even = F.layer_norm(exact, (width,), eps=EPS)
    scale = (exact.var(1, correction=0) + EPS).rsqrt()
    wanted = value, slope, even * weight + shift, even, scale
    given = [torch.full_like(t, torch.nan, dtype=dtype) for t in wanted[:3]]
    norm = (weight, shift, EPS)
    kept = ffn_forward(x, expand, b_expand, contract, b_contract, norm, seed, p, *given)
    names = ("active", "slope", "out", "normal", "scale")
    for name, a, b in zip(names, (*given, *kept), wanted, strict=True):
        near(a, b, name, SHARES[dtype])


@pytest.mark.parametrize(("rows", "width", "inner"), CASES)
def test_back(rows, width, inner, device, dtype, part, normal, near):
    (expand, _, contract, _), slope = part(width, inner), normal(rows, inner).detach().to(dtype)
    through, grad = (normal(rows, width).detach().to(dtype) for _ in range(2))
    of_inner = (through.double() @ contract.double()) * slope
    of_x = grad + of_inner @ expand.double()
    found = torch.full_like(slope, torch.nan)
    sums = torch.full((ffn_parts(rows), inner), torch.nan, device=device)
    ffn_backward(through, contract, slope, expand, sums, found, grad)
    near(found, of_inner, "inner", SHARES[dtype])
    near(sums.sum(0), of_inner.sum(0), "bias")  # not of rounded ones
    near(grad, of_x, "x", SHARES[dtype])


def test_the_cases_fit_and_do_not_all_fill_their_tiles():
    for rows, width, inner in CASES:
        assert ffn_fits(torch.empty(width, inner))
        assert rows == 128 or all(rows % way["TALL"] for way in (FORTH, BACK))


@pytest.mark.parametrize("shape", [(48, 384), (8, 128), (128, 512), (256, 1024), (64, 192)])
def test_parts_that_do_not_fit(shape):
    assert not ffn_fits(torch.empty(shape))


@pytest.mark.parametrize(
    ("dtype", "generation", "fits"),
    [
        (torch.bfloat16, 9, True),
        (torch.float16, 9, True),
        (torch.float32, 9, False),
        (torch.bfloat16, 8, False),
        (torch.bfloat16, 10, False),
    ],
)
def test_gpus_that_fit(dtype, generation, fits, monkeypatch):
    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (generation, 0))
    assert ffn_fits(torch.empty(64, 256, dtype=dtype).as_subclass(OnGpu)) == fits
