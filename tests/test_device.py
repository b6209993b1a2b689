"""The hardware of a run: what it reaches, and that to ask costs the run nothing."""

import itertools
import math

import pytest
import torch

from electra import device as module
from electra.device import (
    available_cpus,
    available_memory,
    choose_precision,
    measure_peak,
    set_cpu_threads,
    supports_bf16,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("knows", [True, False])
def test_bf16_only_where_the_card_knows_it(knows, monkeypatch):
    """torch imitates it on older cards, slowly, and the kernels are not for them."""

    def supported(including_emulation: bool = True) -> bool:
        return knows or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    assert choose_precision("auto", CUDA) == (torch.bfloat16 if knows else torch.float32)
    assert choose_precision("bf16", CUDA) == torch.bfloat16
    assert supports_bf16(CUDA) == knows
    assert not supports_bf16(CPU)
    assert choose_precision("auto", CPU) == torch.float32


@pytest.fixture
def threads():
    """Restore torch's number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("150000 100000", 1), ("200000 100000", 2), ("50000 100000", 1)]
)
def test_threads_stay_within_the_quota_of_a_container(quota, cpus, threads, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(module, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    for unlimited in (None, "max 100000"):
        if unlimited:
            (tmp_path / "cpu.max").write_text(unlimited)
        assert available_cpus() == 8
    (tmp_path / "cpu.max").write_text(quota)
    assert available_cpus() == cpus
    torch.set_num_threads(4)
    set_cpu_threads(0)
    assert torch.get_num_threads() == cpus


def test_the_available_memory_is_that_of_the_system_or_the_container(tmp_path, monkeypatch):
    system, container = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(module, "MEMORY", system)
    monkeypatch.setattr(module, "MEMORY_LIMIT", container)
    assert available_memory() == math.inf
    system.write_text("MemTotal:       24000000 kB\nMemFree:  9 kB\nMemAvailable:   20000000 kB\n")
    assert available_memory() == 20_480_000_000
    for limit, expected in (("max\n", 20_480_000_000), ("4000000000\n", 4_000_000_000)):
        container.write_text(limit)
        assert available_memory() == expected


def test_the_users_choice_of_threads_wins(threads, monkeypatch):
    monkeypatch.setattr(module, "available_cpus", lambda: 1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    torch.set_num_threads(3)
    set_cpu_threads(0)
    assert torch.get_num_threads() == 3
    set_cpu_threads(2)
    assert torch.get_num_threads() == 2


def test_the_peak_is_the_flops_of_the_best_product(monkeypatch):
    """A product of two matrices of n rows has n³ multiplications and as many additions."""
    clock = itertools.accumulate(itertools.cycle([1.0, 4.0]))  # four seconds, then one between
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    assert measure_peak(CPU, torch.float32) == 2 * 1024**3 / 4.0


def test_the_measurement_leaves_the_random_numbers_of_the_run_alone():
    before = torch.get_rng_state()
    measure_peak(CPU, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
