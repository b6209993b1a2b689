"""Commands that are disturbed: each runs in a forked process, and the same one can run again."""

import functools
import multiprocessing
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which takes a second, once for all processes
from safetensors.torch import load_file

from electra import cli, config
from electra.export import run as export_run
from electra.finetune import run as finetune_run
from electra.finetune import score_checkpoints
from electra.jsonl import read_jsonl
from electra.text import readers
from electra.train import checkpoint, pretrain
from electra.train.metrics_log import read_metrics
from electra.train.settings import PretrainConfig

assert export_run
assert finetune_run
assert score_checkpoints
config.field_helps = functools.cache(config.field_helps)  # it reads sources
config.to_yaml(PretrainConfig())

Disturb = Callable[..., Any]
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["pytest", "tests.torture.jobs", "tests.torture.faults"])


def run_here(arguments: list[str], output: Path, disturb: Disturb | None, given: tuple) -> None:
    """Run a command in this process, which ends with it; `disturb` comes first."""
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1) for n in (1, 2))
    torch.set_num_threads(1)
    readers.CHUNK_BYTES = 8000
    readers.chunk_documents.__kwdefaults__["size"] = 8000  # several shards of a small text
    pretrain.measure_peak = lambda device, dtype: 1e12  # takes longer than the run
    sys.argv = ["electra", *arguments]
    if disturb is not None:
        disturb(*given)
    sys.exit(cli.run_app())


@dataclass(frozen=True)
class Job:
    """A command, how its result is compared, and what may be gone after it was killed."""

    name: str
    arguments: list[str]
    """Without --out."""
    read: Callable[[Path], Any]
    """The result, without times."""

    def start(
        self, out: Path, disturb: Disturb | None = None, *given: Any, more: tuple[str, ...] = ()
    ) -> Any:
        """Start the command in a process of its own; its output goes to a file beside `out`."""
        out.parent.mkdir(parents=True, exist_ok=True)
        output_of(out).write_text("")
        arguments = [*self.arguments, *more, "--out", str(out)]
        process = FORK.Process(
            target=run_here, args=(arguments, output_of(out), disturb, given), daemon=True
        )
        process.start()
        return process

    def run(self, out: Path, *given: Any, **options: Any) -> int:
        """Run the command to its end; returns the exit code, or minus the signal."""
        process = self.start(out, *given, **options)
        process.join()
        return process.exitcode

    def finish(self, out: Path) -> None:
        """Run the command again, undisturbed: it has to end well, and to leave nothing behind."""
        if not self.is_finished(out):
            assert self.run(out) == 0, said(out)
        check_clean(out)

    def is_finished(self, out: Path) -> bool:
        """Only an export refuses to run again."""
        return self.name == "export" and out.exists()


def output_of(out: Path) -> Path:
    return out.parent.parent / f"{out.parent.name}.output"


def said(out: Path) -> str:
    """What the last command printed."""
    return output_of(out).read_text(encoding="utf-8")


def check_sentence(out: Path, *words: str) -> None:
    """The command ended with one sentence for people."""
    text = said(out)
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, text
    assert "Traceback" not in text
    for word in words:
        assert word in errors[0], errors[0]


def check_clean(out: Path) -> None:
    """No temporary files are left, in the folder or beside it."""
    names = [str(p.relative_to(out.parent)) for p in out.parent.rglob("*")]
    left = [n for n in names if ".tmp" in n or ".partial" in n or n.endswith(".old")]
    assert not left, left
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def tree(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def read_export(out: Path) -> Any:
    return tree(out)


def read_run(out: Path) -> Any:
    """The last checkpoint, bit for bit, and what was measured when."""
    steps = [(m["kind"], m["step"], m.get("loss")) for m in read_metrics(out)]
    last = checkpoint.checkpoints(out)[-1]
    return last.name, read_checkpoint(last), [s for s in steps if s[0] != "event"]


def read_checkpoint(folder: Path) -> Any:
    """A checkpoint's files but its times; it has to load."""
    checkpoint.read_state(folder)
    for path in folder.rglob("*.safetensors"):
        load_file(path)
    return {name: data for name, data in tree(folder).items() if name != "state.json"}


def read_finetuned(out: Path) -> Any:
    timing = ("seconds", "training_seconds")
    results = [{k: v for k, v in r.items() if k not in timing} for r in read_jsonl(out / RESULTS)]
    return results, tree(out / "model"), tree(out / "predictions")


RESULTS = "results.jsonl"


def record(folder: Path, log: Path) -> None:
    """Write down every moment of the command, for `PowerLoss`."""
    from tests.torture.faults import Layer, Recorder

    layer, recorder = Layer(folder), Recorder(folder)
    layer.after = recorder.after
    layer.install()
    write, run = log.write_bytes, cli.run_app

    def run_app() -> int:
        code = run()
        layer.after = lambda name, given: None
        write(pickle.dumps(recorder.history))
        return code

    cli.run_app = run_app


def count(folder: Path, log: Path) -> None:
    """Write down how many operations the command takes."""
    from tests.torture.faults import Layer

    layer, run = Layer(folder), cli.run_app
    layer.install()

    def run_app() -> int:
        code = run()
        number = layer.count
        log.write_text(str(number))
        return code

    cli.run_app = run_app


def interfere(folder: Path, at: int, act: Callable[[], None]) -> None:
    """Let something happen at one of the operations."""
    from tests.torture.faults import Layer

    Layer(folder, at, act).install()


def copy_start(source: Path, out: Path) -> None:
    """Begin with the files of another folder."""
    shutil.copytree(source, out, dirs_exist_ok=True)
