"""The training loop: what happens is what is written here."""

import math
import signal
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from electra.device import Device, Precision, random_state, set_random_state
from electra.errors import UserError
from electra.optim.schedule import learning_rate, warmup_share
from electra.run_dir import GracefulStop
from electra.train import checkpoint
from electra.train.cuda_graph import capture_cuda_graph
from electra.train.data import rows_at
from electra.train.distributed import gather_random_states
from electra.train.health import check_finite, check_skipped
from electra.train.memory import advise_at_start
from electra.train.metrics_log import LoggerName, read_metrics
from electra.train.phases import Phase, extend_positions_, phase_at
from electra.train.run import Run
from electra.train.scoring import prune_checkpoints, score_checkpoint
from electra.train.validation import validate

FusedKernels = Literal["off", "triton", "auto"]
MIN_STEPS_FOR_WARNINGS = 500
"""A shorter run only tries whether things work; it is not expected to learn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """The training loop."""

    budget: str = "1000000steps"
    """Length of the run in steps, tokens, FLOPs or time (10000steps, 1e9tokens, 1e16flops, 25min,
    2h); `--budget` sets it too."""
    seed: int = 0
    """Random seed for initialisation, data order, masks, samples and dropout."""
    grad_accumulation: int = 1
    """Micro-batches per step. More of them use less memory and give the same gradient."""
    device: Device = "auto"
    """Device to train on; 'auto' takes CUDA, then MPS, then the CPU."""
    threads: int = 0
    """CPU threads; 0 uses all CPUs that are available, or `OMP_NUM_THREADS` if it is set."""
    precision: Precision = "auto"
    """Precision of the matmuls; 'auto' is bf16 on CUDA and fp32 elsewhere. Weights stay in fp32."""
    compile: bool = False
    """Compile the forward and backward pass with `torch.compile`."""
    cuda_graph: bool = True
    """On CUDA, replay each step as one CUDA graph, so that the GPU never waits for kernel
    launches."""
    fused_kernels: FusedKernels = "auto"
    """On CUDA, use this package's fused kernels for the networks (bf16 only, not with
    `train.compile`) and the optimizer. 'auto' takes the fastest for each size, 'triton' leaves out
    those in CUDA C++, 'off' uses torch's operations. Results agree within bf16 rounding."""
    activation_checkpointing: bool = False
    """With fused kernels, recompute each layer in the backward pass instead of storing its
    activations: 20 to 40 % slower, with less than half of the memory."""
    report_every: int = 100
    """Steps between two reports of training metrics; the host waits for the device only then."""
    validate_every: int = 2000
    """Steps between two validations on held-out text."""
    validate_rows: int = 1024
    """Held-out rows per validation."""
    checkpoint_every: int = 10000
    """Steps between two checkpoints; the last step always writes one."""
    keep_last: int = 3
    """Number of newest checkpoints to keep."""
    keep_best: bool = True
    """Also keep the checkpoint with the lowest held-out loss."""
    logger: LoggerName = "none"
    """Also log metrics to tensorboard, trackio or wandb; `metrics.jsonl` is always written."""

    def __post_init__(self) -> None:
        counts = ("grad_accumulation", "report_every", "validate_every", "validate_rows")
        for name in (*counts, "checkpoint_every", "keep_last"):
            if getattr(self, name) < 1:
                raise UserError(f"train.{name} must be at least 1.")
        if self.threads < 0:
            raise UserError("train.threads must be at least 0.")
        if not 0 <= self.seed < 2**63:
            raise UserError("train.seed must be a whole number from 0 to 2**63 - 1.")


