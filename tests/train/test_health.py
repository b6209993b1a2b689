"""Failures that a falling loss would hide are named, once, and not too early."""

import math

import pytest

from electra.errors import UserError
from electra.train import loop
from electra.train.health import HealthCheck, check_finite
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import start

HEALTHY = {"mlm_loss": 3.0, "recall": 0.5, "auc": 0.9}


def test_a_healthy_run_is_left_alone():
    assert HealthCheck(frequency_loss=5.0).check(1.0, 0.1, HEALTHY) == []


def test_a_collapse_is_named_once():
    watch, ill = HealthCheck(frequency_loss=5.0), HEALTHY | {"recall": 0.001}
    (finding,) = watch.check(0.5, 0.1, ill)
    assert "discriminator has collapsed" in finding
    assert "recall 0.001" in finding
    assert "optim.warmup" in finding
    assert watch.check(0.6, 0.1, ill) == []


def test_a_generator_that_only_knows_frequencies_is_named():
    watch = HealthCheck(frequency_loss=5.0)
    (finding,) = watch.check(0.5, 0.1, HEALTHY | {"mlm_loss": 4.95})
    assert "generator does not learn" in finding
    assert "(5.00)" in finding
    assert watch.check(0.6, 0.1, HEALTHY | {"mlm_loss": 4.8}) == []


def test_both_findings_at_once():
    ill = {"mlm_loss": 6.0, "recall": 0.0, "auc": 0.5}
    assert len(HealthCheck(frequency_loss=5.0).check(0.9, 0.1, ill)) == 2


@pytest.mark.parametrize(("warmup", "early"), [(0.01, 0.3), (0.1, 0.3), (0.4, 0.75)])
def test_the_opening_plateau_is_normal(warmup, early):
    ill = {"mlm_loss": 6.0, "recall": 0.0, "auc": 0.5}
    watch = HealthCheck(frequency_loss=5.0)
    assert watch.check(early, warmup, ill) == []
    assert len(watch.check(max(2 * warmup, 1 / 3), warmup, ill)) == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_stops_the_run(value):
    good = {"mlm_loss": 1.0, "gradient_norm": 2.0}
    check_finite(good, 7, "")
    with pytest.raises(
        UserError, match=r"step 7: gradient_norm is not a finite.*Here\..*optim\.lr"
    ):
        check_finite(good | {"gradient_norm": value}, 7, "Here.")


def test_a_run_says_it_in_the_record_and_on_the_console(
    tiny, with_train, tmp_path, console, monkeypatch
):
    """Two steps of training know nothing yet: both findings, at the end, unless it is a trial."""
    start(with_train(tiny, budget="2steps"), tmp_path / "trial", console)
    assert "warning" not in console.file.getvalue()
    monkeypatch.setattr(loop, "MIN_STEPS_FOR_WARNINGS", 0)
    start(with_train(tiny, budget="2steps"), tmp_path / "run", console)
    said = [m["message"] for m in read_metrics(tmp_path / "run") if m["kind"] == "event"]
    assert said[0] == "started"
    assert any("does not learn" in message for message in said)
    assert "warning: The generator does not learn" in console.file.getvalue()
