"""The state of a pre-training run, as the training loop uses it."""

import gc
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from electra.models.encoder import Encoder, set_dropout_
from electra.objectives.objective import Objective
from electra.optim.adam import OptimConfig
from electra.text.shards import Shards
from electra.train.accelerate import describe_kernels
from electra.train.budget import Budget
from electra.train.checkpoint import TrainState
from electra.train.cuda_graph import GraphedStep
from electra.train.data import held_out_rows, stream
from electra.train.distributed import Ranks
from electra.train.health import HealthCheck
from electra.train.metrics_log import MetricsLog
from electra.train.phases import Phase, phase_at
from electra.train.progress_view import ProgressView
from electra.train.scoring import Scorer
from electra.train.step import Step

if TYPE_CHECKING:
    from electra.train.loop import LoopConfig
    from electra.train.sharded_checkpoint import ShardedSaver


@dataclass(slots=True, kw_only=True)
class Run:
    """The state of a pre-training run and where its results go."""

    folder: Path
    loop: "LoopConfig"
    optim: OptimConfig
    budget: Budget
    step: Step
    state: TrainState
    phases: tuple[Phase, ...]
    shards: dict[int, Shards]
    """The data, by sequence length."""
    flops_per_row: dict[int, int]
    peak_flops: float
    """FLOP/s that a large matmul reaches on this device, times the ranks."""
    pad_id: int
    metrics_log: MetricsLog
    view: ProgressView
    health: HealthCheck
    phase: Phase = field(init=False)
    """The current phase: `begin_phase` changes it."""
    held_out: Tensor = field(init=False)
    """Held-out rows of the phase's sequence length."""
    graphed_step: GraphedStep | None = None
    """The step as a CUDA graph, captured by the dry run."""
    scorer: Scorer | None = None
    """The task on which checkpoints are scored."""
    score_every: int = 1
    """Checkpoints from one score to the next."""
    agreed_seconds: float = field(init=False)
    """The training time of the first rank when the ranks last agreed on it."""
    saver: "ShardedSaver | None" = None
    """Writes the checkpoints of a sharded run in the background."""

    def __post_init__(self) -> None:
        self.agreed_seconds = self.state.seconds
        self.set_phase(phase_at(self.phases, self.progress))

    def set_phase(self, phase: Phase) -> None:
        """Set what depends on the phase; the CUDA graph of another one is freed."""
        self.phase = phase
        if not all(phase.dropout for phase in self.phases):
            for module in self.objective.modules():
                if isinstance(module, Encoder):
                    set_dropout_(module, on=phase.dropout)
        self.step.micro_batch = phase.batch_size // self.loop.grad_accumulation // self.ranks.size
        self.held_out = held_out_rows(self.shards[phase.seq_length], self.loop.validate_rows)
        self.free_cuda_graph()

    def free_cuda_graph(self) -> None:
        """Free the CUDA graph and its memory, once nothing else refers to it."""
        if self.graphed_step is not None:
            self.graphed_step = None
            gc.collect()
            torch.cuda.empty_cache()

    @property
    def objective(self) -> Objective:
        return self.step.objective

    @property
    def ranks(self) -> Ranks:
        return self.step.ranks

    @property
    def flops(self) -> int:
        return sum(n * self.flops_per_row[k] for k, n in self.state.rows_of_length.items())

    @property
    def progress(self) -> float:
        s = self.state
        return self.budget.progress(
            steps=s.step, tokens=s.tokens, flops=self.flops, seconds=s.seconds
        )

    @property
    def position(self) -> int:
        """The position in the stream of rows of the current length."""
        return self.state.rows_of_length.get(self.phase.seq_length, 0)

    def batches(self) -> Generator[Tensor, None, None]:
        """This rank's rows of the batches of the current phase, from the current position on."""
        shards = self.shards[self.phase.seq_length]
        device = self.step.device
        return stream(
            shards, self.phase.batch_size, self.loop.seed, self.position, device, self.ranks
        )

    @property
    def uses_cuda_graph(self) -> bool:
        """Whether steps are replayed as CUDA graphs."""
        on_cuda = self.step.device.type == "cuda"
        return self.loop.cuda_graph and on_cuda and not self.step.sharded

    def kernels(self) -> str:
        """The kernels that compute the networks in the current phase."""
        if self.step.sharded:
            return "plain modules, sharded" + ", compiled" * self.loop.compile
        return describe_kernels(self.objective, self.step.micro_batch, self.phase.seq_length)

    @property
    def schedule_progress(self) -> float:
        """Progress within the part of the run that the learning rate schedule covers."""
        begin, end = self.objective.schedule_span
        return min(1.0, (self.progress - begin) / (end - begin))

    @property
    def schedule_steps(self) -> float:
        """Steps of that part, estimated from the pace so far."""
        begin, end = self.objective.schedule_span
        done = self.state.step
        return (end - begin) * done / self.progress if done else 1.0
