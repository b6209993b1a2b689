"""Sums of what programs leave in parts."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.reduce import BLOCK_M, BLOCK_N, reduce_partials


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
