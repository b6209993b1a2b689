"""A very narrow layer but its attention, forth and back, against the same in double."""

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.dropout import keep_mask
from electra.kernels.any_gpu.gelu import empty_slope
from electra.kernels.layer_params import NAMES
from electra.kernels.hopper.fused_layer import (
    BACK,
    FORTH,
    Projection,
    narrow,
    narrow_backward,
    narrow_forward,
    narrow_parts,
)

EPS = 1e-12
CASES = [(1, 16, 128), (128, 64, 256), (150, 64, 128), (70, 32, 384)]
"""Rows, width and inner width."""
SHARES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Differences that are allowed: in half precision by some roundings."""


@pytest.fixture
def layer(normal, dtype):
    """`layer(64, 256)`: its parameters, by their names."""

    def made(width: int, inner: int) -> dict[str, torch.Tensor]:
        shapes = {"qkv": (3 * width, width), "attended": (width, width)}
        shapes |= {"expand": (inner, width), "contract": (width, inner)}
        found = {}
        for name in NAMES:
            part, kind = name.split(".")
            shape = shapes.get(part, (width,))
            size = shape if kind == "weight" else shape[:1]
            found[name] = (normal(*size) / shape[-1] ** (0.5 * (part in shapes))).detach()
            if name == "qkv.bias" or len(size) == 2:
                found[name] = found[name].to(dtype)
        return found

    return made


def exact(p, mixed, x, seeds, drop):
    """All that the kernel writes, and the numbers before gelu."""
    p = {name: t.double() for name, t in p.items()}
    width = (x.shape[1],)
    z = mixed @ p["attended.weight"].t() + p["attended.bias"]
    z = z * keep_mask(x.shape, seeds[0], drop) + x
    normal1, scale1 = F.layer_norm(z, width, eps=EPS), (z.var(1, correction=0) + EPS).rsqrt()
    y = normal1 * p["attention_norm.weight"] + p["attention_norm.bias"]
    inner = y @ p["expand.weight"].t() + p["expand.bias"]
    active = F.gelu(inner)
    z = active @ p["contract.weight"].t() + p["contract.bias"]
    z = z * keep_mask(x.shape, seeds[1], drop) + y
    normal2, scale2 = F.layer_norm(z, width, eps=EPS), (z.var(1, correction=0) + EPS).rsqrt()
    out = normal2 * p["output_norm.weight"] + p["output_norm.bias"]
    return y, active, out, (normal1, scale1, normal2, scale2), inner


@pytest.fixture
def seeds(seed):
    return torch.stack([seed, seed.flip(0) + 5])


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("above", [True, False])
@pytest.mark.parametrize(("rows", "width", "inner"), CASES)
def test_forth_and_back(rows, width, inner, above, p, dtype, layer, seeds, normal, near, device):
    """The gradients of everything; the way back is given what the way forth kept."""
    params, following = layer(width, inner), layer(width, inner)
    share = SHARES[dtype]
    mixed, x = (normal(rows, width).detach().to(dtype) for _ in range(2))
    y, active, out, qkv = (
        torch.full((rows, n), torch.nan, dtype=dtype, device=device)
        for n in (width, inner, width, 3 * width)
    )
    slope = empty_slope(active)
    ordered = [params[name] for name in NAMES]
    to = Projection(qkv, following["qkv.weight"], following["qkv.bias"]) if above else None
    kept = narrow_forward(mixed, x, y, active, slope, out, ordered, seeds, p, EPS, to)

    leaves = {name: t.double().requires_grad_() for name, t in params.items()}
    leaves |= {"mixed": mixed.double().requires_grad_(), "x": x.double().requires_grad_()}
    given = {name: leaves[name] for name in NAMES}
    found = exact(given, leaves["mixed"], leaves["x"], seeds, p)
    for name, a, b in zip(("y", "active", "out"), (y, active, out), found, strict=False):
        near(a, b, name, share)
    for name, a, b in zip(("normal1", "scale1", "normal2", "scale2"), kept, found[3], strict=True):
        near(a, b, name, share)
    weight, bias = following["qkv.weight"].double(), following["qkv.bias"].double()
    if above:
        near(qkv, found[2] @ weight.t() + bias, "qkv", share)
    else:
        assert qkv.isnan().all()

    grad, of_qkv = (normal(rows, n).detach().to(dtype) for n in (width, 3 * width))
    whole = grad.double() + (of_qkv.double() @ weight if above else 0)
    wanted = torch.autograd.grad(found[2], [*leaves.values(), found[4]], whole, allow_unused=True)
    wanted = dict(zip((*leaves, "inner"), wanted, strict=True))
    of_attended, of_inner, of_outer = (
        torch.full((rows, n), torch.nan, dtype=dtype, device=device) for n in (width, inner, width)
    )
    parts = narrow_parts(rows)
    norm_sums = torch.full((2, parts, 3, width), torch.nan, device=device)
    gelu_sums = torch.full((parts, inner), torch.nan, device=device)
    before = grad.clone()
    of_x, of_mixed = narrow_backward(
        grad, Projection(of_qkv, *to[1:]) if to else None, (*kept, slope), ordered, seeds, p,
        of_attended, of_inner, of_outer, norm_sums, gelu_sums,
    )  # fmt: skip
    assert torch.equal(grad, before)  # others may read it
    sums = norm_sums.sum(1)
    share = share if dtype == torch.float32 else 5 * share  # slopes are bytes
    results = {
        "x": of_x, "mixed": of_mixed, "inner": of_inner, "expand.bias": gelu_sums.sum(0),
        "attention_norm.weight": sums[0, 0], "attention_norm.bias": sums[0, 1],
        "attended.bias": sums[0, 2], "output_norm.weight": sums[1, 0],
        "output_norm.bias": sums[1, 1], "contract.bias": sums[1, 2],
        "attended.weight": of_attended.double().t() @ mixed.double(),
        "expand.weight": of_inner.double().t() @ y.double(),
        "contract.weight": of_outer.double().t() @ active.double(),
    }  # fmt: skip
    assert results.keys() | {"qkv.weight", "qkv.bias"} == wanted.keys()
    for name, gradient in results.items():
        near(gradient, wanted[name], name, share)


def test_the_cases_fit_and_do_not_all_fill_their_tiles():
    for rows, width, inner in CASES:
        assert narrow(torch.empty(width, inner))
        assert rows == 128 or all(rows % way["TALL"] for way in (FORTH, BACK))


@pytest.mark.parametrize("shape", [(48, 384), (8, 128), (128, 512), (256, 1024), (64, 96)])
def test_layers_that_do_not_fit(shape):
    assert not narrow(torch.empty(shape))


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
    assert narrow(torch.empty(64, 256, dtype=dtype).as_subclass(OnGpu)) == fits
