"""The learning rate over a run."""

import pytest

from electra.errors import UserError
from electra.optim.adam import OptimConfig
from electra.optim.schedule import learning_rate, warmup_share
from electra.recipes import recipe


def rate(progress: float, **settings) -> float:
    return learning_rate(progress, 1000, OptimConfig(lr=1.0, warmup=0.1, **settings))


@pytest.mark.parametrize("step", [0, 1, 500, 9_999, 10_000, 10_001, 500_000, 999_999, 1_000_000])
def test_product_is_the_released_formula(step):
    config = recipe("paper.small").optim
    expected = 5e-4 * (1 - step / 1_000_000) * min(1.0, step / 10_000)
    assert learning_rate(step / 1_000_000, 1_000_000, config) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("steps", "warmup", "share"),
    [(1_000_000, 10_000, 0.01), (50_000, 10_000, 0.2), (40_000, 10_000, 0.25), (8, 10_000, 0.25),
     (8, 0.3, 0.3), (1_000_000, 0.01, 0.01), (10, 0, 0.0), (10, 1, 0.1)],
)  # fmt: skip
def test_a_short_run_warms_up_for_as_many_steps_or_a_quarter_of_it(steps, warmup, share):
    config = OptimConfig(lr=1.0, warmup=warmup)
    assert warmup_share(steps, config) == pytest.approx(share)
    for at in (0.3, 0.9):  # of the warm-up
        progress = at * share
        expected = (at if share else 1.0) * (1 - progress)
        assert learning_rate(progress, steps, config) == pytest.approx(expected)


def test_the_first_step_has_rate_zero_and_the_end_is_annealed():
    assert rate(0.0) == 0
    assert rate(1.0) == 0
    assert rate(1.5) == 0


def test_sequential_reaches_the_whole_peak():
    assert rate(0.1, schedule="sequential") == 1
    assert rate(0.05, schedule="sequential") == pytest.approx(0.5)
    assert rate(0.55, schedule="sequential") == pytest.approx(0.5)
    assert rate(0.1) == pytest.approx(0.9)


@pytest.mark.parametrize(("schedule", "left"), [("product", 0.6), ("sequential", 0.6 / 0.9)])
def test_the_fall_has_its_power(schedule, left):
    for power in (0.0, 0.5, 2.0):
        found = rate(0.4, schedule=schedule, decay_power=power)
        assert found == pytest.approx(left**power)


def test_a_warmup_below_zero_is_refused():
    with pytest.raises(UserError, match=r"optim\.warmup is a number of steps"):
        OptimConfig(warmup=-1)


@pytest.mark.parametrize(
    "settings",
    [
        *({"betas": betas} for betas in ((0.9, 1.0), (1.0, 0.9), (-0.1, 0.9))),
        *({name: 0.0} for name in ("clip", "eps")),
        *({name: -1e-9} for name in ("lr", "decay_power", "weight_decay")),
    ],
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UserError, match=rf"optim\.{next(iter(settings))}|and optim\.eps"):
        OptimConfig(**settings)
