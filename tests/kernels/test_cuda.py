"""The kernels in CUDA C++: they compile everywhere, and on a Hopper GPU agree with plain torch."""

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu import attention
from electra.kernels.any_gpu import layernorm as norm
from electra.kernels.any_gpu.dropout import draw_seeds
from electra.kernels.any_gpu.gelu import empty_slope
from electra.kernels.cuda import fused_encoder as rows
from electra.kernels.cuda import fused_linear_cross_entropy as words
from electra.kernels.cuda import runtime as cuda
from electra.kernels.encoder_stack import Shape
from electra.kernels.hopper import gemm_gelu as ffn
from electra.kernels.hopper import gemm_layernorm as join
from electra.kernels.hopper.gemm_gelu import (
    contract_backward,
    expand_gelu,
    ffn_parts,
    product_back,
    product_bias,
)

SHARED = {
    "gemm_epilogue": [ffn.SHARED],
    "attention": [attention.FORTH_SHARED, attention.BACK_SHARED],
    "gemm_layernorm": [join.FORTH_SHARED, join.BACK_SHARED],
    "fused_encoder_forward": [rows.FORTH_SHARED],
    "fused_encoder_backward": [rows.BACK_SHARED],
    "fused_linear_cross_entropy": [words.SHARED],
}
ROWS = [1, 130, 1000, 4096]


@pytest.mark.parametrize("source", cuda.SOURCES)
def test_the_host_asks_for_the_shared_memory_that_kernels_have(source):
    found = re.findall(r"static_assert\(.* == (\d+),", cuda.source_text(source))
    assert [int(number) for number in found] == SHARED[source]


def test_the_host_starts_as_many_groups_as_compute():
    """Mostly as many as hopper.cuh says; a kernel of its own number says so before it."""
    found = [re.findall(r"WARPGROUPS = (\d)", cuda.source_text(source)) for source in cuda.SOURCES]
    assert found == [["2", "3"], ["2"], ["2"], ["2", "3"], ["2"], ["2"]]
    assert [cuda.WARPGROUPS, attention.FORTH_GROUPS, words.WARPGROUPS] == [2, 3, 3]


def test_both_sides_have_the_same_sizes():
    def said(source: str, *names: str) -> list[int]:
        whole = cuda.source_text(source)
        return [int(re.search(rf"\b{name} = (\d+)", whole)[1]) for name in names]

    assert said("gemm_layernorm", "CLUSTER", "WIDTH") == [join.CLUSTER, join.SQUARE]
    assert said("fused_linear_cross_entropy", "TILE_N", "HIDDEN") == [words.WIDE.value, words.DEPTH]
    assert words.TALL.value == words.WARPGROUPS * 64
    assert join.TALL == cuda.WARPGROUPS * 64


@pytest.fixture
def draw(device):
    """`draw(3, 4, scale=0.1)`: random numbers in bf16."""
    torch.manual_seed(0)

    def is_masked(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape) * scale).to(device, torch.bfloat16)

    return is_masked


@pytest.fixture
def forms(monkeypatch):
    """`for able in forms(norm)`: with a module's kernels in CUDA, and without."""

    def each(module: Any) -> Iterator[bool]:
        for able in (True, False):
            monkeypatch.setattr(module, "is_supported", lambda device, able=able: able)
            yield able

    return each


