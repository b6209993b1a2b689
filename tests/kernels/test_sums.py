"""Sums of what programs leave in parts."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from electra.kernels.any_gpu.reduce import TALL, WIDE, add_parts


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((1, 1), 0),
        ((TALL + 3, 3, WIDE), 0),
        ((3, 2 * TALL, WIDE + 5), 1),
        ((2, 3, 40, 3, 24), 2),
        ((2, TALL - 1, 7), 1),
    ],
)
def test_add_parts(shape, dim, normal, near):
    parts = normal(*shape).detach()
    near(add_parts(parts, dim), parts.double().sum(dim).float(), share=1e-6)
