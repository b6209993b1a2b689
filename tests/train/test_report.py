"""The report of a run: a picture, and a page that needs nothing beside it."""

import base64
import io
import re
import shutil
import sys

import pytest

from electra.errors import UserError
from electra.train.metrics_log import MetricsLog, read_metrics
from electra.train.progress_view import format_metric, metrics_present
from electra.train.report import PANELS, _amount, series, write_report


def picture_in(data: bytes):
    """The picture as numbers; whatever is no PNG is refused."""
    from matplotlib.image import imread

    return imread(io.BytesIO(data), format="png")


def test_the_picture_and_the_page(finished, tmp_path):
    picture, page = write_report(finished, tmp_path / "out")
    assert (picture.name, page.name) == ("report.png", "report.html")
    height, width, _ = picture_in(picture.read_bytes()).shape
    assert width > 1000
    assert height > 500
    text = page.read_text(encoding="utf-8")
    (image,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(image) == picture.read_bytes()
    assert not re.findall(r'(?:src|href)="(?!data:)', text)  # nothing beside it
    held_out = [line for line in read_metrics(finished) if line["kind"] == "held_out"][-1]
    assert len(metrics_present(held_out)) == 15  # nine of the paper, six diagnostics
    for key, label in metrics_present(held_out):
        assert f"<td>{label}</td>" in text
        assert f"<b>{format_metric(key, held_out[key])}</b>" in text
    assert "20 steps · 5.1 k tokens" in text
    assert "hidden: 32" in text  # the configuration
    assert not [p.name for p in finished.iterdir() if p.name.startswith("report")]


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1000, "1.0 k"), (2.5e6, "2.5 M"), (3e9, "3.0 G"), (2.5e12, "2500.0 G")],
)
def test_amounts(count, text):
    assert _amount(count) == text


def test_without_a_place_it_goes_into_the_run(finished, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(finished / "metrics.jsonl", run)
    assert write_report(run) == (run / "report.png", run / "report.html")


def test_warnings_appear_and_are_escaped(finished, tmp_path):
    run = tmp_path / "a $_$ <run>"  # no formula, no tag
    run.mkdir()
    shutil.copy(finished / "metrics.jsonl", run)
    MetricsLog(run).write("event", 15, message="The <discriminator> has collapsed")
    _, page = write_report(run)
    text = page.read_text(encoding="utf-8")
    assert "<b>Warnings</b>" in text
    assert "<li>step 15: The &lt;discriminator&gt; has collapsed</li>" in text
    assert "started" not in text
    assert "<title>a $_$ &lt;run&gt;</title>" in text


def test_a_run_that_has_just_begun(tmp_path):
    """Training metrics but no held-out ones yet, and one that is not known."""
    MetricsLog(tmp_path).write("event", 0, message="started")
    with pytest.raises(UserError, match="no metrics yet"):
        write_report(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    MetricsLog(tmp_path).write("train", 5, loss=1.0, tokens=10, seconds=1.0, mlm_loss=float("nan"))
    _, page = write_report(tmp_path)
    assert "5 steps" in page.read_text(encoding="utf-8")


def test_a_run_that_was_only_measured(tmp_path):
    MetricsLog(tmp_path).write("held_out", 3, loss=1.0, auc=0.5)
    _, page = write_report(tmp_path)
    assert "<b>0.500</b>" in page.read_text(encoding="utf-8")


def test_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere is not the folder of a run"):
        write_report(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_without_matplotlib_the_extra_is_named(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'electra\[plot\]'"):
        write_report(finished, tmp_path)