def with_end(rows: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for rows, and what lies behind it."""
    whole = torch.full((rows + 64, width), 7.0, dtype=torch.bfloat16, device=device)
    return whole[:rows], whole[rows:]


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.float() - wanted).norm() / wanted.norm()).item()


def in_order(slope: torch.Tensor) -> torch.Tensor:
    """Slopes by row and column. In memory: tile of rows, of columns, half of it, warp, row, pair of
    columns, eight columns, eight rows, one of a pair."""
    width = slope.shape[1]
    parts = slope.view(-1, width // 64, 2, 4, 8, 4, 4, 2, 2)
    return parts.permute(0, 3, 7, 4, 1, 2, 6, 5, 8).reshape(-1, width)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_gelu_forth_and_back(rows, hopper, draw):
    x, expand = draw(rows, 256), draw(1024, 256, scale=0.06)
    bias = draw(1024, scale=0.1).float() * 1.01  # not in bf16
    inner = (x.float() @ expand.float().t() + bias).requires_grad_()
    value = F.gelu(inner)
    (bend,) = torch.autograd.grad(value.sum(), inner)
    active, behind = with_end(rows, 1024, hopper)
    room = torch.full((len(empty_slope(active)) + 64, 1024), 7, dtype=torch.uint8, device=hopper)
    slope = room[:-64]
    expand_gelu(x, expand, bias, active, slope)
    assert off(active, value.detach()) < 3e-3
    assert (active - value).abs().max() < 0.03
    stored = in_order(slope)[:rows].float()
    steps = (stored - (bend * 200 + 27)).abs()
    assert (steps > 1.5).float().mean() <= 1e-3
    assert steps.max() < 2.5
    assert (behind == 7).all()
    assert (room[-64:] == 7).all()

    through, contract = draw(rows, 256), draw(256, 1024, scale=0.05)
    sums = torch.full((ffn_parts(rows, contract), 1024), torch.nan, device=hopper)
    of_inner, behind = with_end(rows, 1024, hopper)
    contract_backward(through, contract, slope, sums, of_inner)
    wanted = through.float() @ contract.float() * ((stored - 27) / 200)
    assert off(of_inner, wanted) < 3e-3
    assert off(sums.sum(0), wanted.sum(0)) < 5e-3
    assert (behind == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_projection(rows, hopper, draw):
    x, matrix, bias = draw(rows, 256), draw(768, 256, scale=0.06), draw(768)
    out, behind = with_end(rows, 768, hopper)
    product_bias(x, matrix, bias, out)
    assert off(out, x.float() @ matrix.float().t() + bias.float()) < 3e-3
    assert (behind == 7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows", ROWS)
def test_product_back(rows, hopper, draw):
    matrix, x = draw(256, 512, scale=0.06), draw(rows, 256)
    assert off(product_back(x, matrix), x.float() @ matrix.float()) < 3e-3


def back_through(
    run: Callable[..., torch.Tensor], rows: int, seed: torch.Tensor, p: float
) -> tuple[torch.Tensor, ...]:
    """Both results of a way back through a norm, and its sums."""
    through, behind = with_end(rows, 256, seed.device)
    parts = norm.back_parts(rows, 256, through.dtype, seed.device, p)
    sums = torch.full((parts, 3, 256), torch.nan, device=seed.device)
    residual = run(sums, seed, p, through)
    assert (behind == 7).all()
    return (residual, through, *sums.sum(0))


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.1, 0.48])
@pytest.mark.parametrize("depth", [256, 1024])
@pytest.mark.parametrize("rows", [1, 130, 1000, 40_000])
def test_product_and_norm(rows, depth, p, hopper, draw, forms):
    """The same as Triton's, which drops the same elements; of 40,000 rows a program has several
    tiles."""
    x, matrix, residual = draw(rows, depth), draw(256, depth, scale=0.06), draw(rows, 256)
    bias, gain, shift = (draw(256).float() for _ in range(3))
    (seed,) = draw_seeds(1, hopper)
    found = []
    for _ in forms(join):
        out, behind = with_end(rows, 256, hopper)
        norms = (gain, shift, 1e-12)
        kept = join.product_norm(x, matrix, bias, residual, norms, seed, p, out)
        assert (behind == 7).all()
        found.append((out, *kept))
    for ours, tritons in zip(*found, strict=True):
        assert off(ours, tritons.float()) < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.1, 0.48])
@pytest.mark.parametrize("depth", [768, 1024])
@pytest.mark.parametrize("rows", [1, 130, 1000, 40_000])
def test_product_and_norm_back(rows, depth, p, hopper, draw, forms):
    """The same as a product and the norm after it, where what lies between them is rounded."""
    x, matrix, grad = draw(rows, depth), draw(depth, 256, scale=0.06), draw(rows, 256)
    normal, scale = draw(rows, 256), draw(rows).float().abs() + 0.5
    gain = draw(256).float() * 1.01
    (seed,) = draw_seeds(1, hopper)
    found = []
    for _ in forms(join):
        given = (x, matrix, grad.clone(), normal, scale, gain)
        found.append(
            back_through(functools.partial(join.product_norm_backward, *given), rows, seed, p)
        )
    for ours, others in zip(*found, strict=True):
        assert off(ours, others.float()) < 6e-3


def texts(rows: int, starts: Sequence[int], device: torch.device) -> torch.Tensor:
    """Numbers of documents: each of these begins one, in a row and in all after it."""
    documents = torch.zeros(rows, 128, dtype=torch.int32, device=device)
    for row, start in enumerate(starts):
        documents[row:, start:] += 1
    return documents


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.1, 0.48])
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("papers", [(), (50, 77, 100)])
def test_attention(rows, heads, p, papers, hopper, draw, forms):
    """The same as Triton's, which drops the same elements. Of 200 rows a program has several."""
    wide, tokens = heads * 64, rows * 128
    documents = texts(rows, papers, hopper)
    documents[100:] = 0
    (seed,) = draw_seeds(1, hopper)
    qkv = draw(tokens, 3 * wide)
    found = []
    for _ in forms(attention):
        mixed, behind = with_end(tokens, wide, hopper)
        mixed.fill_(torch.nan)
        logs = attention.attend(qkv, documents, heads, seed, p, mixed)
        assert (behind == 7).all()
        found.append((mixed, logs))
    (ours, our_logs), (tritons, triton_logs) = found
    # Odds are rounded after another power of two where the highest score comes late.
    assert off(ours, tritons.float()) < 4e-3
    torch.testing.assert_close(ours, tritons, atol=0.03, rtol=0.02)
    torch.testing.assert_close(our_logs, triton_logs, atol=1e-4, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "heads", "p"), [(1, 1, 0.0), (7, 3, 0.1), (150, 4, 0.48)])