def train(run: Run, stop: GracefulStop) -> signal.Signals | None:
    """Train until the budget is spent or a signal arrives; both end with a checkpoint.

    Returns the signal.
    """
    state, loop = run.state, run.loop
    metrics = MetricAccumulator(run)
    batches, take_step, rate = run.batches(), run.graphed_step or run.step, 0.0
    score_checkpoint(run, stop)  # which the run was stopped in
    started = time.perf_counter() - state.seconds
    run.objective.train()
    if run.step.ema is not None and not state.step:
        run.step.ema.restart()  # from the weights that the run begins with
    while (stopped := agree(run, stop)) is None and run.progress < 1:
        if run.phase is not (phase := phase_at(run.phases, run.progress)):
            metrics.report(rate)  # so that each report belongs to one phase
            state.seconds = time.perf_counter() - started  # with what the device had left to do
            batches.close()
            take_step = run.step  # lets go of the CUDA graph, whose memory the next one needs
            begin_phase(run, phase)
            batches, take_step = run.batches(), run.graphed_step or run.step
            agree(run, stop)  # again, as the progress decides the learning rate
            started = time.perf_counter() - state.seconds  # the clock stood still
        rows = next(batches)
        if run.objective.update_progress(run.progress):  # another loss from here on
            state.best = {}
            if run.step.ema is not None:
                run.step.ema.restart()  # the discriminator may have other weights now
        rate = learning_rate(run.schedule_progress, run.schedule_steps, run.optim)
        run.objective.set_step(state.step, run.ranks.share(run.phase.batch_size).start)
        metrics.add(take_step(rows, rate))  # tensors, never floats: no hidden synchronisation
        state.advance(run.phase.batch_size, run.phase.seq_length)
        state.seconds = time.perf_counter() - started
        if state.step % loop.report_every == 0:
            metrics.report(rate)
        if state.step % loop.validate_every == 0:
            run_validation(run)
        if state.step % loop.checkpoint_every == 0:
            save_checkpoint(run, metrics)
            pause = score_checkpoint(run, stop)
            started, metrics.time_before = started + pause, metrics.time_before + pause
    if state.step and stopped is None:
        save_checkpoint(run, metrics)
        score_checkpoint(run, stop, last=True)
    elif state.step:
        metrics.check()
        write_checkpoint(run)
    return stopped


def agree(run: Run, stop: GracefulStop) -> signal.Signals | None:
    """Set the first rank's clock on all ranks; return a signal that any of them has received."""
    number, run.state.seconds = run.ranks.agree(stop.signal or 0, run.state.seconds)
    return signal.Signals(number) if number else None


def try_phases(run: Run) -> None:
    """Try every phase that is left before the clock starts, and end in the current one.

    A lack of memory in a later phase shows now, and its kernels are compiled now.
    """
    current = run.phase
    with run.ranks.together():
        for phase in reversed(run.phases[run.phases.index(current) :]):
            run.set_phase(phase)
            dry_run(run, first_rows(run))
    if run.state.step:
        extend_positions(run)  # a checkpoint of the very end of a phase has not done it
        log_phase(run)


def begin_phase(run: Run, phase: Phase) -> None:
    """Change to another sequence length or batch size: another CUDA graph, other kernels."""
    with run.ranks.together():
        run.set_phase(phase)
        extend_positions(run)
        dry_run(run, first_rows(run))
    run.objective.train()
    log_phase(run)


def extend_positions(run: Run) -> None:
    """Fill the position embeddings that the current phase is the first to use."""
    trained, length = max(run.state.rows_of_length), run.phase.seq_length
    if length > trained:
        extend_positions_(run.step, trained, length, run.state.known_positions)


def first_rows(run: Run) -> Tensor:
    """This rank's rows of the next batch of the current phase."""
    shards, share = run.shards[run.phase.seq_length], run.ranks.share(run.phase.batch_size)
    rows = rows_at(shards, run.position + share.start, len(share), run.loop.seed)
    return torch.from_numpy(rows).to(run.step.device)


