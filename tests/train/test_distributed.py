"""Several processes train one run: the same data, losses, weights and metrics as one process."""

import contextlib
import io
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from electra.config import override, to_yaml
from electra.errors import UserError
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.train import checkpoint, pretrain
from electra.train.data import rows_at, stream
from electra.train.distributed import ONE_RANK, Ranks, check_batches, open_ranks
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start
from electra.train.step import Step

PAGE = Path(__file__).parents[2] / "docs" / "many-gpus.md"
SECONDS = 60
"""After this a rank is taken to hang."""
SHORT = ("train.budget=8steps", "train.validate_every=4", "train.checkpoint_every=8")
PLAIN = (*SHORT, "model.dropout=0", "model.attention_dropout=0", "train.report_every=1")


@pytest.fixture(scope="module")
def processes():
    """Processes that have imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["electra.train.pretrain", "electra.cli", "torch.distributed"])
    return context


@pytest.fixture
def launch(processes, tmp_path):
    """Run `function(*arguments)` in several processes with torchrun's environment.

    Returns the exit code and the output of each.
    """

    def run(size: int, function, *arguments) -> list[tuple[int, str]]:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        logs = [tmp_path / f"rank{rank}.log" for rank in range(size)]
        started = [
            processes.Process(
                target=as_rank, args=(rank, size, port, str(logs[rank]), function, arguments)
            )
            for rank in range(size)
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(SECONDS)
        hung = [rank for rank, process in enumerate(started) if process.is_alive()]
        for process in started:
            process.kill()
        texts = [log.read_text() for log in logs]
        assert not hung, f"ranks {hung} hang; {texts}"
        return [(process.exitcode, text) for process, text in zip(started, texts, strict=True)]

    return run


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


def command(*arguments: str) -> int:
    """Run the command line."""
    from electra import cli

    sys.argv = ["electra", *arguments]
    return cli.run_app()


def alone(config, out: Path) -> Path:
    """The same in this process."""
    torch.set_num_threads(1)
    console = Console(file=io.StringIO(), width=200)
    code = resume(out, console) if out.exists() else start(config, out, console)
    assert code == 0
    return out


@pytest.fixture(autouse=True)
def _no_yardstick(monkeypatch):
    monkeypatch.setattr(pretrain, "measure_peak", lambda *_: 1e12)


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
            names = line.keys() - {"kind", "seconds", "tokens_per_second", "peak_share"}
            for key in names:
                assert line[key] == pytest.approx(other[key], rel=2e-3, abs=1e-4, nan_ok=True), key


# ------------------------------------------------------------------ without processes


def test_one_process_sends_nothing(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name in ("init_process_group", "all_reduce", "broadcast", "all_gather_object"):
        monkeypatch.delattr(f"torch.distributed.{name}")
    with open_ranks() as ranks:
        assert ranks is ONE_RANK
    tensor = torch.arange(3)
    assert ranks.sum_(tensor) is tensor
    assert ranks.agree(15, 2.5) == (15, 2.5)
    assert ranks.gather("a") == ["a"]
    assert ranks.broadcast("a") == "a"
    assert ranks.place(torch.device("mps")).type == "mps"
    with pytest.raises(UserError, match="as it is"), ranks.together():
        raise UserError("as it is")


def test_the_rows_of_any_number_of_ranks_are_those_of_one(data_folder):
    """Also when the number changes in mid-epoch, and in batches that span two epochs."""
    shards, device = Shards.open(data_folder), torch.device("cpu")
    total = shards.rows("train")
    rng = np.random.default_rng(0)
    batch, position, seen = 24, 0, []
    while position < 2 * total + batch:
        size, steps = int(rng.choice([1, 2, 3, 4, 6, 8, 12, 24])), int(rng.integers(1, 20))
        streams = [
            stream(shards, batch, 5, position, device, Ranks(rank=rank, size=size))
            for rank in range(size)
        ]
        for _ in range(steps):
            seen += [next(s) for s in streams]
            position += batch
        for s in streams:
            s.close()
    assert torch.equal(torch.cat(seen), torch.from_numpy(rows_at(shards, 0, position, 5)))


@pytest.mark.parametrize("count", [0, 1, 5, 16, 1024])
def test_shares_cover_everything_once_and_in_order(count):
    for size in range(1, 20):
        shares = [Ranks(rank=rank, size=size).share(count) for rank in range(size)]
        assert [row for share in shares for row in share] == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("batches", "accumulation", "size"), [((8,), 1, 3), ((8, 12), 1, 8), ((8,), 4, 4)]
)
def test_a_batch_that_does_not_divide_is_refused(batches, accumulation, size):
    check_batches(Ranks(size=2), (8, 12), 2)
    with pytest.raises(UserError, match=rf"does not divide over {size} processes.*data.batch_size"):
        check_batches(Ranks(size=size), batches, accumulation)


def test_another_launcher_is_told_what_is_missing(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(UserError, match=r"RANK is not set.*torchrun"), open_ranks():
        pass


# ------------------------------------------------------------------ equal to one process


@pytest.mark.parametrize(
    ("size", "changes"),
    [
        (2, ("generator.tie=embeddings",)),
        (4, ("generator.tie=gdes", "optim.ema=0.9", "data.batch_size=8,16@0.5")),
        (2, ("generator.tie=none", "train.grad_accumulation=2", "train.validate_rows=15")),
        (2, ("objective.kind=two-stage", "generator.width=1", "generator.tie=none")),
    ],
)
def test_ranks_train_what_one_process_trains(size, changes, tiny, tmp_path, launch):
    config = override(tiny, [*PLAIN, *changes])
    reference = alone(config, tmp_path / "alone")
    found = launch(size, pretrain_on_rank, config, tmp_path / "run")
    assert [code for code, _ in found] == [0] * size
    check_equal(tmp_path / "run", reference)
    assert f"{size} processes on cpu" in found[0][1]
    assert "Done: 8 steps" in found[0][1]
    assert not any(text for _, text in found[1:])  # one console


def test_a_signal_to_one_rank_stops_all_and_the_run_resumes_on_another_number(
    tiny, tmp_path, launch, console, monkeypatch
):
    """2 -> 1 -> 2 processes end like one that was never stopped."""
    config, out = override(tiny, PLAIN), tmp_path / "run"
    reference = alone(config, tmp_path / "alone")
    first = launch(2, pretrain_on_rank, config, out, (3, 1))
    assert [code for code, _ in first] == [128 + signal.SIGTERM] * 2
    assert "Stopped by SIGTERM at step 3; saved" in first[0][1]
    assert [path.name for path in checkpoint.checkpoints(out)] == ["step-00000003"]
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", stopping(2, 0))
        assert resume(out, console) == 128 + signal.SIGTERM
    assert "Resuming at step 3 on cpu" in console.file.getvalue()
    last = launch(2, pretrain_on_rank, config, out)
    assert [code for code, _ in last] == [0, 0]
    assert "Resuming at step 5 on 2 processes" in last[0][1]
    check_equal(out, reference)


def test_dropout_of_each_rank_resumes_where_it_was(tiny, tmp_path, launch):
    """To the last bit, because a checkpoint has the random states of all ranks."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    config = override(tiny, [*SHORT, "train.checkpoint_every=4"])
    launch(2, pretrain_on_rank, config, whole)
    shutil.copytree(whole, parts)
    shutil.rmtree(checkpoint.checkpoints(parts)[-1])
    assert "Resuming at step 4" in launch(2, pretrain_on_rank, config, parts)[0][1]
    for name in ("model", "optimizer", "random"):
        ours, theirs = tensors(parts, name), tensors(whole, name)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items()), name
    random = tensors(whole, "random")
    assert not torch.equal(random["cpu"], random["rank1.cpu"])


