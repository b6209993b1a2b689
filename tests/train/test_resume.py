"""A run that is killed and resumed ends with the very weights of a run that was not."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmarks.range_server import RangeServer
from safetensors.torch import load_file

from electra.config import flatten, to_yaml
from electra.errors import UserError
from electra.run_dir import GracefulStop
from electra.text import remote
from electra.train import checkpoint
from electra.train.metric_accumulator import MetricAccumulator
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import build_objective, resume, start
from electra.train.run_config import read_run_config
from electra.train.settings import MAY_CHANGE_ON_RESUME, PretrainConfig
from electra.train.step import Step

RUN = """
import signal, sys, torch
from pathlib import Path
from rich.console import Console
from electra.recipes import recipe
from electra.train.pretrain import resume, start
torch.set_num_threads(1)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
out = Path(sys.argv[2])
console = Console(width=200)
if sys.argv[1] == "--resume":
    sys.exit(resume(out, console))
sys.exit(start(recipe(sys.argv[1]), out, console))
"""


def launch(first: str, out: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", RUN, first, str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def same_files(a: Path, b: Path) -> None:
    """The last checkpoints of two runs hold the same bits."""
    last_a, last_b = checkpoint.checkpoints(a)[-1], checkpoint.checkpoints(b)[-1]
    assert last_a.name == last_b.name
    assert sorted(p.name for p in last_a.iterdir()) == sorted(p.name for p in last_b.iterdir())
    for name in sorted(p.stem for p in last_a.glob("*.safetensors")):
        one, two = (load_file(c / f"{name}.safetensors") for c in (last_a, last_b))
        assert one.keys() == two.keys()
        for key in one:
            assert torch.equal(one[key], two[key]), f"{name}: {key}"


@pytest.fixture
def straight(tiny, with_train, tmp_path, console):
    """A run of 60 steps without interruption."""
    config = with_train(tiny, budget="60steps", checkpoint_every=15, keep_last=9)
    start(config, tmp_path / "straight", console)
    return config, tmp_path / "straight"


def test_killed_at_any_moment_and_resumed_is_bit_identical(straight, tmp_path):
    config, reference = straight
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(config))
    out = tmp_path / "killed"
    process = launch(str(recipe), out)
    # kill -9 again and again: soon after a checkpoint, in the middle of one, between two
    for wait in (0.0, 0.05, 0.12):
        deadline = time.time() + 60
        before = len(checkpoint.checkpoints(out)) if out.exists() else 0
        while process.poll() is None and len(checkpoint.checkpoints(out)) <= before:
            assert time.time() < deadline, process.communicate()
            time.sleep(0.002)
        time.sleep(wait)
        process.kill()
        process.wait()
        process = launch("--resume", out)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    same_files(reference, out)
    steps = [(m["kind"], m["step"]) for m in read_metrics(out) if m["kind"] != "event"]
    assert steps == [
        (m["kind"], m["step"]) for m in read_metrics(reference) if m["kind"] != "event"
    ]
    assert not list((out / "checkpoints").glob(".*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_leaves_with_a_clear_line(straight, tmp_path, number):
    config, reference = straight
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(config))
    out = tmp_path / "stopped"
    process = launch(str(recipe), out)
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.002)
    while process.poll() is None and len(read_metrics(out)) < 3:
        time.sleep(0.002)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number, output
    assert f"Stopped by {number.name}" in output
    assert "--resume" in output
    assert "Traceback" not in output
    assert 0 < checkpoint.read_state(checkpoint.checkpoints(out)[-1]).step < 60
    process = launch("--resume", out)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    same_files(reference, out)


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_the_average_of_the_weights_resumes(kind, tiny, with_train, tmp_path, console):
    config = with_train(tiny, checkpoint_every=7, keep_last=9)
    config = replace(config, optim=replace(config.optim, kind=kind, ema=0.9))
    start(config, tmp_path / "straight", console)
    shutil.copytree(tmp_path / "straight", tmp_path / "again")
    for later in checkpoint.checkpoints(tmp_path / "again")[1:]:
        shutil.rmtree(later)
    assert resume(tmp_path / "again", console) == 0
    last = checkpoint.checkpoints(tmp_path / "again")[-1]
    assert load_file(last / "ema.safetensors")["updates"].item() == 20
    same_files(tmp_path / "straight", tmp_path / "again")


def test_a_second_ctrl_c_aborts_and_the_handlers_come_back(monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with GracefulStop() as stop:
        signal.raise_signal(signal.SIGTERM)
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):  # one storm
            now[0] += 0.9
            signal.raise_signal(number)
        now[0] += 60
        signal.raise_signal(signal.SIGTERM)  # of a cluster, which kills those that do not stop
        assert stop.signal == signal.SIGTERM
        now[0] += 1.1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("number", "seen"), [(signal.SIGHUP, None), (signal.SIGINT, signal.SIGINT)]
)
def test_only_a_hangup_may_be_ignored(number, seen):
    """As nohup asks for; Ctrl-C is off, too, in what a shell runs in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with GracefulStop() as stop:
            signal.raise_signal(number)
        assert stop.signal == seen
    finally:
        signal.signal(number, before)