def log_phase(run: Run) -> None:
    """Log and print that a phase has begun, unless it was logged before a resume."""
    if not run.ranks.first:
        return
    phase, kernels = run.phase, run.kernels()
    sizes = {"seq_length": phase.seq_length, "batch_size": phase.batch_size}
    logged = [line for line in read_metrics(run.folder) if line["kind"] == "phase"]
    last = logged[-1] if logged else run.phases[0]._asdict()
    if any(last[name] != size for name, size in sizes.items()):
        run.metrics_log.write("phase", run.state.step, **sizes, kernels=kernels)
        run.view.print(
            f"Step {run.state.step:,}: from here a step has {phase.describe()}. Kernels: {kernels}."
        )


def dry_run(run: Run, rows: Tensor) -> None:
    """Run one step that changes nothing, so that a lack of memory shows at the start.

    This also compiles the step and captures its CUDA graph before the clock of a time budget
    starts.
    """
    step = run.step
    before = random_state(step.device)
    step.objective.train()
    try:
        if run.uses_cuda_graph:
            run.graphed_step = capture_cuda_graph(step, rows)
            # The graph keeps its memory, so validation needs memory beside it.
            rows = run.held_out[: step.micro_batch]
            validate(step.objective, rows, step.micro_batch, step.dtype)
            return
        for _ in step.objective.each_step_kind():
            step.backward(*step.objective.mask_batch(rows))
        for p in step.objective.parameters():
            step.optimizer.moments(p)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        text = f"{error} {error.__context__}".lower()  # a failed capture hides the cause
        if not isinstance(error, RuntimeError) or "memory" in text or "alloc" in text:
            raise UserError(advise_at_start(run)) from None
        raise
    except Exception as error:
        if type(error).__module__.split(".")[0] != "triton":  # which may not be installed
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise UserError(
            f"The fused kernels cannot be built for this GPU ({reason}): set "
            "train.fused_kernels=off, which is slower."
        ) from None
    finally:
        step.optimizer.zero_grad()
        set_random_state(before)


def run_validation(run: Run) -> None:
    """Measure on held-out text, log the metrics and warn of what looks wrong."""
    state, step = run.state, run.step
    with step.averaged_weights():
        state.held_out = validate(
            step.objective, run.held_out, step.micro_batch, step.dtype, run.ranks
        )
    run.metrics_log.write(
        "held_out",
        state.step,
        tokens=state.tokens,
        seq_length=run.phase.seq_length,
        **state.held_out,
    )
    update_view(run, held_out=state.held_out)
    if state.step < MIN_STEPS_FOR_WARNINGS:
        return
    progress = run.schedule_progress
    warmup = warmup_share(run.schedule_steps, run.optim)
    for warning in run.health.check(progress, warmup, state.held_out):
        run.metrics_log.write("event", state.step, message=warning)
        run.view.print(f"warning: {warning}", style="yellow")


def save_checkpoint(run: Run, metrics: "MetricAccumulator") -> None:
    """Save a checkpoint with its held-out metrics, update the best one and delete old ones."""
    state = run.state
    metrics.check()
    if not state.held_out:
        run_validation(run)
    # The training losses are from before the last update; validation is the first to see its
    # weights.
    with run.ranks.together():
        check_finite({"held-out loss": state.held_out["loss"]}, state.step, last_good(run))
    loss, length = state.held_out["loss"], run.phase.seq_length
    # Losses on rows of different lengths are not compared.
    comparable = state.best.get("seq_length", length) == length
    if not state.best or not comparable or loss < state.best["loss"]:
        state.best = {"step": state.step, "loss": loss, "seq_length": length}
    write_checkpoint(run)
    with run.ranks.together():
        if run.ranks.first:
            prune_checkpoints(run)


def write_checkpoint(run: Run) -> None:
    """Write a checkpoint of the current step; the first rank does it while the others wait."""
    step = run.step
    finite = torch.stack([p.detach().isfinite().all() for p in step.objective.parameters()]).all()
    with run.ranks.together():
        weights = {"a weight": 0.0 if finite.item() else math.nan}
        check_finite(weights, run.state.step, last_good(run))
        for shards in run.shards.values():
            shards.check_unchanged(last_good(run))
    random = gather_random_states(run.ranks, random_state(step.device))
    with run.ranks.together():
        if run.ranks.first:
            run.metrics_log.sync()
            checkpoint.save(
                run.folder,
                run.state,
                step.objective,
                step.optimizer,
                step.ema,
                random=random,
                pad_id=run.pad_id,
            )


