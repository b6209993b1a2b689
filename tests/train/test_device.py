"""The hardware of a run: what it reaches, and that to ask costs the run nothing."""

import itertools

import torch

from electra.train import device as module
from electra.train.device import measure_peak

CPU = torch.device("cpu")


def test_the_peak_is_the_flops_of_the_best_product(monkeypatch):
    """A product of two matrices of n rows has n³ multiplications and as many additions."""
    clock = itertools.accumulate(itertools.cycle([1.0, 4.0]))  # four seconds, then one between
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    assert measure_peak(CPU, torch.float32) == 2 * 1024**3 / 4.0


def test_the_measurement_leaves_the_random_numbers_of_the_run_alone():
    before = torch.get_rng_state()
    measure_peak(CPU, torch.float32)
    assert torch.equal(torch.get_rng_state(), before)
