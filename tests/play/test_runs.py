"""The runs of a folder: found, read and drawn, also while they grow."""

import json
import os
import shutil

from electra.play.runs import curves_of, find_runs, read_runs, render_runs, version
from electra.train.metrics_log import MetricsLog, read_metrics


def copies(finished, folder, *names):
    for age, name in enumerate(names):
        shutil.copytree(finished, folder / name, ignore=shutil.ignore_patterns("checkpoints"))
        os.utime(folder / name / "metrics.jsonl", (1e9 - age, 1e9 - age))


def test_runs_are_found_latest_first(finished, tmp_path):
    copies(finished, tmp_path, "b", "a")
    (tmp_path / "no run").mkdir()
    assert list(find_runs(tmp_path)) == ["b", "a"]
    assert list(find_runs(finished)) == ["finished"]  # a run instead of a folder of runs
    assert find_runs(tmp_path / "nowhere") == {}


def test_the_version_changes_with_a_chosen_run(finished, tmp_path):
    copies(finished, tmp_path, "a", "b")
    before = find_runs(tmp_path)
    first = version(before, ["a"])
    assert first == version(find_runs(tmp_path), ["a"])
    assert first != version(before, ["a", "b"])
    MetricsLog(tmp_path / "b").write("train", 25, mlm_loss=1.0)
    assert version(find_runs(tmp_path), ["a"]) == first  # not the chosen one
    MetricsLog(tmp_path / "a").write("train", 25, mlm_loss=1.0)
    assert version(find_runs(tmp_path), ["a"]) != first


def test_curves_and_table(finished, tmp_path):
    copies(finished, tmp_path, "a<b>", "c")
    runs = find_runs(tmp_path)
    page = render_runs(read_runs(runs, ["a<b>", "c", "unknown"]))
    assert page.count("<svg") >= 8
    assert "a&lt;b&gt;" in page
    assert "<b>" not in page
    held_out = [line for line in read_metrics(finished) if line["kind"] == "held_out"][-1]
    assert f"<td>{held_out['auc']:.3f}</td>" in page
    assert "20</td>" in page  # the step


def test_a_run_without_metrics(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "metrics.jsonl").write_text(
        json.dumps({"kind": "event", "step": 0, "message": "started"}) + "\n"
    )
    runs = find_runs(tmp_path)
    assert "No metrics yet" in render_runs(read_runs(runs, ["new"]))
    assert "No metrics yet" in render_runs({})


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
