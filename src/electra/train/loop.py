"""The training loop: what happens is what is written here."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from electra.device import Device, Precision, autocast, random_state, set_random_state
from electra.errors import UserError
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import LossOutput, Objective
from electra.optim.optimizer import Optimizer
from electra.optim.schedule import OptimConfig, learning_rate, warmup_share
from electra.run_dir import GracefulStop
from electra.train import checkpoint
from electra.train.budget import Budget
from electra.train.checkpoint import TrainState
from electra.train.cuda_graph import GraphedStep, capture_cuda_graph
from electra.train.health import HealthCheck, check_finite
from electra.train.metrics_log import LoggerName, MetricsLog
from electra.train.progress_view import ProgressView
from electra.train.validation import validate

FusedKernels = Literal["off", "triton", "auto"]
TRIAL = 500
"""Steps; a shorter run tries whether things work, and cannot be blamed for not learning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """How the run goes."""

    budget: str = "1000000steps"
    """How long: steps, tokens, FLOPs or time (10000steps, 1e9tokens, 1e16flops, 25min, 2h); also
    given by --budget."""
    seed: int = 0
    """Seed of initialisation, data order, masks, samples and dropout."""
    grad_accumulation: int = 1
    """Micro-batches per step; more of them need less memory and give the same gradient."""
    device: Device = "auto"
    """Where to train; auto takes CUDA, then MPS, then the CPU."""
    precision: Precision = "auto"
    """Arithmetic of the products; auto is bf16 on CUDA and fp32 elsewhere. Weights stay fp32."""
    compile: bool = False
    """Compile the forward and backward pass with torch.compile."""
    cuda_graph: bool = True
    """On CUDA, replay each step as one CUDA graph, so that small kernels do not wait for the host;
    false launches them one by one."""
    fused_kernels: FusedKernels = "auto"
    """On CUDA, compute with the package's own Triton kernels: the networks in bf16, unless
    train.compile is set, and the optimizer of a graph; false uses torch's operations, which give
    the same numbers, slower."""
    activation_checkpointing: bool = False
    """With these kernels, compute each layer again on the way back instead of keeping what it
    computed: a third slower, with a fraction of the memory."""
    report_every: int = 100
    """Steps between two reports; between them the host never waits for the device."""
    validate_every: int = 2000
    """Steps between two looks at held-out text."""
    validate_rows: int = 1024
    """Held-out rows that a look takes."""
    checkpoint_every: int = 10000
    """Steps between two checkpoints; one is always written at the end."""
    keep_last: int = 3
    """Checkpoints to keep, the newest ones."""
    keep_best: bool = True
    """Also keep the checkpoint with the lowest held-out loss."""
    logger: LoggerName = "none"
    """Also send the figures to tensorboard, trackio or wandb; metrics.jsonl is always written."""

    def __post_init__(self) -> None:
        counts = ("grad_accumulation", "report_every", "validate_every", "validate_rows")
        for name in (*counts, "checkpoint_every", "keep_last"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1.")
        if not 0 <= self.seed < 2**63:
            raise UserError("train.seed is a whole number from 0 on, below 2 to the power of 63.")


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything that a running pre-training has in its hands."""

    folder: Path
    loop: LoopConfig
    optim: OptimConfig
    budget: Budget
    objective: Objective
    forward: Callable[..., LossOutput]
    """The objective as it is called: compiled, or itself."""
    optimizer: Optimizer
    state: TrainState
    dtype: torch.dtype
    micro_batch: int
    flops_per_row: int
    peak: float
    pad_id: int
    held_out: Tensor
    metrics_log: MetricsLog
    view: ProgressView
    health: HealthCheck
    replay: GraphedStep | None = None
    """The step as a CUDA graph, from the dry run on."""

    @property
    def device(self) -> torch.device:
        return self.objective.maskable.device

    @property
    def progress(self) -> float:
        s = self.state
        flops = s.rows * self.flops_per_row
        return self.budget.progress(steps=s.step, tokens=s.tokens, flops=flops, seconds=s.seconds)

    @property
    def steps(self) -> float:
        """How many a stage has in all, as far as those behind it tell."""
        done = self.state.step
        return self.objective.stage_fraction * done / self.progress if done else 1.0


def train(run: Run, batches: Iterator[Tensor], stop: GracefulStop) -> None:
    """Train until the budget is spent or a signal comes; a checkpoint is left in each case."""
    state, loop = run.state, run.loop
    meter = Meter(run)
    take = run.replay or partial(step, run)  # on CUDA a step is the replay of a graph
    started = time.perf_counter() - state.seconds
    run.objective.train()
    while run.progress < 1 and stop.signal is None:
        rows = next(batches)
        if run.objective.update_progress(run.progress):  # a stage with another loss begins
            state.best = {}
        rate = learning_rate(run.objective.stage_progress(run.progress), run.steps, run.optim)
        run.objective.set_step(state.step)
        meter.add(take(rows, rate))  # tensors, never floats: no hidden wait
        state.step += 1
        state.rows += len(rows)
        state.tokens += len(rows) * (rows.shape[1] - 2)
        state.seconds = time.perf_counter() - started
        state.held_out = {}
        if state.step % loop.report_every == 0:
            meter.report(rate)
        if state.step % loop.validate_every == 0:
            run_validation(run)
        if state.step % loop.checkpoint_every == 0:
            save_checkpoint(run, meter)
    if not state.step:
        return
    if stop.signal is None:
        save_checkpoint(run, meter)
    else:
        meter.check()
        checkpoint.save(run.folder, state, run.objective, run.optimizer, pad_id=run.pad_id)


def step(run: Run, rows: Tensor, rate: float | Tensor) -> Tensor:
    """One update of the networks from one batch; returns its sums and the gradient's norm."""
    batch, masked, totals = run.objective.mask_batch(rows)
    sums = backward(run, batch, masked, totals)
    norm = run.optimizer.step(rate)
    run.optimizer.zero_grad()
    return torch.cat([sums, norm.reshape(1)])


def backward(run: Run, batch: Batch, masked: Masked, totals: Tensor) -> Tensor:
    """Gradients of a batch, micro-batch by micro-batch, with the whole batch's token counts."""
    sums: list[Tensor] = []
    parts = zip(*(t.split(run.micro_batch) for t in (*batch, *masked)), strict=True)
    own = len(batch)  # a batch's tensors come first, then the exercise's
    for part in parts:
        # No cache of casts: a weight is used once, and a graph must not see another one's copies.
        with autocast(run.device, run.dtype, cache=False):
            outcome = run.forward(Batch(*part[:own]), Masked(*part[own:]), totals)
        outcome.loss.backward()
        sums.append(outcome.metric_sums)
    return sum(sums[1:], sums[0])


def dry_run(run: Run, rows: Tensor) -> None:
    """A whole step that changes nothing: too little memory shows now, not in an hour.

    It also compiles, and captures the graph of the step, before the clock of a time budget starts
    to run.
    """
    before = random_state(run.device)
    run.objective.train()
    try:
        if run.loop.cuda_graph and run.device.type == "cuda":
            take = partial(step, run)
            run.replay = capture_cuda_graph(take, run.objective, run.optimizer, rows, run.dtype)
            # The graph keeps its memory, so held-out text needs room beside it
            validate(run.objective, run.held_out[: run.micro_batch], run.micro_batch, run.dtype)
            return
        for _ in run.objective.each_stage():
            backward(run, *run.objective.mask_batch(rows))
        for p in run.objective.parameters():
            run.optimizer.moments(p)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        text = f"{error} {error.__context__}".lower()  # a capture that ends early hides the cause
        if not isinstance(error, RuntimeError) or "memory" in text or "alloc" in text:
            raise UserError(_out_of_memory(run)) from None
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] != "triton":  # which need not be installed
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise UserError(
            f"The kernels of this package cannot be built for this GPU ({reason}): set "
            "train.fused_kernels=off, which gives the same results, slower."
        ) from None
    finally:
        run.optimizer.zero_grad()
        set_random_state(before)


