"""Curves of one run or several: values, colours, dashes."""

from electra.train.curves import PANELS, curves_of, series
from electra.train.metrics_log import read_metrics


def test_colours_tell_runs_apart_or_curves():
    lines = [{"kind": kind, "step": 1, "auc": 0.5, "recall": 0.2} for kind in ("train", "held_out")]
    panel = (("held_out", "auc", "AUC"), ("held_out", "recall", "recall"))
    one = curves_of({"a": lines}, panel)
    assert [c.label for c in one] == ["AUC", "recall"]
    assert one[0].colour != one[1].colour
    two = curves_of({"a": lines, "b": lines}, panel)
    assert [c.label for c in two] == ["a · AUC", "a · recall", "b · AUC", "b · recall"]
    assert two[0].colour == two[1].colour != two[2].colour
    assert two[0].dash != two[1].dash
    both = curves_of({"a": lines}, (("train", "auc", "training"), ("held_out", "auc", "held-out")))
    assert [c.faint for c in both] == [True, False]


def test_every_curve_has_points(finished):
    metrics = read_metrics(finished)
    for name, curves in PANELS:
        for kind, figure, _ in curves:
            points = [line for line in metrics if line["kind"] == kind and figure in line]
            assert points, f"{name}: {kind} {figure}"


def test_a_curve_has_the_known_values_of_its_kind():
    lines = [("train", 5, 1.0), ("held_out", 5, 2.0), ("train", 10, None), ("train", 15, 0.0)]
    metrics = [{"kind": kind, "step": step, "loss": loss} for kind, step, loss in lines]
    assert series(metrics, "train", "loss") == ([5, 15], [1.0, 0.0])
    assert series(metrics, "held_out", "loss") == ([5], [2.0])
    assert series(metrics, "train", "auc") == ([], [])
