"""Runs in several processes: start them, stop them, compare what they wrote."""

import contextlib
import io
import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from electra.train import checkpoint, pretrain
from electra.train.distributed import open_ranks
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start
from electra.train.step import Step

SECONDS = 60
"""After this a rank is taken to hang."""
SHORT = ("train.budget=8steps", "train.validate_every=4", "train.checkpoint_every=8")
PLAIN = (*SHORT, "model.dropout=0", "model.attention_dropout=0", "train.report_every=1")


def as_rank(rank: int, size: int, port: int, log: str, function, arguments) -> None:
    """What a process of `launch` does."""
    os.environ |= {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank)},
        **{"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)},
        **{"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "COLUMNS": "200"},
    }
    torch.set_num_threads(1)
    pretrain.measure_peak = lambda *_: 1e12
    with Path(log).open("w", buffering=1) as file, contextlib.redirect_stdout(file):  # noqa: SIM117
        with contextlib.redirect_stderr(file):
            code = function(*arguments)
    sys.exit(code)


def stopping(step: int, rank: int):
    """`Step.__call__`, which sends SIGTERM to a rank in the course of a step."""
    original, taken = Step.__call__, []

    def take(self, *arguments):
        taken.append(1)
        if len(taken) == step and os.environ.get("RANK", "0") == str(rank):
            signal.raise_signal(signal.SIGTERM)
        return original(self, *arguments)

    return take


def pretrain_on_rank(config, out: Path, stop: tuple[int, int] | None = None) -> int:
    """Start or resume a run; `stop` is a step from here on and the rank that is told to stop."""
    if stop:
        Step.__call__ = stopping(*stop)
    console = Console(file=sys.stdout, width=200)
    with open_ranks() as ranks:
        if (out / "config.yaml").exists():
            return resume(out, console, ranks=ranks)
        return start(config, out, console, ranks=ranks)


def alone(config, out: Path) -> Path:
    """The same in this process."""
    torch.set_num_threads(1)
    console = Console(file=io.StringIO(), width=200)
    code = resume(out, console) if out.exists() else start(config, out, console)
    assert code == 0
    return out


def tensors(out: Path, name: str = "model") -> dict[str, torch.Tensor]:
    return load_file(checkpoint.checkpoints(out)[-1] / f"{name}.safetensors")


def check_equal(out: Path, reference: Path) -> None:
    """Two runs have the same checkpoint, losses and held-out metrics within fp32 rounding."""
    last, expected = (checkpoint.checkpoints(run)[-1] for run in (out, reference))
    assert last.name == expected.name
    state, other = checkpoint.read_state(last), checkpoint.read_state(expected)
    assert (state.rows_of_length, state.tokens) == (other.rows_of_length, other.tokens)
    files = ("model", "optimizer", *(["ema"] if (expected / "ema.safetensors").exists() else []))
    for name in files:
        ours, theirs = tensors(out, name), tensors(reference, name)
        assert ours.keys() == theirs.keys()
        for key, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[key], rtol=1e-3, atol=2e-5, msg=key)
    lines, others = (  # a resumed run says so
        [line for line in read_metrics(run) if line.get("message") != "resumed"]
        for run in (out, reference)
    )
    assert [(x["kind"], x["step"]) for x in lines] == [(x["kind"], x["step"]) for x in others]
    for line, other in zip(lines, others, strict=True):
        if line["kind"] in ("train", "held_out"):
            speed = {"kind", "seconds", "tokens_per_second", "peak_share"}
            names = line.keys() - speed - {"all_reduce_bytes_per_step"}
            for key in names:
                assert line[key] == pytest.approx(other[key], rel=2e-3, abs=1e-4, nan_ok=True), key