def _out_of_memory(run: Run) -> str:
    if run.micro_batch == 1:
        return (
            "Not even one row fits the memory of this device: take a smaller model or shorter "
            "rows, or set train.activation_checkpointing=true."
        )
    batch = run.micro_batch * run.loop.grad_accumulation
    more = next(n for n in range(2 * run.loop.grad_accumulation, batch + 1) if batch % n == 0)
    return (
        f"A batch of {run.micro_batch} rows does not fit the memory of this device: set "
        f"train.grad_accumulation={more} (same result, smaller pieces), or a smaller "
        "data.batch_size or model."
    )


def run_validation(run: Run) -> None:
    """Measure on held-out text, tell, and name what looks wrong."""
    state = run.state
    state.held_out = validate(run.objective, run.held_out, run.micro_batch, run.dtype)
    run.metrics_log.write("held_out", state.step, tokens=state.tokens, **state.held_out)
    show(run, held_out=state.held_out)
    if state.step < TRIAL:
        return
    warmup = warmup_share(run.steps, run.optim)
    for finding in run.health.check(
        run.objective.stage_progress(run.progress), warmup, state.held_out
    ):
        run.metrics_log.write("event", state.step, message=finding)
        run.view.say(f"warning: {finding}", style="yellow")


def save_checkpoint(run: Run, meter: "Meter") -> None:
    """Save a checkpoint with its held-out figures, remember the best, delete the old."""
    state = run.state
    meter.check()
    if not state.held_out:
        run_validation(run)
    # The losses of a step are older than its update; this is the first look at the new weights.
    check_finite({"held-out loss": state.held_out["loss"]}, state.step, meter.last_good())
    if not state.best or state.held_out["loss"] < state.best["loss"]:
        state.best = {"step": state.step, "loss": state.held_out["loss"]}
    checkpoint.save(run.folder, state, run.objective, run.optimizer, pad_id=run.pad_id)
    checkpoint.prune(run.folder, state, keep_last=run.loop.keep_last, keep_best=run.loop.keep_best)


