"""The processes of a run under `torchrun`: ranks, and the few messages between them.

A rank is one process with one device. With one process nothing of torch.distributed is imported,
and every method returns at once.
"""

import io
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from electra.device import check_one_process, launched_processes, set_random_state
from electra.errors import QuietError, UserError
from electra.run_dir import lock_run_dir

T = TypeVar("T")

TIMEOUT = timedelta(minutes=15)
"""How long a rank waits for the others: longer than the first rank needs for a checkpoint."""
ENVIRONMENT = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What `torchrun` sets for each process, besides `WORLD_SIZE`."""


@dataclass(slots=True)
class Traffic:
    """What a rank has given to all-reduces so far, counted where they are called."""

    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This process among those of a run, and the messages between them.

    Tensors on a GPU are sent by NCCL, all others by gloo. All ranks must call the same methods in
    the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The rank among those of this machine, which decides the GPU."""
    shared_gpus: bool = False
    """Whether this machine has more ranks than GPUs, so that gloo sends their tensors too."""
    nccl: bool = False
    """Whether NCCL sums tensors on GPUs; a CUDA graph can capture its messages, but not gloo's."""
    traffic: Traffic = field(default_factory=Traffic, repr=False, compare=False)

    @property
    def first(self) -> bool:
        """Whether this rank writes files and prints."""
        return self.rank == 0

    def share(self, count: int) -> range:
        """This rank's part of `count` rows: contiguous, so that the ranks' parts are in order."""
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def place(self, device: torch.device) -> torch.device:
        """The device of this rank: one of this machine's GPUs, or the CPU."""
        if self.size == 1 or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise UserError(
                f"Several processes cannot train on '{device.type}': set train.device=cpu, or "
                "start electra without torchrun."
            )
        device = torch.device("cuda", self.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device

    def sum_(self, tensor: Tensor) -> Tensor:
        """Replace a tensor by its sum over all ranks, which is the same to the last bit on each."""
        if self.size > 1:
            import torch.distributed as dist

            with self._expecting_all():
                dist.all_reduce(tensor)
            self.traffic.bytes += tensor.nbytes
        return tensor

    def agree(self, signal: int, seconds: float) -> tuple[int, float]:
        """Return the signal that any rank has received (0 for none), and the first rank's clock."""
        if self.size == 1:
            return signal, seconds
        import torch.distributed as dist

        values = torch.tensor([signal, seconds if self.first else 0.0], dtype=torch.float64)
        with self._expecting_all():
            dist.all_reduce(values, dist.ReduceOp.MAX)
        self.traffic.bytes += values.nbytes
        return int(values[0]), float(values[1])

    def broadcast(self, value: T) -> T:
        """Return the first rank's value."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        with self._expecting_all():
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def broadcast_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by those of the first rank."""
        if self.size > 1:
            import torch.distributed as dist

            with self._expecting_all():
                for tensor in tensors:
                    dist.broadcast(tensor.detach(), src=0)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        values: list[T | None] = [None] * self.size
        with self._expecting_all():
            dist.all_gather_object(values, value)
        return values  # type: ignore[return-value]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do something without messages; an error on any rank ends all of them.

        The first rank raises a `UserError`, and thus reports it; the others raise `QuietError`. Any
        other error is raised by the rank that has it.
        """
        if self.size == 1:
            yield
            return
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        if not self.agree(error is not None, 0.0)[0]:
            return
        messages = self.gather(str(error) if isinstance(error, UserError) else "")
        if error is not None and not isinstance(error, UserError):
            raise error
        message = next(filter(None, messages), "")
        raise (UserError if self.first and message else QuietError)(message)

    @contextmanager
    def explain_lost_ranks(self) -> Iterator[None]:
        """Turn errors of the messages that FSDP2 sends itself into a `UserError`."""
        try:
            yield
        except RuntimeError as error:
            from torch.distributed import DistError

            if isinstance(error, DistError) or "/gloo/" in str(error):
                raise self._lost(error) from None
            raise

    @contextmanager
    def _expecting_all(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # all errors of torch.distributed are of this class
            raise self._lost(error) from None

    def _lost(self, error: RuntimeError) -> UserError:
        reason = str(error).strip().splitlines()[0]
        reason = re.sub(r"^\[\S+\] |\. This is typically.*", "", reason)  # gloo's place and advice
        return UserError(
            f"Rank {self.rank} has lost the others: one of them ended, or did not answer for "
            f"{TIMEOUT.seconds // 60} minutes; its own message says why. The run can be "
            f"continued with --resume. ({reason})"
        )


ONE_RANK = Ranks()
"""A run of one process."""


@contextmanager
def open_ranks() -> Iterator[Ranks]:
    """Connect the processes that `torchrun` started; without it, there is one."""
    size = launched_processes()
    if size == 1:
        yield ONE_RANK
        return
    for name in ENVIRONMENT:
        if name not in os.environ:
            raise UserError(
                f"WORLD_SIZE is {size}, but {name} is not set: start several processes with "
                "torchrun, or one without WORLD_SIZE."
            )
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    gpus = torch.cuda.device_count() if dist.is_nccl_available() else 0
    shared = 0 < gpus < int(os.environ["LOCAL_WORLD_SIZE"])  # NCCL needs a GPU for each rank
    nccl = gpus > 0 and not shared
    ranks = Ranks(
        rank=int(os.environ["RANK"]),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        shared_gpus=shared,
        nccl=nccl,
    )
    with ranks._expecting_all():
        store, *_ = next(rendezvous("env://", timeout=TIMEOUT))
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun keeps its store when it restarts the processes, with the addresses of the old
            # ones in it (github.com/pytorch/pytorch/issues/135712).
            store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=store,
            rank=ranks.rank,
            world_size=size,
            timeout=TIMEOUT,
        )
    if not ranks.first:
        warnings.simplefilter("ignore")  # the first rank gives the same ones
    yield ranks
    # After an error the others may be gone, and this process ends in any case.
    dist.destroy_process_group()


def check_batches(ranks: Ranks, batch_sizes: Iterable[int], grad_accumulation: int) -> None:
    """Refuse batches that do not divide evenly over the ranks and their micro-batches."""
    parts = ranks.size * grad_accumulation
    for batch in batch_sizes:
        if batch % parts:
            micro = f" with {grad_accumulation} micro-batches each" if grad_accumulation > 1 else ""
            raise UserError(
                f"A batch of {batch} rows does not divide over {ranks.size} processes{micro}: "
                f"change data.batch_size (it counts the rows of all processes), "
                f"{'train.grad_accumulation, ' if grad_accumulation > 1 else ''}or start another "
                "number of processes."
            )


def steps_per_agreement(size: int, step: int) -> int:
    """Steps from one message about signal and clock to the next.

    gloo needs longer for it with more ranks, so 8n of them send it in every n-th step only; never
    less often than in every hundredth part of the run so far, from which a time budget estimates
    the pace.
    """
    return max(1, min(size // 8, step // 100))


def gather_random_states(ranks: Ranks, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the random states of all ranks for a checkpoint; those of the first have no prefix."""
    states = ranks.gather(state)
    others = {
        f"rank{rank}.{name}": tensor
        for rank, state in enumerate(states)
        for name, tensor in state.items()
        if rank
    }
    return states[0] | others


def set_rank_random_state(
    ranks: Ranks, seed: int, step: int, stored: Mapping[str, Tensor] | None
) -> None:
    """Give each rank but the first its own random state, which only dropout uses.

    It is the one that a checkpoint stored, or, if that had fewer ranks, a new one.
    """
    if ranks.first:
        return
    key = np.random.SeedSequence([seed, ranks.rank, step]).generate_state(1, np.uint64)
    torch.manual_seed(int(key[0]))
    prefix = f"rank{ranks.rank}."
    own = {
        name.removeprefix(prefix): tensor
        for name, tensor in (stored or {}).items()
        if name.startswith(prefix)
    }
    if own:
        set_random_state(own)


def check_launched(ranks: Ranks) -> None:
    """Refuse to train as a single process in each process of a launcher."""
    if ranks.size == 1:
        check_one_process()


def console_of(ranks: Ranks, console: Console) -> Console:
    """The console of the first rank; the others print nothing."""
    return console if ranks.first else Console(file=io.StringIO(), quiet=True)


@contextmanager
def locked_by_first(ranks: Ranks, out: Path) -> Iterator[None]:
    """Let the first rank lock the run folder for all."""
    with ExitStack() as opened:
        with ranks.together():
            if ranks.first:
                opened.enter_context(lock_run_dir(out))
        yield


def describe_cuda(ranks: Ranks, cuda_graph: bool) -> str:
    """How several processes on CUDA launch a step and sum its gradients."""
    if ranks.nccl and cuda_graph:
        how = "each step is one CUDA graph, in which NCCL sums the gradients"
    elif ranks.nccl:
        how = "NCCL sums the gradients, and the host launches each kernel"
    elif cuda_graph:
        how = "each step is three CUDA graphs, between which gloo sums through the host"
    else:
        how = "gloo sums the gradients through the host, which launches each kernel"
    return f"With several processes: {how}{' (they share a GPU)' * ranks.shared_gpus}."
