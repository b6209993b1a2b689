"""The runs of a folder: found, read and drawn, also while they grow."""

import json
import os
import shutil

from electra.play.runs import find_runs, read_runs, render_runs, version
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
