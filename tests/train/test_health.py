"""Health checks: each failure is named once, and not too early."""

import math
import shutil

import pytest

from electra.errors import UserError
from electra.train import checkpoint, loop
from electra.train.health import HealthCheck, check_finite, plateau_ends
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start

HEALTHY = {
    "generator_accuracy": 0.40,
    "accuracy_floor": 0.20,
    "accuracy_above_floor": 0.20,
    "recall": 0.5,
    "auc": 0.9,
}
ILL = HEALTHY | {"generator_accuracy": 0.21, "accuracy_above_floor": 0.01, "recall": 0.0}


def test_a_healthy_run_gets_no_warning():
    assert HealthCheck().check(1.0, 0.1, HEALTHY) == {}


def test_a_collapse_is_named_once():
    health, ill = HealthCheck(), HEALTHY | {"recall": 0.001}
    (warning,) = health.check(0.5, 0.1, ill).values()
    assert "discriminator has collapsed" in warning
    assert "recall 0.001" in warning
    assert "optim.warmup" in warning
    assert health.check(0.6, 0.1, ill) == {}


CURVE = {  # a real run of paper.small: step -> (accuracy, mlm_loss)
    10_000: (0.204, 5.95),
    20_000: (0.206, 5.77),
    50_000: (0.209, 5.64),
    55_000: (0.2535, 5.18),
    60_000: (0.359, 4.01),
    100_000: (0.430, 3.45),
}


@pytest.mark.parametrize(
    ("total", "warned_at"), [(1_000_000, []), (150_000, [50_000]), (25_000, [10_000])]
)
def test_a_generator_on_its_plateau_is_named(total, warned_at):
    """With the paper's schedule it leaves in time; its loss is below that of token frequencies."""
    health, found = HealthCheck(), []
    for step, (accuracy, loss) in CURVE.items():
        if step > total:
            break
        held_out = HEALTHY | {
            "generator_accuracy": accuracy,
            "mlm_loss": loss,
            "accuracy_floor": 0.200,
            "accuracy_above_floor": accuracy - 0.200,
        }
        for warning in health.check(step / total, 0.05, held_out).values():
            found.append(step)
            assert "generator is still on the opening plateau" in warning
            assert f"{accuracy:.1%}" in warning
            assert "(20.0%)" in warning
            assert "model.init=local" in warning
    assert found == warned_at


def test_both_warnings_at_once():
    assert len(HealthCheck().check(0.9, 0.1, ILL)) == 2


@pytest.mark.parametrize(("warmup", "early"), [(0.01, 0.3), (0.1, 0.3), (0.4, 0.75)])
def test_the_opening_plateau_is_normal(warmup, early):
    health = HealthCheck()
    assert health.check(early, warmup, ILL) == {}
    assert len(health.check(max(2 * warmup, 1 / 3), warmup, ILL)) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_not_finite_stop_the_run(value):
    good = {"mlm_loss": 1.0, "gradient_norm": 2.0}
    check_finite(good, 7, "")
    with pytest.raises(
        UserError, match=r"step 7: gradient_norm is not a finite.*Here\..*optim\.lr"
    ):
        check_finite(good | {"gradient_norm": value}, 7, "Here.")


def test_a_run_logs_and_prints_its_warnings(tiny, with_train, tmp_path, console, monkeypatch):
    """Two steps of training learn nothing: both warnings, but not in a run that is too short."""
    start(with_train(tiny, budget="2steps"), tmp_path / "trial", console)
    assert "warning" not in console.file.getvalue()
    monkeypatch.setattr(loop, "MIN_STEPS_FOR_WARNINGS", 0)
    start(with_train(tiny, budget="2steps"), tmp_path / "run", console)
    said = [m["message"] for m in read_metrics(tmp_path / "run") if m["kind"] == "event"]
    assert said[0] == "started"
    assert any("opening plateau" in message for message in said)
    assert "warning: The generator is still on the opening plateau" in console.file.getvalue()


def test_a_resumed_run_does_not_repeat_its_warnings(
    tiny, with_train, tmp_path, console, monkeypatch
):
    monkeypatch.setattr(loop, "MIN_STEPS_FOR_WARNINGS", 0)
    out = tmp_path / "run"
    start(with_train(tiny, budget="4steps", validate_every=1, checkpoint_every=2), out, console)
    warned = [m["warning"] for m in read_metrics(out) if "warning" in m]
    assert "generator" in warned
    shutil.rmtree(checkpoint.checkpoints(out)[-1])
    assert resume(out, console) == 0
    assert [m["warning"] for m in read_metrics(out) if "warning" in m] == warned


def test_when_each_network_leaves_its_plateau():
    def line(step, **metrics):
        return {"kind": "held_out", "step": step, **metrics}

    metrics = [
        {"kind": "train", "step": 100, "accuracy_above_floor": 1.0},
        line(1000, generator_accuracy=0.2, accuracy_above_floor=0.01, fixed_auc=0.52),
        line(2000, generator_accuracy=0.2, accuracy_above_floor=0.01, fixed_auc=0.70),
        line(3000, generator_accuracy=0.3, accuracy_above_floor=0.02, fixed_auc=0.50),
        line(4000, generator_accuracy=0.3, accuracy_above_floor=0.10, fixed_auc=0.90),
    ]
    assert plateau_ends(metrics) == {"generator": 3000, "discriminator": 2000}
    assert plateau_ends(metrics[:2]) == {"generator": None, "discriminator": None}
    assert plateau_ends([line(500, model_accuracy=0.4, accuracy_above_floor=0.2)]) == {"model": 500}
    assert plateau_ends([]) == {}
