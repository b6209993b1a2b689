"""Each kernel of networks and losses compiles for a Hopper GPU, and finds room there.

What runs in Triton's interpreter need not compile: a variable may change its type there, and there
is memory for everything.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOM = 227 * 1024
"""Bytes of shared memory that a program can have."""
SOME = {"exercise_kernel", "multiply_kernel", "contract_backward_kernel", "bias_gelu_kernel"}
SOME |= {"narrow_forward_kernel", "narrow_backward_kernel", "product_norm_kernel"}
SOME |= {"settle_kernel", "offsets_kernel", "weigh_kernel"}
SOME |= {"attend_backward_kernel", "keys_kernel", "detect_kernel", "add_parts_kernel"}
SPILLED = 256
"""Bytes that a thread may put into memory for want of registers; the kernels have up to 168."""


def test_every_kernel_compiles_for_hopper(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hopper.py"))],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr[-3000:]
    found = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in found} >= SOME
    for name, *figures in found:
        shared, registers, spilled, instructions, cycles = map(int, figures)
        assert shared <= ROOM, name
        assert 0 < registers < 256, name
        assert spilled <= SPILLED, name
        assert 0 < instructions < cycles, name
