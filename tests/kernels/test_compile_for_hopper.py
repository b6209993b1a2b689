"""Every Triton kernel of networks and losses compiles for a Hopper GPU, and fits its memory.

Triton's interpreter is more lenient: a variable may change its type there, and memory is unlimited.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

MAX_SHARED = 227 * 1024
"""Bytes of shared memory that a thread block can have."""
EXPECTED = {
    "add_layernorm_kernel",
    "attention_backward_kernel",
    "attention_forward_kernel",
    "bias_gelu_kernel",
    "finalize_kernel",
    "gemm_bias_gelu_kernel",
    "gemm_gelu_backward_kernel",
    "gemm_layernorm_kernel",
    "grad_kv_kernel",
    "mask_rows_kernel",
    "pad_bias_kernel",
    "reduce_partials_kernel",
    "rtd_loss_kernel",
    "scale_grads_kernel",
}
"""Some kernels that have to be among those that compile."""
MAX_SPILLED = 256
"""Bytes that a thread may spill; the kernels spill up to 168."""


def test_every_kernel_compiles_for_hopper(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compile_for_hopper.py"))],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-3000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in found} >= EXPECTED
    for name, *numbers in found:
        shared, registers, spilled, instructions, cycles = map(int, numbers)
        assert shared <= MAX_SHARED, name
        assert 0 < registers < 256, name
        assert spilled <= MAX_SPILLED, name
        assert 0 < instructions < cycles, name
