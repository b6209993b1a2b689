"""What to do when memory runs out, at the start or in the middle of a run."""

import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from electra.device import autocast, available_memory
from electra.errors import UserError, is_out_of_memory
from electra.train import checkpoint
from electra.train.run import Run
from electra.train.step import Step

REFUSED_EXCESS = 3
"""How many times the available memory a micro-batch needs when it is refused without a try."""


def more_micro_batches(run: Run) -> int | None:
    """The next larger `train.grad_accumulation` that divides every batch, if there is one."""
    batch = math.gcd(*(phase.batch_size for phase in run.phases)) // run.ranks.size
    twice = range(2 * run.loop.grad_accumulation, batch + 1)
    return next((n for n in twice if batch % n == 0), None)


def advise_at_start(run: Run) -> str:
    """What to do if the first step does not fit."""
    rows = run.step.micro_batch
    if rows == 1:
        return (
            "Not even one row fits into the memory of this device: use a smaller model or shorter "
            "rows, or set train.activation_checkpointing=true."
        )
    parts = more_micro_batches(run)
    more = f"set train.grad_accumulation={parts} (same result, smaller micro-batches), or "
    length = f" of {run.phase.seq_length} tokens" if len(run.phases) > 1 else ""
    return (
        f"A batch of {rows} rows{length} does not fit into the memory of this device: "
        f"{more if parts else ''}use a smaller data.batch_size or model."
    )


def check_memory(run: Run, rows: Tensor) -> None:
    """Refuse micro-batches that clearly exceed the memory of the CPU.

    Linux grants the memory and kills the process, without an error, when it is used.
    """
    step = run.step
    if step.device.type != "cpu" or step.sharded or step.micro_batch < 2:
        return
    one, two = (saved_bytes(step, rows[:n]) for n in (1, 2))
    if (two - one) * step.micro_batch > REFUSED_EXCESS * available_memory():
        raise UserError(advise_at_start(run))


def saved_bytes(step: Step, rows: Tensor) -> int:
    """The size of what a forward pass keeps for the backward pass, weights included."""
    kept = {}

    def keep(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage  # of views only one

    saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved)
    with saved, autocast(step.device, step.dtype, cache=False):
        step.objective(*step.objective.mask_batch(rows))
    return sum(storage.nbytes() for storage in kept.values())


@contextmanager
def explain_out_of_memory(run: Run) -> Iterator[None]:
    """Turn a lack of memory in the middle of a run into a sentence that says how to continue."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_out_of_memory(error):
            raise
        parts = more_micro_batches(run)
        less = f" train.grad_accumulation={parts}" if parts else ""
        why = " with more micro-batches, which gives the same result" if parts else ""
        last = checkpoint.checkpoints(run.folder)
        kept = f"{last[-1]} is kept" if last else "no checkpoint was written yet"
        raise UserError(
            f"Memory ran out in step {run.state.step + 1}; {kept}. Free memory, or continue{why}: "
            f"electra pretrain --resume --out {shlex.quote(str(run.folder))}{less}"
        ) from None