@pytest.mark.parametrize("papers", [(), (50, 77, 100)])
def test_attention_back(rows, heads, p, papers, hopper, draw, forms):
    """The same as Triton's, whose mistakes would be others."""
    wide, tokens = heads * 64, rows * 128
    documents = texts(rows, papers, hopper)
    (seed,) = draw_seeds(1, hopper)
    qkv, grad, mixed = draw(tokens, 3 * wide), draw(tokens, wide), draw(tokens, wide)
    logs = attention.attend(qkv, documents, heads, seed, p, mixed)
    found = []
    for able in forms(attention):
        of_qkv, behind = with_end(tokens, 3 * wide, hopper)
        of_qkv.fill_(torch.nan)
        parts = attention.sum_parts(documents, 64, qkv.dtype, p)
        assert parts == (2 if able else 1) * rows
        sums = torch.full((parts, 3, wide), torch.nan, device=hopper)
        given = (grad, qkv, documents, mixed, logs, heads, seed, p)
        attention.attend_backward(*given, of_qkv, sums)
        assert (behind == 7).all()
        found.append((*of_qkv.float().split(wide, 1), *sums.sum(0)[::2], sums.sum(0)[1]))
    for ours, tritons, share in zip(*found, [1e-3] * 3 + [5e-3] * 2 + [0], strict=True):
        assert (ours - tritons).norm() <= share * tritons.norm()


def narrow_layer(draw) -> list[torch.Tensor]:
    """In the order of `layer.NAMES`: the vectors, but that of the projections, are not in bf16."""
    shapes = [(192, 64), (64, 64), (256, 64), (64, 256)]
    matrices = [draw(*shape, scale=shape[1] ** -0.5) for shape in shapes]
    vectors = [draw(n, scale=0.1).float() * 1.01 for n in (64, 64, 64, 256, 64, 64, 64)]
    for gain in (1, 5):
        vectors[gain] += 1
    return [*matrices, draw(192), *vectors]


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.1, 0.48])
@pytest.mark.parametrize(("count", "layers"), [(1, 1), (7, 12), (300, 3)])
def test_all_layers_of_a_row(count, layers, p, hopper, draw, through, forms):
    """The same as layer by layer, and so is the way back. Of 300 rows a program has several."""
    documents = texts(count, (50, 77, 100), hopper)
    documents[5:] = 0
    params = [t.float().requires_grad_() for _ in range(layers) for t in narrow_layer(draw)]
    x, grad = draw(count * 128, 64).requires_grad_(), draw(count * 128, 64)
    found = []
    for _ in forms(rows):
        torch.manual_seed(0)
        out = through(x, documents, Shape(1, p, p, 1e-12), *params)
        found.append((out, *torch.autograd.grad(out, [x, *params], grad)))
    for number, (ours, others) in enumerate(zip(*found, strict=True)):
        # Each layer rounds in other places
        assert off(ours, others.float()) < 1e-2 + 5e-3 * layers, number


