"""The report of a run: a picture, and a page that needs nothing beside it."""

import errno
import io
import re
import shutil
import sys

import pytest

from electra.errors import UserError
from electra.train.curves import panels_of
from electra.train.metrics_log import MetricsLog, read_metrics
from electra.train.progress_view import format_metric, metrics_present
from electra.train.report import _amount, draw, name_runs, write_report
from electra.train.report_samples import SENTENCES


def picture_in(data: bytes):
    """The picture as numbers; whatever is no PNG is refused."""
    from matplotlib.image import imread

    return imread(io.BytesIO(data), format="png")


def test_the_picture_and_the_page(finished, tmp_path):
    picture, page = write_report([finished], tmp_path / "out")
    assert (picture.name, page.name) == ("report.png", "report.html")
    height, width, _ = picture_in(picture.read_bytes()).shape
    assert width > 1000
    assert height > 500
    text = page.read_text(encoding="utf-8")
    assert text.count("data-curves=") == len(panels_of(read_metrics(finished)))
    assert not re.findall(r'(?:src|href)="(?!data:)', text)  # nothing beside it
    held_out = [line for line in read_metrics(finished) if line["kind"] == "held_out"][-1]
    assert len(metrics_present(held_out)) == 15  # nine of the paper, six diagnostics
    for key, label in metrics_present(held_out):
        assert f"<td>{label}</td>" in text
        assert f"<b>{format_metric(key, held_out[key])}</b>" in text
    assert "20 steps · 5.1 k tokens" in text
    assert "hidden: 32" in text  # the configuration
    assert not [p.name for p in finished.iterdir() if p.name.startswith("report")]


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999"), (1000, "1.0 k"), (2.5e6, "2.5 M"), (3e9, "3.0 G"), (2.5e12, "2500.0 G")],
)
def test_amounts(count, text):
    assert _amount(count) == text


def test_a_full_disk_leaves_the_old_page_and_picture(finished, tmp_path, monkeypatch):
    written = write_report([finished], tmp_path)
    before = [path.read_bytes() for path in written]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report([finished], tmp_path)
    with pytest.raises(OSError, match="No space left"):
        draw(read_metrics(finished), written[0], title="another")
    assert [path.read_bytes() for path in written] == before
    assert sorted(tmp_path.iterdir()) == sorted(written)


def test_without_a_place_it_goes_into_the_run(finished, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(finished / "metrics.jsonl", run)
    assert write_report([run]) == [run / "report.png", run / "report.html"]


def test_warnings_appear_and_are_escaped(finished, tmp_path):
    run = tmp_path / "a $_$ <run>"  # no formula, no tag
    run.mkdir()
    shutil.copy(finished / "metrics.jsonl", run)
    MetricsLog(run).write("event", 15, message="The <discriminator> has collapsed")
    _, page = write_report([run])
    text = page.read_text(encoding="utf-8")
    assert "<b>Warnings</b>" in text
    assert "<li>step 15: The &lt;discriminator&gt; has collapsed</li>" in text
    assert "started" not in text
    assert "<title>a $_$ &lt;run&gt;</title>" in text


def test_a_run_that_has_just_begun(tmp_path):
    """Training metrics but no held-out ones yet, and one that is not known."""
    MetricsLog(tmp_path).write("event", 0, message="started")
    with pytest.raises(UserError, match="no metrics yet"):
        write_report([tmp_path])
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    MetricsLog(tmp_path).write("train", 5, loss=1.0, tokens=10, seconds=1.0, mlm_loss=float("nan"))
    _, page = write_report([tmp_path])
    assert "5 steps" in page.read_text(encoding="utf-8")


def test_a_run_that_was_only_measured(tmp_path):
    MetricsLog(tmp_path).write("held_out", 3, loss=1.0, auc=0.5)
    _, page = write_report([tmp_path])
    assert "<b>0.500</b>" in page.read_text(encoding="utf-8")


def test_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere is not the folder of a run"):
        write_report([tmp_path / "nowhere"])
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["page.html", "file"])
def test_out_is_a_folder(finished, tmp_path, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"give a folder; report\.html is written into it"):
        write_report([finished], tmp_path / name)
    assert (tmp_path / "file").read_text() == "mine"
    assert not (tmp_path / "page.html").exists()


def test_without_matplotlib_the_extra_is_named(finished, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"pip install 'electra\[plot\]'"):
        write_report([finished], tmp_path)


def test_several_runs_share_a_page(finished, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(finished, tmp_path / name)
    lines = read_metrics(finished)
    MetricsLog(tmp_path / "b").write("train", 30, mlm_loss=9.75, tokens=1, seconds=1.0)
    (page,) = write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    text = page.read_text(encoding="utf-8")
    assert "<title>a, b</title>" in text
    assert text.count('class="verdict') == 2
    assert "<b>a: " in text
    assert "<tr><th></th><th>a</th><th>b</th></tr>" in text
    assert text.count("<section>") == 2
    assert "b · training" in text
    assert "9.75" in text  # in the curves
    assert text.count("data-curves=") == len(panels_of(lines))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.html"]


def test_equal_names_are_told_apart(tmp_path):
    runs = [tmp_path / part / "run" for part in ("x", "y")]
    assert list(name_runs(runs).values()) == [str(run) for run in runs]
    assert list(name_runs(runs[:1]).values()) == ["run"]


def test_samples_hardware_and_kernels(finished, tmp_path):
    _, page = write_report([finished], tmp_path)
    text = page.read_text(encoding="utf-8")
    assert text.count('<div class="tokens">') == SENTENCES
    assert text.count("<ul class='fills'>") == SENTENCES
    assert "kernels: plain modules" in text
    assert "hardware: " in text


def test_why_there_are_no_samples(finished, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(finished / "metrics.jsonl", run)
    _, page = write_report([run])
    assert "No sample sentences: " in page.read_text(encoding="utf-8")
