"""Sums over rows, and over the partial sums of programs."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.reduce import BLOCK_M, BLOCK_N, reduce_partials, sum_rows


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((1, 1), 0),
        ((BLOCK_M + 3, 3, BLOCK_N), 0),
        ((3, 2 * BLOCK_M, BLOCK_N + 5), 1),
        ((2, 3, 40, 3, 24), 2),
        ((2, BLOCK_M - 1, 7), 1),
    ],
)
def test_add_parts(shape, dim, normal, near):
    parts = normal(*shape).detach()
    near(reduce_partials(parts, dim), parts.double().sum(dim).float(), share=1e-6)


@pytest.mark.parametrize("width", [8, 96, 300])
def test_every_row_is_added_once(width, device):
    """Powers of two tell which were not, or were twice."""
    for rows in (1, 2, 20):
        x = (2.0 ** torch.arange(rows, device=device))[:, None].expand(-1, width).contiguous()
        assert (sum_rows(x) == 2**rows - 1).all()
    assert (sum_rows(torch.ones(1500, width, device=device)) == 1500).all()