@pytest.mark.gpu
def test_a_launch_sees_what_the_one_before_wrote(hopper, draw):
    """Though it begins before the end of that one."""
    x, matrix, bias = draw(20000, 256), draw(256, 256, scale=0.06), draw(256, scale=0.1)

    def chain(between) -> torch.Tensor:
        rows = [x, *torch.full((50, *x.shape), torch.nan, dtype=x.dtype, device=hopper)]
        torch.cuda.synchronize()
        for before, after in pairwise(rows):
            product_bias(before, matrix, bias, after)
            between()
        return rows[-1]

    wanted = chain(torch.cuda.synchronize)
    assert wanted.isfinite().all()
    assert torch.equal(chain(lambda: None), wanted)


@pytest.mark.gpu
def test_a_graph_has_the_launches(hopper, draw):
    x, matrix, bias = draw(130, 256), draw(768, 256, scale=0.06), draw(768)
    wanted, out = (x.new_zeros(130, 768) for _ in range(2))
    product_bias(x, matrix, bias, wanted)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product_bias(x, matrix, bias, out)
    assert not out.any()
    graph.replay()
    assert torch.equal(out, wanted)


@pytest.fixture
def launched(monkeypatch):
    """Names of the kernels that would be launched, on the CPU too."""
    names = []

    class Kernel:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            return lambda *_, **__: names.append(self.name)

    for name in ("multiply_kernel", "contract_backward_kernel"):
        monkeypatch.setattr(ffn, name, Kernel(name))
    monkeypatch.setattr(ffn, "tensor_map", lambda x: x)
    monkeypatch.setattr(ffn, "launch", lambda name, *_: names.append(name))
    return names


def run(depth: int, width: int, dtype: torch.dtype) -> None:
    """All of them."""
    x, out = (torch.empty(130, n, dtype=dtype) for n in (depth, width))
    matrix = torch.empty(width, depth, dtype=dtype)
    bias, slope = torch.empty(width), empty_slope(out)
    expand_gelu(x, matrix, bias, out, slope)
    product_bias(x, matrix, bias, out)
    contract = matrix.t().contiguous()
    contract_backward(x, contract, slope, torch.empty(ffn_parts(130, contract), width), out)
    product_back(x, contract)


KINDS = ("bias_gelu", "bias", "grad_gelu", "grad_input")
CUDA = [f"gemm_epilogue.gemm_{kind}" for kind in KINDS]
TRITON = ["multiply_kernel", "multiply_kernel", "contract_backward_kernel"]
"""Besides a product of torch's."""


@pytest.mark.parametrize(
    ("depth", "width", "dtype", "able", "fits"),
    [
        (256, 1024, torch.bfloat16, True, True),
        (256, 1024, torch.bfloat16, False, False),
        (256, 1024, torch.float16, True, False),
        (128, 1024, torch.bfloat16, True, False),
        (256, 1152, torch.bfloat16, True, False),
    ],
)
def test_which_form_is_taken(depth, width, dtype, able, fits, launched, monkeypatch):
    monkeypatch.setattr(ffn, "is_supported", lambda device: able)
    run(depth, width, dtype)
    assert launched == (CUDA if fits else TRITON)


def test_the_cpu_has_tritons_form(launched):
    run(256, 1024, torch.bfloat16)
    assert launched == TRITON


@pytest.mark.parametrize(
    ("length", "size", "dtype", "p", "fits"),
    [
        (128, 64, torch.bfloat16, 0.1, True),
        (127, 64, torch.bfloat16, 0.1, False),
        (128, 32, torch.bfloat16, 0.1, False),
        (128, 64, torch.float32, 0.1, False),
        (128, 64, torch.bfloat16, 0.5, False),  # beyond what one instruction compares
    ],
)
def test_which_attention_is_taken(length, size, dtype, p, fits, monkeypatch):
    given = (length, size, dtype, torch.device("cpu"), p)
    assert not attention.whole_rows(*given)
    monkeypatch.setattr(attention, "is_supported", lambda device: True)
    assert attention.whole_rows(*given) == fits