def test_a_resume_is_an_event(tiny, with_train, tmp_path, console, monkeypatch):
    out = tmp_path / "run"
    step = Step.__call__

    def stop(self, *arguments):
        if len(taken) == 2:
            signal.raise_signal(signal.SIGTERM)
        taken.append(1)
        return step(self, *arguments)

    taken: list[int] = []
    monkeypatch.setattr(Step, "__call__", stop)
    assert start(with_train(tiny, budget="5steps"), out, console) == 128 + signal.SIGTERM
    assert resume(out, console, changes=["train.grad_accumulation=2"]) == 0
    events = [line for line in read_metrics(out) if line["kind"] == "event"]
    begun, resumed = events
    how = {"device": "cpu", "kernels": begun["kernels"]}
    assert begun.items() >= {"message": "started", "grad_accumulation": 1, **how}.items()
    wanted = {"kind": "event", "message": "resumed", "grad_accumulation": 2, "ranks": 1, **how}
    assert resumed.items() >= {**wanted, "step": 3}.items()
    assert resume(out, console) == 0  # nothing is left to do
    assert [line for line in read_metrics(out) if line["kind"] == "event"] == events


@pytest.mark.parametrize("last", [4, 11, 12])
def test_a_stop_between_two_reports_changes_no_report(
    last, tiny, with_train, tmp_path, console, monkeypatch
):
    """Also after the last step, which is no multiple of report_every."""
    config = with_train(tiny, budget="12steps", report_every=5, checkpoint_every=9)
    start(config, tmp_path / "straight", console)
    step, taken = Step.__call__, iter(range(1, 100))

    def stop(self, *arguments):
        if next(taken) == last:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *arguments)

    monkeypatch.setattr(Step, "__call__", stop)
    assert start(config, tmp_path / "stopped", console) == 128 + signal.SIGTERM
    for _ in range(2):  # again, when nothing is left to do
        assert resume(tmp_path / "stopped", console) == 0
    same_files(tmp_path / "straight", tmp_path / "stopped")
    lines, others = (
        [
            [line[key] for key in ("step", "loss", "gradient_norm", "learning_rate")]
            for line in read_metrics(tmp_path / name)
            if line["kind"] == "train"
        ]
        for name in ("straight", "stopped")
    )
    assert [step for step, *_ in lines] == [5, 9, 10, 12]
    assert others == lines


