"""FSDP2: sharded ranks train what one process trains; any number of them reads a checkpoint."""

import errno
import os
import re
import signal
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.train import launching
from tests.train.failures import inject
from tests.train.launching import PLAIN, alone, check_equal, pretrain_on_rank, stopping, tensors

import electra
from electra.config import override
from electra.errors import QuietError, UserError
from electra.train import checkpoint
from electra.train.distributed import Ranks
from electra.train.evaluate import evaluate
from electra.train.fsdp import is_sharded
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import resume, start
from electra.train.sharded_files import read_shards, stored_shapes
from electra.train.step import Step

FSDP = (*PLAIN, "train.data_parallel=fsdp")
TABLES = {
    "shared": ("generator.tie=embeddings", "optim.clip_by=network"),
    "disentangled": ("generator.tie=gdes", "optim.ema=0.9", "data.batch_size=8,16@0.5"),
    "untied": ("generator.tie=none", "data.batch_size=16", "train.grad_accumulation=2"),
}
OTHERS = {
    "encoder": ("generator.tie=all", "generator.width=1"),
    "two-stage": ("objective.kind=two-stage", "generator.width=1", "generator.tie=none"),
    "generator-first": ("objective.generator_first=0.5", "generator.tie=gdes"),
    "electric": ("objective.kind=electric",),
    "adversarial": ("objective.kind=adversarial",),
    "replace-mlm": ("objective.kind=replace-mlm",),
    "all-tokens-mlm": ("objective.kind=all-tokens-mlm",),
    "mlm": ("objective.kind=mlm",),
    "unigram": ("generator.kind=unigram", "train.validate_rows=15"),
}


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    monkeypatch.setattr("electra.train.pretrain.measure_peak", lambda *_: 1e12)
    monkeypatch.setattr(launching, "SECONDS", 120)  # one launch trains several runs


