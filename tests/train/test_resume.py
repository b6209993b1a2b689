"""A run that is killed and resumed ends with the very weights of a run that was not."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from electra.config import to_yaml
from electra.errors import UserError
from electra.run_dir import GracefulStop
from electra.train import checkpoint
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import build_objective, read_run_config, resume, start

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
    for name in ("model", "optimizer", "random"):
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


def test_a_second_signal_aborts_and_the_handlers_come_back():
    before = signal.getsignal(signal.SIGTERM)
    with GracefulStop() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
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
    import shutil

    from electra.text.prepare import prepare

    config, out = straight
    moved = tmp_path / "moved"
    shutil.copytree(config.data.folder, moved)
    assert resume(out, console, data=moved) == 0
    other = tmp_path / "other"
    prepare([corpus], tokenizer=tokenizer_folder, out=other, length=32, workers=1, seed=5)
    with pytest.raises(UserError, match="is not the data"):
        resume(out, console, data=other)


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