def test_a_finished_run_without_a_last_report_gets_none(
    tiny, with_train, tmp_path, console, monkeypatch
):
    """Earlier versions wrote such runs; a report without a step would be of no speed."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(MetricAccumulator, "report", lambda self, rate: self.check())
        start(with_train(tiny, budget="3steps"), out, console)
    assert checkpoint.read_state(checkpoint.checkpoints(out)[-1]).unreported["steps"] == 3
    assert resume(out, console) == 0
    assert not [line for line in read_metrics(out) if line["kind"] == "train"]


def test_every_setting_that_may_change_exists():
    known = dict(flatten(PretrainConfig()))
    assert known.keys() >= MAY_CHANGE_ON_RESUME
    assert not MAY_CHANGE_ON_RESUME & {"train.budget", "train.seed", "train.precision", "optim.lr"}


def test_a_new_logger_on_resume(electra, copied):
    pytest.importorskip("tensorboard")
    code, _, err = electra("pretrain", "--resume", "--out", copied, "train.logger=tensorboard")
    assert (code, err) == (0, "")
    assert list((copied / "tensorboard").iterdir())
    assert read_run_config(copied).train.logger == "tensorboard"


@pytest.mark.parametrize("command", ["start", "resume"])
def test_several_processes_are_refused(command, tiny, copied, tmp_path, console, monkeypatch):
    """As if each were alone: `electra study` under torchrun."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = {p: p.stat().st_mtime_ns for p in copied.rglob("*")}
    with pytest.raises(UserError, match=r"WORLD_SIZE is 2.*without torchrun"):
        start(tiny, tmp_path / "new", console) if command == "start" else resume(copied, console)
    assert not (tmp_path / "new").exists()
    assert {p: p.stat().st_mtime_ns for p in copied.rglob("*")} == before
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert resume(copied, console) == 0


def test_the_hint_to_resume_can_be_pasted(tiny, with_train, tmp_path, console, monkeypatch):
    """Also when the path has a space."""

    def stop(*_):
        signal.raise_signal(signal.SIGTERM)
        return original(*_)

    original = Step.__call__
    monkeypatch.setattr(Step, "__call__", stop)
    out = tmp_path / "my runs" / "first"
    assert start(with_train(tiny, budget="5steps"), out, console) == 128 + signal.SIGTERM
    hint = console.file.getvalue().rpartition("Continue with: ")[2].strip()
    assert shlex.split(hint) == ["electra", "pretrain", "--resume", "--out", str(out)]


def test_a_finished_run_resumed_changes_nothing(straight, console):
    _, out = straight

    def times() -> dict[Path, int]:
        return {
            p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.name != "process"
        }

    before = times()
    assert resume(out, console) == 0
    after = times()
    assert before.keys() == after.keys()
    assert {p.name for p in before if before[p] != after[p]} <= {"metrics.jsonl"}


def test_sharing_survives_resume(straight):
    from electra.text.tokenizer import load_tokenizer, vocabulary

    _, out = straight
    config = read_run_config(out)
    objective = build_objective(config, vocabulary(load_tokenizer(out / "tokenizer")))
    checkpoint.restore(checkpoint.checkpoints(out)[-1], objective)
    tables = [
        n.encoder.embeddings.token.weight for n in (objective.generator, objective.discriminator)
    ]
    assert tables[0].data_ptr() == tables[1].data_ptr()
    objective.to(torch.float64)
    tables = [
        n.encoder.embeddings.token.weight for n in (objective.generator, objective.discriminator)
    ]
    assert tables[0].data_ptr() == tables[1].data_ptr()


def test_a_second_process_is_kept_out(tiny, with_train, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(to_yaml(with_train(tiny, budget="100000steps")))
    out = tmp_path / "busy"
    process = launch(str(recipe), out)
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.01)
    try:
        second = launch("--resume", out)
        output, _ = second.communicate(timeout=60)
        assert "is in use by process" in output
        assert str(process.pid) in output
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    third = launch("--resume", out)  # the lock died with its process
    while third.poll() is None and not checkpoint.checkpoints(out):
        time.sleep(0.01)
    third.kill()
    output, _ = third.communicate()
    assert "in use" not in output