@pytest.mark.parametrize(
    ("length", "heads", "shape", "dtype", "p", "fits"),
    [
        (128, 1, (64, 256), torch.bfloat16, 0.1, True),
        (128, 1, (64, 256), torch.bfloat16, 0.0, True),
        (512, 1, (64, 256), torch.bfloat16, 0.1, False),
        (128, 4, (64, 256), torch.bfloat16, 0.1, False),
        (128, 1, (64, 128), torch.bfloat16, 0.1, False),
        (128, 1, (64, 256), torch.float16, 0.1, False),
        (128, 1, (64, 256), torch.bfloat16, 0.5, False),  # beyond what one instruction compares
    ],
)
def test_what_goes_by_rows(length, heads, shape, dtype, p, fits, monkeypatch):
    documents = torch.empty(2, length, dtype=torch.int32)
    given = (documents, torch.empty(shape), heads, dtype)
    assert not rows.by_rows(*given, (p, p))
    monkeypatch.setattr(rows, "is_supported", lambda device: True)
    for dropouts in ((p, 0.1), (0.1, p)):
        assert rows.by_rows(*given, dropouts) == fits


class Box(NamedTuple):
    """In the place of a map."""

    matrix: torch.Tensor
    tall: int = 64


POINTERS = {
    torch.float32: "float*",
    torch.bfloat16: "unsigned short*",
    torch.uint8: "unsigned char*",
    torch.int32: "int*",
    torch.int64: "long long*",
}


def declared(source: str, kernel: str) -> list[str]:
    """The types of a kernel's arguments."""
    head = rf"KERNEL [^{{;]*\b{kernel}\((.*?)\)"
    found = re.search(head, cuda.source_text(source), re.DOTALL)
    words = [argument.replace("const ", "").split() for argument in found[1].split(",")]
    return [" ".join(kind) for *kind, _ in words]


def handed(value: Any) -> str:
    """The type as which an argument comes there."""
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return {Box: "MAP", bool: "int", int: "int", float: "float"}[type(value)]


def test_attention_is_given_what_it_takes(monkeypatch):
    calls = []
    monkeypatch.setattr(attention, "is_supported", lambda device: True)
    monkeypatch.setattr(attention, "tensor_map", Box)
    monkeypatch.setattr(attention, "launch", lambda *given, **_: calls.append(given))
    documents, tokens = torch.empty(5, 128, dtype=torch.int32), 640
    (seed,) = draw_seeds(1, documents.device)
    qkv, of_qkv = (torch.empty(tokens, 384, dtype=torch.bfloat16) for _ in range(2))
    mixed, grad = (torch.empty(tokens, 128, dtype=torch.bfloat16) for _ in range(2))
    logs = attention.attend(qkv, documents, 2, seed, 0.1, mixed)
    assert logs.shape == (5, 2, 128)
    given = (grad, qkv, documents, mixed, logs, 2, seed, 0.1, of_qkv, torch.empty(10, 3, 128))
    attention.attend_backward(*given)
    assert [name for name, *_ in calls] == [
        "attention.attention_forward",
        "attention.attention_backward",
    ]
    for name, grid, _, *given in calls:
        assert grid == 2
        assert [handed(value) for value in given] == declared(*name.split("."))


def test_products_with_norms_are_given_what_they_take(monkeypatch):
    calls = []
    monkeypatch.setattr(join, "is_supported", lambda device: True)
    monkeypatch.setattr(join, "tensor_map", Box)
    monkeypatch.setattr(join, "launch", lambda *given: calls.append(given))
    bf16 = torch.bfloat16
    x, residual, out = (torch.empty(300, n, dtype=bf16) for n in (1024, 256, 256))
    matrix, vectors = torch.empty(256, 1024, dtype=bf16), torch.empty(3, 256)
    (seed,) = draw_seeds(1, x.device)
    norms = (vectors[1], vectors[2], 1e-12)
    kept = join.product_norm(x, matrix, vectors[0], residual, norms, seed, 0.1, out)
    rest = (vectors[1], torch.empty(2, 3, 256), seed, 0.1, out)
    join.product_norm_backward(x, matrix.t().contiguous(), residual, *kept, *rest)
    assert [name for name, *_ in calls] == [
        "gemm_layernorm.gemm_layernorm",
        "gemm_layernorm.gemm_layernorm_backward",
    ]
    for name, grid, _, *given in calls:
        assert grid == 4
        assert [handed(value) for value in given] == declared(*name.split("."))


