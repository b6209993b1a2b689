"""The learning rate over a run."""

import pytest

from electra.errors import UserError
from electra.optim.schedule import OptimConfig, learning_rate
from electra.recipes import recipe


@pytest.mark.parametrize("step", [0, 1, 500, 9_999, 10_000, 10_001, 500_000, 999_999, 1_000_000])
def test_product_is_the_released_formula(step):
    config = recipe("paper.small").optim
    expected = 5e-4 * (1 - step / 1_000_000) * min(1.0, step / 10_000)
    assert learning_rate(step / 1_000_000, config) == pytest.approx(expected, rel=1e-9)


def test_the_first_step_has_rate_zero_and_the_end_is_annealed():
    config = OptimConfig(lr=1.0, warmup=0.1)
    assert learning_rate(0.0, config) == 0
    assert learning_rate(1.0, config) == 0
    assert learning_rate(1.5, config) == 0


def test_sequential_reaches_the_whole_peak():
    config = OptimConfig(lr=1.0, warmup=0.1, schedule="sequential")
    assert learning_rate(0.1, config) == 1
    assert learning_rate(0.05, config) == pytest.approx(0.5)
    assert learning_rate(0.55, config) == pytest.approx(0.5)
    assert learning_rate(0.1, OptimConfig(lr=1.0, warmup=0.1)) == pytest.approx(0.9)


def test_a_warmup_that_is_no_share_is_refused():
    with pytest.raises(UserError, match="share of the run"):
        OptimConfig(warmup=10_000)
