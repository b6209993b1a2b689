"""A step through the kernels is the step: against PaperAdam's own in float64, and in a graph."""

import gc

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.optim.adam import PaperAdam
from electra.optim.fused_adam import CHUNK

SHAPES = {
    "one": (1,),
    "three": (3,),
    "vector": (100,),
    "whole": (CHUNK,),
    "odd": (CHUNK + 1,),
    "matrix": (70, 64),
    "table": (3 * CHUNK // 64, 64),
    "column": (33, 1),
    "unused": (5, 5),
}


@pytest.fixture
def device(device, monkeypatch) -> torch.device:
    """On the CPU, too, the step goes through the kernels."""
    if device.type == "cpu":
        monkeypatch.setattr(PaperAdam, "supports_kernels", lambda self: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return device


def made(device, dtype=torch.float32, **settings) -> tuple[dict[str, torch.Tensor], PaperAdam]:
    g = torch.Generator().manual_seed(0)
    params = {
        k: torch.nn.Parameter(torch.randn(s, generator=g).to(device, dtype))
        for k, s in SHAPES.items()
    }
    groups = [
        {"params": [p for p in params.values() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in params.values() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return params, PaperAdam(groups, **settings)


def gradients(number: int, size: float = 1.0) -> dict[str, torch.Tensor]:
    """Of all but one; some far smaller than others."""
    g = torch.Generator().manual_seed(number)
    shapes = {k: s for k, s in SHAPES.items() if k != "unused"}
    scales = {k: size * 10.0 ** -(i % 4) for i, k in enumerate(shapes)}
    return {k: scales[k] * torch.randn(s, generator=g) for k, s in shapes.items()}


def take(params, optimizer, grads, rate) -> torch.Tensor:
    for k, grad in grads.items():
        params[k].grad = grad.to(params[k])
    return optimizer.step(rate)


def check(found, wanted, **near) -> None:
    """Two of `made`: weights and means."""
    (params, optimizer), (expected, reference) = found, wanted
    for k, p in params.items():
        torch.testing.assert_close(p.detach(), expected[k].detach().to(p), msg=k, **near)
        for name, moment in optimizer.moments(p).items():
            exact = reference.moments(expected[k])[name].to(moment)
            torch.testing.assert_close(moment, exact, rtol=1e-4, atol=1e-10, msg=f"{k} {name}")


@pytest.mark.parametrize("clip", [0.5, 1e4, float("inf")])
def test_against_float64(clip, device):
    """Gradients from far above the clip to far below."""
    found = made(device, clip=clip)
    wanted = made("cpu", torch.float64, clip=clip)
    for number in range(5):
        grads = gradients(number, 10.0 ** (2 - number))
        rate = 1e-2 / (1 + number)
        norm = take(*found, grads, torch.tensor(rate, device=device))
        exact = take(*wanted, grads, rate)
        assert norm.dtype == torch.float32
        assert norm.shape == ()
        assert norm.item() == pytest.approx(exact.item(), rel=1e-5)
    assert found[1].chunks is not None  # it was the kernels
    check(found, wanted, rtol=1e-5, atol=1e-6)


def test_other_settings_and_each_groups_decay(device):
    settings = {"betas": (0.8, 0.95), "eps": 1e-2, "clip": 1.0}
    found, wanted = made(device, **settings), made("cpu", torch.float64, **settings)
    for number in range(3):
        rate = torch.tensor(0.5, device=device)
        take(*found, gradients(number), rate)
        take(*wanted, gradients(number), 0.5)
    check(found, wanted, rtol=1e-5, atol=1e-5)


def test_no_gradient_leaves_everything_and_a_rate_of_0_the_weights(device):
    params, optimizer = made(device)
    before = {k: p.detach().clone() for k, p in params.items()}
    take(params, optimizer, gradients(0), torch.zeros((), device=device))
    assert all(torch.equal(p, before[k]) for k, p in params.items())
    take(params, optimizer, gradients(0), torch.ones((), device=device))
    assert torch.equal(params["unused"], before["unused"])
    assert not any(m.any() for m in optimizer.moments(params["unused"]).values())
    assert not torch.equal(params["one"], before["one"])


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("clip", [1.0, float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(value, clip, device):
    found, wanted = made(device, clip=clip), made("cpu", torch.float64, clip=clip)
    shadowed = found[0]["odd"]
    shadowed.bf16_shadow = torch.zeros_like(shadowed, dtype=torch.bfloat16)
    rate = torch.tensor(1e-2, device=device)
    for number in range(3):
        grads = gradients(number)
        if number == 1:
            grads["one"][0] = value
            shadow = shadowed.bf16_shadow.clone()
            norm = take(*found, grads, rate)
            assert not norm.isfinite()
            assert torch.equal(shadowed.bf16_shadow, shadow)
        else:
            take(*found, grads, rate)
            take(*wanted, grads, 1e-2)
    check(found, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_that_begin_anywhere_or_lie_across(device):
    params, optimizer = made(device)
    grads = gradients(0)
    wanted = made("cpu", torch.float64)
    take(*wanted, grads, 1e-2)
    for k, grad in grads.items():
        if grad.ndim > 1:
            params[k].grad = grad.to(device).t().contiguous().t()
        else:
            params[k].grad = torch.cat([torch.zeros(1), grad]).to(device)[1:]
    assert params["whole"].grad.data_ptr() % 16
    assert not params["matrix"].grad.is_contiguous()
    optimizer.step(torch.tensor(1e-2, device=device))
    check((params, optimizer), wanted, rtol=1e-5, atol=1e-6)


def test_what_lies_behind_a_tensor_stays_as_it_is(device):
    """Parameters and means are parts of one buffer, as far apart as 16 bytes demand."""
    sizes = [1, 2, 3, 5, CHUNK - 1, CHUNK, CHUNK + 2]
    sizes_with_gap = [(n + 1 + 3) // 4 * 4 for n in sizes]
    buffers = [torch.full((sum(sizes_with_gap),), 7.0, device=device) for _ in range(3)]
    parts = [[x[:n] for x, n in zip(b.split(sizes_with_gap), sizes, strict=True)] for b in buffers]
    params = [torch.nn.Parameter(p) for p in parts[0]]
    optimizer = PaperAdam([{"params": params}])
    for p, mean, square in zip(params, *parts[1:], strict=True):
        optimizer.state[p] = {"mean": mean, "square": square}
        p.grad = torch.full_like(p, 1e3)
    optimizer.step(torch.ones((), device=device))
    for buffer, own in zip(buffers, parts, strict=True):
        assert not any((x == 7.0).any() for x in own)
        assert (buffer == 7.0).sum() == sum(sizes_with_gap) - sum(sizes)


def test_the_norm_of_one_gradient_is_always_the_same(device):
    norms = [take(*made(device), gradients(1), torch.zeros((), device=device)) for _ in range(3)]
    assert norms[0] == norms[1] == norms[2]


def test_a_capture_learns_afterwards_where_its_gradients_are(device, monkeypatch):
    """Its kernels do nothing until the replay, which here is a second launch."""
    params, optimizer = made(device)
    wanted = made("cpu", torch.float64)
    rate = torch.zeros((), device=device)
    take(params, optimizer, gradients(0), rate)
    warm, held = optimizer.chunks, [p.grad for p in params.values()]
    table = warm.table.clone()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    take(params, optimizer, gradients(1), rate)
    assert optimizer.chunks is warm
    assert torch.equal(warm.table, table)  # a capture copies nothing
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert optimizer.finish_capture() is warm
    assert held  # what the warm-up's table pointed to was there until now
    for p in params.values():
        for moment in optimizer.moments(p).values():
            moment.zero_()
    rate.fill_(1e-2)
    group = optimizer.param_groups[0]
    warm.step(rate, optimizer.clip, group["betas"], group["eps"])
    take(*wanted, gradients(1), 1e-2)
    check((params, optimizer), wanted, rtol=1e-5, atol=1e-6)
    take(params, optimizer, gradients(2), rate)
    assert optimizer.chunks is not warm  # which belongs to the graph from now on


def test_a_capture_with_other_parameters_is_refused(device, monkeypatch):
    params, optimizer = made(device)
    take(params, optimizer, gradients(0), torch.zeros((), device=device))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    params["one"].grad = None
    with pytest.raises(AssertionError, match="not those of the table"):
        optimizer.step(torch.zeros((), device=device))


def test_where_they_do_not_fit_the_step_is_the_other():
    params, optimizer = made("cpu")
    assert not optimizer.supports_kernels()
    take(params, optimizer, gradients(0), torch.tensor(1e-2))
    assert optimizer.chunks is None
    assert optimizer.finish_capture() is None


@pytest.mark.gpu
def test_which_fit():
    _, optimizer = made("cuda")
    assert optimizer.supports_kernels()
    optimizer.param_groups[1]["eps"] = 1e-3
    assert not optimizer.supports_kernels()
    assert not made("cuda", kernels=False)[1].supports_kernels()
    assert not made("cuda", torch.float64)[1].supports_kernels()
    part = torch.nn.Parameter(torch.zeros(9, device="cuda")[1:])
    assert not PaperAdam([{"params": [part]}]).supports_kernels()


@pytest.mark.gpu
def test_two_graphs_of_one_pool():
    """Each has gradients of its own, in memory that other tensors of the graphs use too."""
    params, optimizer = made("cuda", clip=1.0)
    wanted = made("cpu", torch.float64, clip=1.0)
    rate = torch.zeros((), device="cuda")
    sources = {k: g.cuda() for k, g in gradients(0).items()}
    stages = [list(sources), [k for k in sources if k != "matrix"]]
    before = {k: p.detach().clone() for k, p in params.items()}

    def step(names) -> torch.Tensor:
        for size in (64, 5000, 500_000):  # what is freed here is taken again
            torch.full((size,), 3, dtype=torch.int64, device="cuda")
        for k in names:
            params[k].grad = 2 * sources[k]
        norm = optimizer.step(rate)
        optimizer.zero_grad()
        for size in (64, 5000, 500_000):
            torch.full((size,), 5, dtype=torch.int64, device="cuda")
        return norm.clone()

    pool, side, graphs = torch.cuda.graph_pool_handle(), torch.cuda.Stream(), []
    for names in stages:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(names)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=side):
            norm = step(names)
        graphs.append((graph, norm, optimizer.finish_capture()))
    gc.collect()
    for k, p in params.items():
        assert torch.equal(p, before[k])
        for moment in optimizer.moments(p).values():
            moment.zero_()
    for number in range(6):
        grads = gradients(number, 10.0 ** (1 - number))
        stage = number % 2
        for k, g in grads.items():
            sources[k].copy_(g)
        rate.fill_(1e-2 / (1 + number))
        graph, norm, _ = graphs[stage]
        graph.replay()
        wanted[1].zero_grad()
        exact = take(*wanted, {k: 2 * grads[k] for k in stages[stage]}, 1e-2 / (1 + number))
        assert norm.item() == pytest.approx(exact.item(), rel=1e-5)
    check((params, optimizer), wanted, rtol=1e-5, atol=1e-6)


def test_a_twin_is_written_with_its_parameter(device):
    params, optimizer = made(device)
    whole, odd = params["table"], params["odd"]
    for p in (whole, odd):
        p.bf16_shadow = torch.full_like(p, torch.nan, dtype=torch.bfloat16)
    before = whole.detach().clone()
    take(params, optimizer, gradients(1), torch.tensor(0.1, device=device))
    assert not torch.equal(whole, before)
    for p in (whole, odd):
        if device.type == "cuda":
            assert torch.equal(p.bf16_shadow, p.bfloat16())
        else:  # Triton's interpreter rounds towards zero
            assert torch.allclose(p.bf16_shadow.float(), p, rtol=2**-7, atol=0)