def show(run: Run, **figures: dict[str, float]) -> None:
    """Renew the live view."""
    s = run.state
    run.view.update(progress=run.progress, seconds=s.seconds, status=f"step {s.step:,}", **figures)


class Meter:
    """Adds up on the device; only `report` and `check` wait for it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = (*run.objective.metric_names, "gradient_norm")
        self.total = torch.zeros(len(self.names), device=run.device)
        self.restart()

    def restart(self) -> None:
        """Begin a new stretch of steps."""
        self.total.zero_()
        self.steps, self.state_before = 0, replace(self.run.state)
        self.time_before = time.perf_counter()

    def add(self, sums: Tensor) -> None:
        self.total += sums
        self.steps += 1

    def check(self) -> dict[str, float]:
        """The sums so far, after making sure that they are numbers."""
        values = dict(zip(self.names, self.total.tolist(), strict=True))
        check_finite(values, self.run.state.step, self.last_good())
        return values

    def last_good(self) -> str:
        """Where to go back to, in words."""
        last = checkpoint.checkpoints(self.run.folder)
        return f"The last good checkpoint is {last[-1]}." if last else "No checkpoint was written."

    def report(self, rate: float) -> None:
        """Write and show the figures since the last report."""
        run, state, values = self.run, self.run.state, self.check()
        seconds = time.perf_counter() - self.time_before
        rows = state.rows - self.state_before.rows
        tokens = state.tokens - self.state_before.tokens
        figures = run.objective.compute_metrics(values) | {
            "gradient_norm": values["gradient_norm"] / self.steps,
            "learning_rate": rate,
            "tokens_per_second": tokens / seconds,
            "peak_share": rows * run.flops_per_row / seconds / run.peak,
        }
        run.metrics_log.write(
            "train", state.step, tokens=state.tokens, seconds=state.seconds, **figures
        )
        show(run, train=figures)
        self.restart()
