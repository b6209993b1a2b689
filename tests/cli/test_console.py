"""Output that nobody reads: work goes on without it, answers end with their reader."""

import errno
import io
import os
import subprocess
import sys

import pytest

from electra import cli
from electra.cli.console import lasting, plain
from electra.demo import run as demo
from electra.text import progress
from electra.train import checkpoint

QUICK = (
    *("model.hidden=32", "model.embedding=16", "data.seq_length=32", "data.batch_size=8"),
    *("model.layers=1", "train.report_every=1"),
    *("train.device=cpu", "train.validate_rows=16"),
)
ELECTRA = (sys.executable, "-m", "electra")


def test_from_text_to_a_report(unread, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)  # a line for each step
    tokenizer, shards, run = (tmp_path / name for name in ("tokenizer", "shards", "run"))
    learn = ("tokenizer", "train", corpus, "--out", tokenizer, "--vocab-size", 150)
    prepare = ("prepare", corpus, "--tokenizer", tokenizer, "--out", shards, "--length", 32)
    train = ("pretrain", "toy", "--data", shards, "--out", run, "--budget", "20steps", *QUICK)
    for command in (learn, (*prepare, "--workers", 1), train, ("report", run)):
        assert unread(*command) == 0
    assert checkpoint.read_state(checkpoint.checkpoints(run)[-1]).step == 20
    assert (run / "report.html").is_file()


def test_the_demo(unread, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "train_tokenizer", lambda *given, **more: sys.exit(7))
    assert unread("demo", "--out", tmp_path / "demo", "--budget", "2steps") == 7  # it got there


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_run_outlives_its_reader(kind, data_folder, tmp_path):
    """As in `electra pretrain ... | head -1`, and when its terminal goes without a hangup."""
    reader, writer = os.pipe() if kind == "pipe" else os.openpty()
    place = ("--data", str(data_folder), "--out", str(tmp_path / "run"))
    process = subprocess.Popen(
        [*ELECTRA, "pretrain", "toy", *place, "--budget", "40steps", *QUICK],
        stdout=writer,
        stderr=writer,
        env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
    )
    os.close(writer)
    assert os.read(reader, 1)
    os.close(reader)
    assert process.wait(300) == 0
    assert checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1]).step == 40


@pytest.mark.parametrize("words", [("recipes", "paper.small"), ("flops",), ("--help",)])
def test_answers_end_with_their_reader(words):
    """By the exit code of SIGPIPE, with no complaint of the interpreter on its way out."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*ELECTRA, *words], stdout=writer, stderr=subprocess.PIPE, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (cli.NO_READER, b"")


def test_a_full_disk_is_told_all_the_same(monkeypatch):
    """Only a reader that left is nothing to speak of."""

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    with lasting(), pytest.raises(OSError, match="No space"):
        print("results", flush=True)


def test_streams_that_are_closed_from_the_start(monkeypatch):
    """As with  >&- , where Python has none."""
    monkeypatch.setattr(sys, "stdout", None)
    with lasting():
        print("nothing")
        assert sys.stdout is None


def test_messages_cannot_control_the_terminal():
    assert plain("a\x1b[2Jb\nc\r\u202ed\ud800") == "a\ufffd[2Jb c \ufffdd\ufffd"
    assert plain("café — 日本語\u00a0…") == "café — 日本語\u00a0…"


def test_an_error_that_quotes_a_file_has_one_line(refused, tokenizer_folder, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"\\u001b[2J\\n": 1}\n')
    message = refused("tokenizer", "inspect", tokenizer_folder, tmp_path / "a.jsonl")
    assert "\x1b" not in message