def train_all(runs: list, ports: list[int]) -> int:
    """Train several runs, one after the other; starting processes takes longer than a run."""
    for (config, out), port in zip(runs, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        if code := pretrain_on_rank(config, out):
            return code
    return 0


def free_ports(count: int) -> list[int]:
    """Ports for the messages of the runs."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def as_one_file_each(out: Path, step: int | None = None) -> Path:
    """Also write the tensors of a checkpoint as one process does."""
    last = checkpoint.checkpoints(out)[-1] if step is None else checkpoint.path_of(out, step)
    others = {"ema.updates": torch.long, "model.stage": torch.int32}
    whole = {
        name: torch.empty(shape, dtype=others.get(name, torch.float32))
        for name, shape in stored_shapes(last / "sharded").items()
    }
    read_shards(last / "sharded", whole)
    for group in {name.partition(".")[0] for name in whole}:
        own = [name for name in whole if name.startswith(f"{group}.")]
        tensors = {name.removeprefix(f"{group}."): whole[name] for name in own}
        save_file(tensors, last / f"{group}.safetensors")
    return out


def exported(out: Path) -> dict[str, torch.Tensor]:
    """All weights in the folders for transformers."""
    folders = checkpoint.checkpoints(out)[-1].glob("*/config.json")
    return {
        f"{path.parent.name} {name}": tensor
        for path in folders
        for name, tensor in load_file(path.with_name("model.safetensors")).items()
    }


def check_exported(out: Path, reference: Path) -> None:
    """Two runs export the same networks."""
    ours, theirs = exported(out), exported(reference)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-3, atol=2e-5, msg=name)


# ------------------------------------------------------------------ equal to one process


@pytest.mark.parametrize(
    ("size", "settings"),
    [
        (2, TABLES),
        (4, TABLES),
        pytest.param(2, OTHERS, marks=pytest.mark.slow),
        pytest.param(4, OTHERS, marks=pytest.mark.slow),
    ],
)
def test_ranks_train_what_one_process_trains(size, settings, tiny, data_folder, tmp_path, launch):
    runs = [(override(tiny, [*FSDP, *settings[k]]), tmp_path / k) for k in settings]
    found = launch(size, train_all, runs, free_ports(len(runs)))
    assert [code for code, _ in found] == [0] * size, found
    assert f"sharded over {size} processes, in a unit for each of" in found[0][1]
    assert "Kernels: plain modules, sharded." in found[0][1]
    assert not any(text for _, text in found[1:])
    for config, out in runs:
        reference = alone(config, tmp_path / f"{out.name} alone")
        check_exported(out, reference)
        _, metrics = evaluate(out, data_folder, config.train.validate_rows)  # by one process
        held_out = [line for line in read_metrics(reference) if line["kind"] == "held_out"][-1]
        for name, value in metrics.items():
            assert value == pytest.approx(held_out[name], rel=2e-3, abs=1e-4), name
        check_equal(as_one_file_each(out), reference)


@pytest.mark.slow
def test_compiled_layers_and_bf16(tiny, tmp_path, launch):
    """Compiled layers compute the same; in bf16, losses are the same within its rounding."""
    plain, low = override(tiny, FSDP), override(tiny, [*FSDP, "train.precision=bf16"])
    runs = [
        (override(plain, ["train.compile=true"]), tmp_path / "compiled"),
        (low, tmp_path / "bf16"),
    ]
    found = launch(2, train_all, runs, free_ports(len(runs)))
    assert [code for code, _ in found] == [0, 0], found
    assert "The networks run as layers compiled by torch.compile" in found[0][1]
    check_equal(as_one_file_each(tmp_path / "compiled"), alone(plain, tmp_path / "plain"))
    losses = [
        [line["loss"] for line in read_metrics(out) if line["kind"] == "train"]
        for out in (tmp_path / "bf16", alone(low, tmp_path / "bf16 alone"))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize("kind", ["fsdp", pytest.param("ddp", marks=pytest.mark.slow)])
def test_a_run_resumes_on_any_number_of_ranks(kind, tiny, tmp_path, launch, console, monkeypatch):
    """4 -> 2 -> 1 -> 4 ranks end like one that was never stopped."""
    config = override(tiny, [*PLAIN, "optim.ema=0.9", f"train.data_parallel={kind}"])
    out, reference = tmp_path / "run", alone(config, tmp_path / "alone")
    launch(4, pretrain_on_rank, config, out, (3, 2))
    launch(2, pretrain_on_rank, config, out, (2, 1))
    last = checkpoint.checkpoints(out)[-1]
    assert (last / "sharded").is_dir() == (kind == "fsdp")
    with monkeypatch.context() as patch:
        patch.setattr(Step, "__call__", stopping(1, 0))
        assert resume(out, console) == 128 + signal.SIGTERM
    assert "Resuming at step 5 on cpu" in console.file.getvalue()
    assert not (checkpoint.checkpoints(out)[-1] / "sharded").exists()
    found = launch(4, pretrain_on_rank, config, out)
    assert [code for code, _ in found] == [0] * 4, found
    assert "Resuming at step 6 on 4 processes" in found[0][1]
    check_exported(out, reference)
    check_equal(as_one_file_each(out) if kind == "fsdp" else out, reference)


# ------------------------------------------------------------------ written in the background


def with_slow_disk(config, out: Path, then: str) -> int:
    """The second rank writes its part of step 2 not before step 4, and fails with that of step 4.

    `then` says how: its disk is full, or it is killed.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter as Writer

    second, go = os.environ["RANK"] == "1", out / "go"
    write, take, steps = Writer.write_data, Step.__call__, []

    def write_data(self, plan, planner):
        if second and "step-00000002" in str(self.path):
            while not go.exists():
                time.sleep(0.01)
        elif second and "step-00000004" in str(self.path):
            if then == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            time.sleep(3600)
        return write(self, plan, planner)

    def step(self, *arguments):
        steps.append(1)
        if len(steps) == 4 and second:
            print(sorted(path.name for path in (out / "checkpoints").iterdir()))
            go.touch()
        if len(steps) == 6 and second and then == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, *arguments)

    Writer.write_data, Step.__call__ = write_data, step
    try:
        return pretrain_on_rank(config, out)
    except UserError as error:
        print(error)
        return 2
    except QuietError:
        return 2


@pytest.mark.parametrize("then", ["full", "killed"])
def test_training_does_not_wait_for_the_disk(then, tiny, tmp_path, launch):
    """And a checkpoint that fails is reported and leaves the one before, which resumes."""
    config = override(tiny, [*FSDP, "train.checkpoint_every=2", "train.keep_last=9"])
    out, reference = tmp_path / "run", alone(config, tmp_path / "alone")
    (code, text), (code_of_second, seen) = launch(2, with_slow_disk, config, out, then)
    assert seen.startswith("['.step-00000002.partial']")
    assert code == 2
    if then == "full":
        assert code_of_second == 2
        assert "The disk is full: the checkpoint of step 4 could not be written" in text
    else:
        assert code_of_second == -signal.SIGKILL
        assert "Rank 0 has lost the others" in text
    assert [path.name for path in checkpoint.checkpoints(out)] == ["step-00000002"]
    as_one_file_each(out)  # the weights of step 2, though it was written in step 4
    for name in ("model", "optimizer"):
        theirs = load_file(checkpoint.path_of(reference, 2) / f"{name}.safetensors")
        for key, tensor in load_file(checkpoint.path_of(out, 2) / f"{name}.safetensors").items():
            torch.testing.assert_close(tensor, theirs[key], rtol=1e-3, atol=2e-5, msg=key)
    alone(config, out)
    check_equal(out, reference)


