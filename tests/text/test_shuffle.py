"""The shuffled order is a permutation given by the seed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.text.shuffle import shuffled


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63))
def test_shuffle_is_a_permutation(count, seed):
    values = shuffled(np.arange(count), count, seed)
    assert sorted(values.tolist()) == list(range(count))


def test_each_position_can_be_computed_alone():
    whole = shuffled(np.arange(1000), 1000, 7)
    some = np.array([[3, 999], [0, 500]])
    assert np.array_equal(shuffled(some, 1000, 7), whole[some])


def test_seed_changes_the_order():
    one, two = (shuffled(np.arange(1000), 1000, seed) for seed in (1, 2))
    assert np.mean(one == two) < 0.02
    assert np.mean(one == np.arange(1000)) < 0.02


def test_order_looks_random():
    count = 50_000
    values = shuffled(np.arange(count), count, 3)
    assert abs(np.corrcoef(np.arange(count), values)[0, 1]) < 0.02
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02
    halves = np.bincount(values[: count // 2] * 10 // count, minlength=10) / (count / 20)
    assert np.all(np.abs(halves - 1) < 0.05)


def test_huge_range():
    assert shuffled(np.array([0, 10**15 - 1]), 10**15, 1).max() < 10**15


def test_index_out_of_range():
    with pytest.raises(IndexError):
        shuffled(np.array([10]), 10, 0)