# ------------------------------------------------------------------ what goes wrong


def slow_clock(config, out: Path) -> int:
    """A time budget, with a clock of the second rank that runs ten times too slowly."""
    from electra.train import loop

    if os.environ["RANK"] == "1":
        original, begun = loop.time.perf_counter, loop.time.perf_counter()
        loop.time.perf_counter = lambda: begun + (original() - begun) / 10
    return pretrain_on_rank(config, out)


def test_the_first_rank_has_the_clock(tiny, tmp_path, launch):
    config = override(tiny, ["train.budget=0.5s"])
    assert [code for code, _ in launch(2, slow_clock, config, tmp_path / "run")] == [0, 0]
    assert checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1]).seconds >= 0.5


def with_data(recipe: Path, out: Path, *folders: Path) -> int:
    """Each rank has a data folder of its own."""
    name = str(folders[int(os.environ["RANK"])])
    return command("pretrain", str(recipe), "--data", name, "--out", str(out))


@pytest.mark.parametrize("kind", ["setting", "batch", "no data", "other data", "in use"])
def test_an_error_is_reported_once(
    kind, tiny, data_folder, corpus, tokenizer_folder, tmp_path, launch
):
    recipe, out = tmp_path / "tiny.yaml", tmp_path / "run"
    recipe.write_text(to_yaml(tiny))
    usual = ("pretrain", str(recipe), "--data", str(data_folder), "--out", str(out))
    if kind == "setting":
        found, sentence = launch(2, command, *usual, "optim.lrr=1"), "no setting 'optim.lrr'"
    elif kind == "batch":
        found, sentence = launch(3, command, *usual), "8 rows does not divide over 3 processes"
    elif kind == "no data":
        folders = data_folder, tmp_path / "nothing"
        found, sentence = launch(2, with_data, recipe, out, *folders), "nothing"
    elif kind == "other data":
        other = tmp_path / "other"
        prepare([corpus], tokenizer=tokenizer_folder, out=other, length=32, held_out=0.2)
        found, sentence = launch(2, with_data, recipe, out, data_folder, other), "the same shards"
    else:
        out.mkdir()
        with pretrain.locked_by_first(ONE_RANK, out):
            found, sentence = launch(2, command, *usual), "is in use by process"
        shutil.rmtree(out)
    assert [code for code, _ in found] == [2] * len(found)
    (line,) = found[0][1].splitlines()
    assert line.startswith("error: ")
    assert sentence in line
    assert not any(text for _, text in found[1:])
    assert not out.exists()