def test_moved_data_is_accepted_and_other_data_refused(
    straight, corpus, tokenizer_folder, tmp_path, console
):
    from electra.text.prepare import prepare

    config, out = straight
    moved = tmp_path / "moved"
    shutil.copytree(config.data.folder, moved)
    assert resume(out, console, data=moved) == 0
    assert read_run_config(out).data.folder == str(moved)
    other = tmp_path / "other"
    prepare([corpus], tokenizer=tokenizer_folder, out=other, length=32, workers=1, seed=5)
    with pytest.raises(UserError, match="is not the data"):
        resume(out, console, data=other)
    assert read_run_config(out).data.folder == str(moved)


def test_a_run_folder_is_not_overwritten(straight, console):
    config, out = straight
    with pytest.raises(UserError, match="already holds a run: add --resume"):
        start(config, out, console)
    elsewhere = out.parent / "letters"
    elsewhere.mkdir()
    (elsewhere / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="not empty"):
        start(replace(config), elsewhere, console)
    assert [p.name for p in elsewhere.iterdir()] == ["letter.txt"]


def test_a_run_is_resumed_from_anywhere(tiny, with_train, tmp_path, console, monkeypatch):
    """The data may be named by a relative path; the run remembers where it really is."""
    data = Path(tiny.data.folder)
    monkeypatch.chdir(data.parent)
    config = with_train(replace(tiny, data=replace(tiny.data, folder=data.name)), budget="2steps")
    start(config, tmp_path / "run", console)
    monkeypatch.chdir(tmp_path)
    assert resume(tmp_path / "run", console) == 0


def test_a_run_that_was_killed_at_its_very_start(tiny, with_train, tmp_path, console):
    """Before its tokenizer was copied; temporary files of that time vanish."""
    out = tmp_path / "run"
    config = with_train(tiny, budget="2steps")
    out.mkdir()
    for name in (".tokenizer.12.tmp", "config.yaml.12.tmp"):
        (out / name).touch()
    start(config, out, console)  # not even the configuration was written
    assert not list(out.glob("*.tmp"))
    shutil.rmtree(out / "tokenizer")
    shutil.rmtree(out / "checkpoints")
    (out / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="already holds a run: add --resume"):
        start(config, out, console)
    assert resume(out, console) == 0


def test_a_run_that_begins_while_another_one_is_checked(tiny, tmp_path, console, monkeypatch):
    """Two processes start in one folder; the second finds a run once it has the lock."""
    from electra.train import pretrain

    out = tmp_path / "run"
    resolve = pretrain.resolve_data

    def slow(config):
        out.mkdir()
        (out / "config.yaml").write_text("of the other process")
        return resolve(config)

    monkeypatch.setattr(pretrain, "resolve_data", slow)
    with pytest.raises(UserError, match="already holds a run"):
        start(tiny, out, console)
    assert (out / "config.yaml").read_text() == "of the other process"


def test_a_store_that_fails_in_mid_run_leaves_a_run_to_resume(
    straight, tmp_path, console, monkeypatch
):
    """From a web server, with and without a cache, to the bits of the run from the folder."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "DELAYS", (0.01,))
    config, reference = straight
    server = RangeServer(Path(config.data.folder))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    data = replace(config.data, folder=server.url, cache_dir=str(tmp_path / "cache"), cache_gb=0)
    out, reads = tmp_path / "remote", remote.Store.read_parts

    def failing(self, ranges):
        if len(checkpoint.checkpoints(out)) > 1:
            return [ConnectionError("the network is down")] * len(ranges)
        return reads(self, ranges)

    monkeypatch.setattr(remote.Store, "read_parts", failing)
    with pytest.raises(UserError, match=r"cannot be read \(the network is down\).*--resume"):
        start(replace(config, data=data), out, console)
    assert [c.name for c in checkpoint.checkpoints(out)][:2] == ["step-00000015", "step-00000030"]
    assert read_run_config(out).data.folder == server.url
    monkeypatch.setattr(remote.Store, "read_parts", reads)
    assert resume(out, console, changes=["data.cache_gb=1"]) == 0
    server.shutdown()
    server.server_close()
    same_files(reference, out)
