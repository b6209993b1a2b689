"""A lack of memory is a sentence: on a CPU before the first step, and in the middle of a run."""

import shlex
from types import SimpleNamespace

import pytest
import torch

from electra.errors import UserError
from electra.train import checkpoint, memory
from electra.train.pretrain import resume, start
from electra.train.step import Step


def fail_at(step: int, error: Exception, monkeypatch) -> None:
    original, count = Step.__call__, iter(range(1, 1000))

    def call(self, *given):
        if next(count) == step:
            raise error
        return original(self, *given)

    monkeypatch.setattr(Step, "__call__", call)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
)
def test_the_sentence_can_be_followed(error, tiny, tmp_path, console, monkeypatch):
    out = tmp_path / "my run"
    fail_at(13, error, monkeypatch)
    with pytest.raises(UserError, match=r"ran out in step 13; .*step-00000010 is kept") as caught:
        start(tiny, out, console)
    command = shlex.split(str(caught.value).rpartition("electra ")[2])
    assert command == ["pretrain", "--resume", "--out", str(out), "train.grad_accumulation=2"]
    monkeypatch.undo()
    assert resume(out, console, changes=command[-1:]) == 0
    assert checkpoint.checkpoints(out)[-1].name == "step-00000020"


def test_without_a_checkpoint_and_with_single_rows(
    tiny, with_train, tmp_path, console, monkeypatch
):
    fail_at(3, MemoryError(), monkeypatch)
    with pytest.raises(UserError, match=r"no checkpoint was written yet.*--out \S+$"):
        start(with_train(tiny, grad_accumulation=8, report_every=1), tmp_path / "run", console)


def test_what_a_cpu_clearly_cannot_hold_is_not_tried(
    tiny, with_train, make_step, tmp_path, console, monkeypatch
):
    """The system would kill the process. With the advice, half of it at once, it is tried."""
    step, (rows, *_) = make_step(tiny)
    one, all_rows = (memory.saved_bytes(step, rows[:n]) for n in (1, 8))
    needed = (all_rows - one) / 7 * 8
    monkeypatch.setattr(memory, "available_memory", lambda: 0.8 * needed / memory.REFUSED_EXCESS)
    with pytest.raises(UserError, match=r"batch of 8 rows does not fit.*train\.grad_accumul\S+=2"):
        start(tiny, tmp_path / "run", console)
    assert not (tmp_path / "run").exists()
    assert start(with_train(tiny, grad_accumulation=2), tmp_path / "run", console) == 0


def test_what_a_forward_pass_saves_is_counted_once():
    weight = torch.ones(3, requires_grad=True)

    def objective(x):
        y = x * weight  # keeps x
        return (y.exp() * x.view(-1, 3)).sum()  # exp keeps its result, and the product both of them

    objective.mask_batch = lambda rows: (rows,)
    step = SimpleNamespace(objective=objective, device=torch.device("cpu"), dtype=torch.float32)
    assert memory.saved_bytes(step, torch.ones(5, 3)) == 2 * 5 * 3 * 4


def test_other_errors_are_not_hidden(tiny, tmp_path, console, monkeypatch):
    fail_at(3, RuntimeError("CUDA error: an illegal memory access was encountered"), monkeypatch)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        start(tiny, tmp_path / "run", console)
