"""Counter-based random numbers: against a reference, their statistics, and what they depend on."""

import pytest
import torch
from scipy.stats import chisquare, kstest

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.kinds import KINDS
from electra.objectives.random import Purpose, row_keys, uniform

M64 = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix64(x: int) -> int:
    """The finalizer in Python's integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def keys(rows: int, seed: int = 0, step: int = 0, first_row: int = 0) -> torch.Tensor:
    return row_keys(torch.tensor([seed, step, first_row]), rows)


def test_the_finalizer_is_that_of_splitmix64():
    """The first outputs for seed 1234567, as published with the algorithm."""
    outputs = [splitmix64((1234567 + i * GOLDEN) & M64) for i in (1, 2, 3)]
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(("seed", "step", "first_row"), [(0, 0, 0), (2**63 - 1, 10**6, 96)])
def test_against_python_integers(seed, step, first_row):
    found = keys(5, seed, step, first_row)
    numbers = uniform(found, Purpose.SAMPLE_TOKEN, 7)
    for row in range(5):
        key = splitmix64((splitmix64((seed + GOLDEN) & M64) + (step + 1) * GOLDEN) & M64)
        key = splitmix64((key + (first_row + row + 1) * GOLDEN) & M64)
        assert int(found[row]) & M64 == key
        stream = splitmix64(key ^ int(Purpose.SAMPLE_TOKEN))
        for column in range(7):
            bits = splitmix64((stream + (column + 1) * GOLDEN) & M64)
            assert numbers[row, column].item() == (bits >> 40) / 2**24


@pytest.mark.parametrize("purpose", Purpose)
def test_numbers_are_uniform(purpose):
    numbers = uniform(keys(2000), purpose, 128)
    assert numbers.dtype == torch.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert kstest(numbers.double().flatten().numpy(), "uniform").pvalue > 1e-4
    counts = torch.bincount((numbers * 64).long().flatten(), minlength=64)
    assert chisquare(counts.numpy()).pvalue > 1e-4
    low_bits = (numbers.double() * 2**24).long() & 63
    assert chisquare(torch.bincount(low_bits.flatten(), minlength=64).numpy()).pvalue > 1e-4


def independent(a: torch.Tensor, b: torch.Tensor) -> bool:
    """By a chi-square test over an 8 x 8 table of pairs."""
    pairs = (a.flatten() * 8).long() * 8 + (b.flatten() * 8).long()
    return chisquare(torch.bincount(pairs, minlength=64).numpy()).pvalue > 1e-4


def test_rows_columns_steps_seeds_and_purposes_are_independent():
    numbers = uniform(keys(2000), Purpose.MASK_POSITION, 128)
    assert independent(numbers[1:], numbers[:-1])
    assert independent(numbers[:, 1:], numbers[:, :-1])
    others = {
        "step": uniform(keys(2000, step=1), Purpose.MASK_POSITION, 128),
        "seed": uniform(keys(2000, seed=1), Purpose.MASK_POSITION, 128),
        "shifted": uniform(keys(2000, step=1, first_row=-1), Purpose.MASK_POSITION, 128),
        **{p.name: uniform(keys(2000), p, 128) for p in Purpose if p != Purpose.MASK_POSITION},
    }
    for name, other in others.items():
        assert independent(numbers, other), name
        assert (numbers == other).float().mean() < 1e-3, name


def test_keys_of_many_steps_do_not_collide():
    found = torch.cat([keys(500, seed, step) for seed in range(4) for step in range(200)])
    assert len(found.unique()) == len(found)


def test_a_row_has_its_numbers_wherever_the_batch_is_split():
    """Over ranks: each knows the index of its first row."""
    whole = keys(12, seed=3, step=7)
    parts = [keys(4, seed=3, step=7, first_row=first) for first in (0, 4, 8)]
    assert torch.equal(torch.cat(parts), whole)


def stored_rows(count: int = 8, length: int = 40) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    rows = torch.randint(5, 60, (count, length + 2), generator=g)
    rows[:, 0], rows[:, -2], rows[:, -1] = 2, length, torch.arange(length - count, length)
    return rows


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("adversarial", "electric")])
@pytest.mark.parametrize("accumulation", [2, 4])
def test_masks_and_samples_do_not_depend_on_micro_batches(kind, accumulation, make):
    """To the bit, from logits that are equal to the bit."""
    generator = {"kind": "unigram", "tie": "none"} if kind != "two-stage" else {}
    objective = make(kind, generator=generator).eval()
    if kind == "two-stage":
        assert objective.update_progress(0.5)
        with torch.no_grad():  # the same logits at every position
            objective.generator.norm.weight.zero_()
            objective.generator.bias[:60] = torch.linspace(-2, 2, 60)
    objective.set_step(11)
    rows = stored_rows()
    batch, masked, totals = objective.mask_batch(rows)
    whole = objective(batch, masked, totals).corrupted
    size = len(rows) // accumulation
    found = []
    for part in zip(*(t.split(size) for t in (*batch, *masked)), strict=True):
        found.append(objective(Batch(*part[:5]), Masked(*part[5:]), totals).corrupted)
    if kind == "mlm":  # which samples nothing
        assert whole is None
    else:
        assert torch.equal(torch.cat(found), whole)
        assert (whole != batch.ids).any()
    # Ranks mask their own rows
    masks = []
    for first in range(0, len(rows), size):
        objective.set_step(11, first_row=first)
        masks.append(objective.mask_batch(rows[first : first + size])[1])
    for whole_field, fields in zip(masked, zip(*masks, strict=True), strict=True):
        assert torch.equal(torch.cat(fields), whole_field)


def test_steps_and_seeds_change_masks_and_samples(make):
    objective = make("rtd", generator={"kind": "unigram"}).eval()
    rows, seen = stored_rows(), []
    for seed, step in ((0, 0), (0, 1), (1, 0), (0, 0)):
        objective.set_seed(seed)
        objective.set_step(step)
        batch, masked, totals = objective.mask_batch(rows)
        seen.append((masked.positions, objective(batch, masked, totals).corrupted))
    for first in range(3):
        for second in range(first):
            assert not any(map(torch.equal, seen[first], seen[second]))
    assert all(map(torch.equal, seen[0], seen[3]))


@pytest.mark.gpu
def test_a_gpu_has_the_same_numbers():
    counter = torch.tensor([2**62 + 5, 123456, 7])
    for purpose in Purpose:
        found = uniform(row_keys(counter.cuda(), 64), purpose, 130)
        assert torch.equal(found.cpu(), uniform(row_keys(counter, 64), purpose, 130))


@pytest.mark.gpu
def test_a_compiled_function_has_the_same_numbers():
    counter = torch.tensor([2**62 + 5, 123456, 7], device="cuda")
    numbers = torch.compile(lambda keys: uniform(keys, Purpose.SAMPLE_TOKEN, 130))
    found = row_keys(counter, 64)
    assert torch.equal(numbers(found), uniform(found, Purpose.SAMPLE_TOKEN, 130))