def test_kernels_by_rows_are_given_what_they_take(monkeypatch):
    calls = []
    monkeypatch.setattr(rows, "tensor_map", Box)
    monkeypatch.setattr(rows, "launch", lambda *given: calls.append(given))
    shapes = [(192, 64), (64, 64), (256, 64), (64, 256), (192,)]
    matrices = [torch.empty(3, *shape, dtype=torch.bfloat16) for shape in shapes]
    documents, vectors = torch.empty(5, 128, dtype=torch.int32), torch.empty(3, 640)
    x = torch.empty(640, 64, dtype=torch.bfloat16)
    seeds = draw_seeds(9, x.device).view(3, 3, 4)
    _, *kept = rows.rows_forward(x, documents, seeds, matrices, vectors, 1e-12, 0.1, 0.1)
    sums = [torch.empty(1) for _ in range(3)]
    rows.rows_backward(x, documents, seeds, matrices, vectors, *kept, 0.1, 0.1, sums)
    for name, grid, _, *given in calls:
        assert grid == 2
        assert [handed(value) for value in given] == declared(*name.split("."))
        assert all(len(value.matrix.shape) == 2 for value in given if isinstance(value, Box))


def test_kernels_of_words_are_given_what_they_take(monkeypatch):
    calls = []
    monkeypatch.setattr(words, "tensor_map", Box)
    monkeypatch.setattr(
        words, "launch", lambda *given, warpgroups: calls.append((warpgroups, *given))
    )
    monkeypatch.setattr(words, "offsets", lambda bias, absent: torch.empty(1024))
    monkeypatch.setattr(words, "settle", lambda *_: (*torch.empty(3, 200), None, torch.empty(200)))
    hidden, table = (torch.empty(n, 128, dtype=torch.bfloat16) for n in (200, 1001))
    truth = torch.zeros(200, dtype=torch.int64)
    _, kept = words.look(hidden, table, torch.empty(1001), *[truth] * 4)
    slopes, parts, deal = words.slopes_of(hidden, table, *kept)
    assert slopes.shape == (200, 1008)
    assert parts.shape == (deal.parts, 200, 128)
    for groups, name, grid, shared, *given in calls:
        assert (groups, grid, shared) == (3, 2, words.SHARED)
        assert [handed(value) for value in given] == declared(*name.split("."))


@pytest.mark.parametrize(
    ("width", "dtype", "temperature", "disallow_correct", "fits"),
    [
        (128, torch.bfloat16, 1.0, False, True),
        (256, torch.bfloat16, 1.0, False, False),
        (128, torch.float16, 1.0, False, False),
        (128, torch.bfloat16, 0.5, False, False),
        (128, torch.bfloat16, 1.0, True, False),
    ],
)
def test_where_logits_are_not_written(
    width, dtype, temperature, disallow_correct, fits, monkeypatch
):
    given = (torch.empty(5, width, dtype=dtype), temperature, disallow_correct)
    assert not words.by_tiles(*given)
    monkeypatch.setattr(words, "is_supported", lambda device: True)
    assert words.by_tiles(*given) == fits


@pytest.mark.parametrize(("rows", "room"), [(1, 64), (64, 64), (130, 192)])
def test_slopes_have_room_for_whole_tiles(rows, room):
    slope = empty_slope(torch.empty(rows, 16, dtype=torch.bfloat16))
    assert slope.shape == (room, 16)
    assert slope.dtype == torch.uint8


def test_parts_of_both_forms(forms):
    """Two groups of a program have their own."""
    contract, parts = torch.empty(256, 1024, dtype=torch.bfloat16), []
    for _ in forms(ffn):
        parts.append(ffn_parts(1000, contract))
    assert parts == [4, 2]