def last_good(run: Run) -> str:
    """A sentence that names the last checkpoint."""
    last = checkpoint.checkpoints(run.folder)
    return f"The last good checkpoint is {last[-1]}." if last else "No checkpoint was written."


def update_view(run: Run, **metrics: dict[str, float]) -> None:
    """Update the progress view with `train=` or `held_out=` metrics."""
    s = run.state
    run.view.update(progress=run.progress, seconds=s.seconds, status=f"step {s.step:,}", **metrics)


class MetricAccumulator:
    """Adds up metrics on the device; only `report` and `check` synchronise with the host."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names = (*run.objective.metric_names, "gradient_norm", "skipped_steps")
        self.total = torch.zeros(len(self.names), device=run.step.device)
        self.in_a_row = torch.zeros((), device=run.step.device)
        """Steps that were skipped since the last one that was not."""
        earlier = dict(run.state.unreported)
        self.reset()
        if earlier:  # the run was stopped between two reports
            self.steps = int(earlier.pop("steps"))
            self.total += torch.tensor([*earlier.values()], device=self.total.device)
            if not run.ranks.first:
                self.total[:-2] = 0.0  # the sums are those of all ranks

    def reset(self) -> None:
        self.total.zero_()
        self.run.state.unreported = {}
        self.steps, self.tokens_before = 0, self.run.state.tokens
        self.flops_before = self.run.flops
        self.time_before = time.perf_counter()

    def add(self, sums: Tensor) -> None:
        self.total += sums
        self.in_a_row = (self.in_a_row + 1) * sums[-1]
        self.steps += 1

    def check(self) -> dict[str, float]:
        """The sums since the last report; stops the run if they, or its steps, are not finite."""
        ranks, total = self.run.ranks, self.total.clone()
        ranks.sum_(total[:-2])  # the last two are those of the whole batch already
        *numbers, in_a_row = torch.cat([total, self.in_a_row.reshape(1)]).tolist()
        values = dict(zip(self.names, numbers, strict=True))
        if self.steps:
            self.run.state.unreported = {**values, "steps": self.steps}
        with ranks.together():
            check_finite(values, self.run.state.step, last_good(self.run))
            check_skipped(int(in_a_row), self.run.state.step, last_good(self.run))
        return values

    def report(self, rate: float) -> None:
        """Log and show the metrics since the last report."""
        run, state, sums = self.run, self.run.state, self.check()
        seconds = time.perf_counter() - self.time_before
        if not self.steps:
            return
        skipped = int(sums.pop("skipped_steps"))
        if skipped:
            self.warn_skipped(skipped)
        if skipped == self.steps:  # there is nothing to report
            self.reset()
            return
        metrics = run.objective.compute_metrics(sums) | {
            "gradient_norm": sums["gradient_norm"] / (self.steps - skipped),
            "learning_rate": rate,
            "tokens_per_second": (state.tokens - self.tokens_before) / seconds,
            "peak_share": (run.flops - self.flops_before) / seconds / run.peak_flops,
        }
        run.metrics_log.write(
            "train",
            state.step,
            tokens=state.tokens,
            seconds=state.seconds,
            seq_length=run.phase.seq_length,
            batch_size=run.phase.batch_size,
            **metrics,
        )
        update_view(run, train=metrics)
        self.reset()

    def warn_skipped(self, skipped: int) -> None:
        """Log and print that steps were skipped."""
        run, step = self.run, self.run.state.step
        which = f"{skipped} of the last {self.steps} steps" if self.steps > 1 else "The last step"
        warning = f"{which} had a gradient that is not a finite number, and changed no weights."
        run.metrics_log.write("event", step, message=warning, skipped_steps=skipped)
        run.view.print(f"warning: step {step:,}: {warning}", style="yellow")
