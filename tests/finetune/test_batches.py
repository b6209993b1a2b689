"""Batches of similar length, with the same shapes for all seeds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.finetune.batches import LENGTHS, eval_batches, padded_lengths, plan_epoch

lengths = st.lists(st.integers(2, 700), min_size=1, max_size=200).map(
    lambda values: np.array(values, dtype=np.int64)
)


@given(lengths, st.integers(1, 40), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_an_epoch_has_each_example_at_most_once(sizes, batch, epoch):
    batch = min(batch, len(sizes))
    buckets = padded_lengths(sizes, 700)
    plan = plan_epoch(buckets, batch, [3, 4], epoch)
    assert plan.members.shape == (len(sizes) // batch, 2, batch)
    for seed in range(2):
        seen = plan.members[:, seed].ravel()
        assert len(set(seen.tolist())) == len(seen) == len(sizes) // batch * batch
    for length, members in zip(plan.lengths, plan.members, strict=True):
        assert (sizes[members] <= length).all()
        assert (buckets[members].max(1) == length).all()


@given(lengths, st.integers(0, 400))
@settings(max_examples=60, deadline=None)
def test_padded_lengths_are_within_the_positions(sizes, spare):
    positions = int(sizes.max()) + spare
    padded = padded_lengths(sizes, positions)
    assert (sizes <= padded).all()
    assert (padded <= positions).all()
    assert set(padded.tolist()) <= {*LENGTHS, 1024, positions}


def test_batches_depend_only_on_the_seed():
    sizes = np.random.default_rng(0).integers(3, 100, 500)
    alone, together = plan_epoch(sizes, 16, [7], 2), plan_epoch(sizes, 16, [1, 7, 9], 2)
    assert alone.lengths == together.lengths
    assert np.array_equal(alone.members[:, 0], together.members[:, 1])
    assert not np.array_equal(together.members[:, 0], together.members[:, 1])


def test_epochs_leave_out_different_examples():
    sizes = np.array([100] * 3 + [10] * 60)  # the three long ones never fill a batch
    seen = [set(plan_epoch(sizes, 16, [0], epoch).members.ravel().tolist()) for epoch in range(12)]
    assert set.union(*seen) == set(range(63))
    first, second = (plan_epoch(sizes, 16, [0], epoch).members for epoch in (0, 1))
    assert not np.array_equal(first, second)


def test_little_padding():
    sizes = np.random.default_rng(0).integers(5, 60, 3200)
    plan = plan_epoch(padded_lengths(sizes, 512), 32, [0], 0)
    computed = sum(32 * length for length in plan.lengths)
    assert sizes.sum() / computed > 0.8
    assert len(set(plan.lengths)) <= len(LENGTHS)


@given(lengths, st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_eval_batches(sizes, tokens):
    found = list(eval_batches(sizes, tokens))
    assert sorted(np.concatenate([index for _, index in found]).tolist()) == list(range(len(sizes)))
    widths = [length for length, _ in found]
    assert widths == sorted(widths, reverse=True)
    for length, index in found:
        assert sizes[index].max() <= length
        assert len(index) == 1 or len(index) * length <= tokens


def test_epochs_shuffle_examples_and_batches():
    sizes = np.repeat([10, 20, 30, 60], 64)  # no example is left out
    plans = [plan_epoch(sizes, 16, [0], epoch) for epoch in (0, 1)]
    first, second = ({frozenset(row) for row in plan.members[:, 0].tolist()} for plan in plans)
    assert len(first) == len(second) == 16
    assert not first & second
    assert plans[0].lengths != plans[1].lengths
    for plan in plans:
        assert plan.lengths != sorted(plan.lengths, reverse=True)