def die_in_the_backward_pass(config, out: Path) -> int:
    """The second rank, in its sixth step; the first waits for it in a message of FSDP2."""
    inject("backward", "before", "killed", 1, 6)
    try:
        return pretrain_on_rank(config, out)
    except UserError as error:
        print(error)
        return 2


def test_a_rank_that_dies_in_the_backward_pass(tiny, tmp_path, launch):
    config = override(tiny, [*FSDP, "train.checkpoint_every=3"])
    out, reference = tmp_path / "run", alone(config, tmp_path / "alone")
    (code, text), (killed, _) = launch(2, die_in_the_backward_pass, config, out)
    assert (code, killed) == (2, -signal.SIGKILL)
    *_, message = text.splitlines()
    assert re.fullmatch(r"Rank 0 has lost the others: .* with --resume\. \([^/]*\)", message)
    assert [code for code, _ in launch(2, pretrain_on_rank, config, out)] == [0, 0]
    as_one_file_each(out)
    check_equal(out, reference)


def print_messages(config, out: Path) -> int:
    """For each step, print the bytes of the whole tensors in FSDP2's own messages."""
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives as fsdp

    messages, take = [], Step.__call__

    def counted(call, name: str):
        def send(self, **tensors):
            messages.append(tensors[name].nbytes)
            return call(self, **tensors)

        return send

    def step(self, *arguments):
        messages.clear()
        result = take(self, *arguments)
        print("sent", len(messages), sum(messages))
        return result

    gather, reduce = fsdp.DefaultAllGather, fsdp.DefaultReduceScatter
    gather.__call__ = counted(gather.__call__, "output_tensor")
    reduce.__call__ = counted(reduce.__call__, "input_tensor")
    Step.__call__ = step
    return pretrain_on_rank(config, out)


def test_what_a_step_sends(tiny, tmp_path, launch):
    """As docs/many-gpus.md says: two all-gathers and a reduce-scatter of each layer, one of each
    of the rest."""
    config = override(tiny, [*FSDP, "train.budget=2steps"])
    (code, text), _ = launch(2, print_messages, config, tmp_path / "run")
    assert code == 0
    alone(config, tmp_path / "alone")
    moments = tensors(tmp_path / "alone", "optimizer")
    weights = {name: tensor for name, tensor in moments.items() if name.startswith("mean.")}
    layers = {(k.split(".")[1], k.split(".")[4]) for k in weights if ".layers." in k}
    sent = sum(
        # Rows are padded to the number of ranks
        (3 if ".layers." in name else 2) * (len(w) + len(w) % 2) * w[0].nbytes
        for name, w in weights.items()
    )
    steps = [line for line in text.splitlines() if line.startswith("sent")]
    assert steps == [f"sent {3 * len(layers) + 2} {sent}"] * 2


@pytest.fixture
def sharded(tiny, tmp_path, launch) -> Path:
    """A run of one step."""
    config = override(tiny, ["train.budget=1steps", "train.data_parallel=fsdp"])
    launch(2, pretrain_on_rank, config, tmp_path / "run")
    return tmp_path / "run"


def test_a_checkpoint_of_files_without_pickle(sharded, tmp_path, console):
    (last,) = checkpoint.checkpoints(sharded)
    names = {str(path.relative_to(last)) for path in last.rglob("*") if path.is_file()}
    assert {Path(name).suffix for name in names} <= {".json", ".yaml", ".safetensors", ".txt"}
    assert len([name for name in names if name.startswith("sharded/")]) == 2
    assert electra.load(sharded).detect("the old sailor went to the harbour .")
    (last / "sharded" / "shard-00001-model-00001-of-00001.safetensors").unlink()
    for change in ("train.data_parallel=fsdp", "train.data_parallel=ddp"):
        with pytest.raises(UserError, match=r"cannot be read \(a part of .* is missing\)"):
            resume(sharded, console, changes=[change])


# ------------------------------------------------------------------ what it says


def test_one_process_has_nothing_to_shard(tiny, tmp_path, console):
    config = override(tiny, ["train.budget=1steps", "train.data_parallel=fsdp"])
    assert start(config, tmp_path / "run", console) == 0
    assert "shards over several processes: with one it does nothing" in console.file.getvalue()


def test_processes_that_share_a_gpu_are_refused():
    ranks, cuda = Ranks(size=2, shared_gpus=True), torch.device("cuda")
    assert not is_sharded("ddp", ranks, cuda)
    with pytest.raises(UserError, match="a GPU for each process"):
        is_sharded("fsdp", ranks, cuda)
