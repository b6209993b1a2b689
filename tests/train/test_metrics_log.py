"""metrics.jsonl is the source of truth; trackers are told the same metrics."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from electra.errors import UserError
from electra.train.metrics_log import MetricsLog, open_logger, read_metrics
from electra.train.pretrain import start
from electra.train.step import Step


def test_written_and_read(tmp_path):
    record = MetricsLog(tmp_path)
    record.write("train", 5, loss=1.5, tokens=10)
    record.write("held_out", 5, auc=float("nan"))
    assert read_metrics(tmp_path) == [
        {"kind": "train", "step": 5, "loss": 1.5, "tokens": 10},
        {"kind": "held_out", "step": 5, "auc": None},
    ]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()  # which is not JSON


def test_a_logger_gets_finite_metrics_only(tmp_path):
    calls = []

    class Heard:
        def log(self, metrics, step):
            calls.append((metrics, step))

    record = MetricsLog(tmp_path, Heard())
    record.write("held_out", 5, auc=float("nan"), loss=1.5, reward=float("inf"))
    record.write("event", 6, message="said")
    record.write("score", 7, task="moods", score=0.9, seeds=3)
    assert calls == [
        ({"held_out/loss": 1.5}, 5),
        ({"score/score": 0.9, "score/seeds": 3}, 7),
    ]


def test_a_cut_line_is_passed_over(tmp_path):
    record = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        record.write("train", step, loss=float(step))
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # killed while writing
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2]
    record.rewind(2)
    record.write("train", 3, loss=3.0)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]
    assert all(json.loads(line) for line in path.read_text().splitlines())
    path.write_bytes(path.read_bytes() + b'{"kind": "\xc3')  # no whole letter
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3]


def test_rewind_forgets_what_came_after(tmp_path):
    record = MetricsLog(tmp_path)
    for step in (5, 10, 15):
        record.write("train", step, loss=1.0)
        record.write("event", step, message="said")
    record.rewind(10)
    assert [line["step"] for line in read_metrics(tmp_path)] == [5, 5, 10, 10]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]
    record.rewind(0)
    assert read_metrics(tmp_path) == []


def test_a_missing_file_has_no_metrics(tmp_path):
    assert read_metrics(tmp_path) == []
    MetricsLog(tmp_path).rewind(0)
    assert open_logger("none", tmp_path, {}) is None


def test_tensorboard_has_the_metrics(tiny, with_train, tmp_path, console):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = tmp_path / "run"
    start(with_train(tiny, budget="10steps", logger="tensorboard"), out, console)
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    train = [line for line in read_metrics(out) if line["kind"] == "train"]
    points = events.Scalars("train/mlm_loss")
    assert [(p.step, p.value) for p in points] == [
        (line["step"], pytest.approx(line["mlm_loss"])) for line in train
    ]
    assert events.Scalars("held_out/auc")[-1].step == 10
    assert "train/tokens_per_second" in events.Tags()["scalars"]


def test_tensorboard_has_them_while_the_run_goes_on(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = open_logger("tensorboard", tmp_path, {})
    logger.log({"train/loss": 1.5}, 3)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(p.step, p.value) for p in events.Scalars("train/loss")] == [(3, 1.5)]
    logger.close()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_dashboards_get_the_metrics(name, tiny, with_train, tmp_path, console, monkeypatch):
    calls = []
    fake = ModuleType(name)
    fake.init = lambda **settings: calls.append(("init", settings))
    fake.log = lambda metrics, step: calls.append(("log", step, metrics))
    fake.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, name, fake)
    start(with_train(tiny, budget="10steps", logger=name), tmp_path / "run", console)
    assert calls[0][0] == "init"
    assert calls[0][1]["name"] == "run"
    assert calls[0][1]["config"]["model"]["hidden"] == 32
    assert calls[-1] == ("finish",)
    told = [call for call in calls if call[0] == "log"]
    assert [call[1] for call in told] == [5, 10, 10]
    assert told[0][2]["train/mlm_loss"] == read_metrics(tmp_path / "run")[1]["mlm_loss"]
    assert 0 <= told[2][2]["held_out/auc"] <= 1
    assert all(isinstance(v, int | float) for call in told for v in call[2].values())


def test_a_logger_is_closed_when_the_run_fails(tiny, with_train, tmp_path, console, monkeypatch):
    calls = []
    fake = ModuleType("wandb")
    fake.init = lambda **_: None
    fake.finish = lambda: calls.append("finish")
    monkeypatch.setitem(sys.modules, "wandb", fake)

    def fails(*_):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(Step, "__call__", fails)
    with pytest.raises(RuntimeError, match="on purpose"):
        start(with_train(tiny, logger="wandb"), tmp_path / "run", console)
    assert calls == ["finish"]


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_library_names_the_extra(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"pip install 'electra\[{name}\]'"):
        open_logger(name, tmp_path, {})


@pytest.mark.parametrize(
    "line",
    [
        {"step": 1},
        {"kind": "train"},
        {"kind": ["train"], "step": 1},
        {"kind": "train", "step": "1"},
        {"kind": "train", "step": 1, "mlm_loss": "low"},
        {"kind": "train", "step": 1, "mlm_loss": 1e308},
        {"kind": "phase", "step": 1, "batch_size": "<script>", "seq_length": 8},
        {"kind": "event", "step": 1, "message": 5},
        {"kind": "event", "step": 1, "parameters": [1]},
        {"kind": "score", "step": 1, "score": 0.5},
    ],
)
def test_lines_that_no_run_writes_are_refused(line, tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match="which no run writes"):
        read_metrics(tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    log = MetricsLog(tmp_path)
    log.write("train", 1, loss=1.0)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(UserError, match=r"disk is full: .*metrics\.jsonl.*--resume --out"):
        log.write("train", 2, loss=1.0)
