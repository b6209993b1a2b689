"""On CUDA devices: FSDP2 with NCCL, in bf16 and compiled, and its checkpoints."""

import pytest
import torch
from tests.train import test_fsdp
from tests.train.launching import PLAIN, alone, check_equal
from tests.train.test_fsdp import as_one_file_each, free_ports, train_all

from electra.config import override
from electra.train.distributed import Ranks
from electra.train.fsdp import gathered, shard_
from electra.train.metrics_log import read_metrics
from electra.train.validation import validate

pytestmark = pytest.mark.gpu
several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
_settings = test_fsdp._settings


@pytest.fixture
def one_rank(monkeypatch):
    """A process group of this process alone, with NCCL."""
    import torch.distributed as dist

    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(free_ports(1)[0]))
    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    yield Ranks()
    dist.destroy_process_group()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("tie", ["embeddings", "gdes", "none"])
def test_units_of_one_rank_compute_what_the_modules_compute(
    compiled, tie, tiny, make_step, one_rank
):
    """In bf16 on one GPU: two steps, and validation between them."""
    settings = ["model.dropout=0", "model.attention_dropout=0", "train.device=cuda"]
    config = override(tiny, [*settings, f"generator.tie={tie}", "train.precision=bf16"])
    off = override(config, ["train.fused_kernels=off"])
    losses = []
    for shard in (False, True):
        step, batches = make_step(off)
        step.objective.cuda()
        if shard:
            shard_(step.objective, one_rank, compiled=compiled)
        step.optimizer = type(step.optimizer)([{"params": [*step.objective.parameters()]}])
        found = []
        for rows in batches[:2]:
            step.objective.train()
            found.append(step(rows.cuda(), 1e-3))
            with gathered(step.objective):
                metrics = validate(step.objective, batches[2], 4, torch.bfloat16)
            found.append(torch.tensor([metrics["loss"]], device="cuda"))
        losses.append(torch.cat(found))
    # Losses and counts; rounding decides a few predictions otherwise
    is_count = losses[0] == losses[0].round()
    allowed = 3e-2 * losses[0].abs() + torch.where(is_count, 2, 5e-3)
    assert ((losses[0] - losses[1]).abs() <= allowed).all(), losses


@several
def test_two_gpus_train_what_one_trains(tiny, tmp_path, launch):
    """In fp32 with NCCL: shared, disentangled and untied tables, and a checkpoint of each."""
    base = [*PLAIN, "train.device=cuda", "train.precision=fp32", "train.data_parallel=fsdp"]
    runs = [
        (override(tiny, [*base, *settings]), tmp_path / name)
        for name, settings in test_fsdp.TABLES.items()
    ]
    found = launch(2, train_all, runs, free_ports(len(runs)))
    assert [code for code, _ in found] == [0, 0], found
    for config, out in runs:
        check_equal(as_one_file_each(out), alone(config, tmp_path / f"{out.name} alone"))


@several
def test_two_gpus_in_bf16_learn_what_one_learns(tiny, tmp_path, launch):
    """Plain modules and compiled layers, against the fused kernels in a CUDA graph."""
    low = override(tiny, [*PLAIN, "train.device=cuda"])
    sharded = override(low, ["train.data_parallel=fsdp"])
    runs = [
        (sharded, tmp_path / "plain"),
        (override(sharded, ["train.compile=true"]), tmp_path / "compiled"),
    ]
    found = launch(2, train_all, runs, free_ports(len(runs)))
    assert [code for code, _ in found] == [0, 0], found
    assert "the fused kernels and the CUDA graph need whole weights" in found[0][1]
    expected = losses_of(alone(low, tmp_path / "alone"))
    for _, out in runs:
        assert losses_of(out) == pytest.approx(expected, rel=1e-2)


def losses_of(out) -> list[float]:
    return [line["loss"] for line in read_metrics(out) if line["kind"] == "train"]