def stumble() -> int:
    """The second rank has a bug."""
    try:
        with open_ranks() as ranks, ranks.together():
            if ranks.rank == 1:
                raise ValueError("odd")
    except Exception as error:
        print(type(error).__name__, error)
    return 0


def test_a_bug_on_one_rank_shows_there_and_ends_all(launch):
    texts = [text.strip() for _, text in launch(3, stumble)]
    assert texts == ["QuietError", "ValueError odd", "QuietError"]


def die(config, out: Path) -> int:
    """The second rank is killed in its third step."""
    signal.raise_signal = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    try:
        return pretrain_on_rank(config, out, (3, 1))
    except UserError as error:
        print(error)
        return 2


def test_a_rank_does_not_wait_for_a_dead_one(tiny, tmp_path, launch):
    (code, text), (killed, _) = launch(2, die, tiny, tmp_path / "run")
    assert killed == -signal.SIGKILL
    assert code == 2
    assert "Rank 0 has lost the others" in text


KILLED_ONCE = """
import os, signal
from electra.cli import main
from electra.train import pretrain
from electra.train.step import Step

pretrain.measure_peak = lambda *_: 1e12
original, taken = Step.__call__, []

def take(self, *arguments):
    taken.append(1)
    if len(taken) == 6 and os.environ["RANK"] == "1":
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
    return original(self, *arguments)

Step.__call__ = take
main()
"""


def test_torchrun_restarts_after_a_killed_rank(tiny, data_folder, tmp_path):
    """With the page's command, from step 4 on; it ends like a run that was not disturbed."""
    config = override(tiny, [*PLAIN, "train.checkpoint_every=4"])
    reference = alone(config, tmp_path / "alone")
    script, recipe, out = (tmp_path / name for name in ("run.py", "tiny.yaml", "run"))
    script.write_text(KILLED_ONCE)
    recipe.write_text(to_yaml(config))
    example = re.search(r"<!-- tested -->\n```bash\n(.*?)```", PAGE.read_text(), re.S)
    launcher, *words = shlex.split(example[1])
    assert launcher == "torchrun"
    mine = {
        **{"--nproc-per-node=8": "--nproc-per-node=2", "-m": "", "electra": script},
        **{"paper.base": recipe, "shards": data_folder, "runs/base": out},
    }
    arguments = [mine.get(word, word) for word in words]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *filter(None, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stderr
    assert re.findall(r"(?:Starting|Resuming) at step (\d+)", done.stdout) == ["0", "4"]
    assert "Done: 8 steps" in done.stdout
    check_equal(out, reference)
