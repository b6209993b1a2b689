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
from electra.optim.shards import local
from electra.run_dir import GracefulStop
from electra.train import checkpoint
from electra.train.cuda_graph import capture_cuda_graph
from electra.train.data import rows_at
from electra.train.distributed import gather_random_states, steps_per_agreement
from electra.train.fsdp import DataParallel, gathered
from electra.train.health import check_finite
from electra.train.memory import advise_at_start, check_memory
from electra.train.metric_accumulator import MetricAccumulator, last_good, update_view
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
    dropout_start: float = 0.0
    """Progress of the run, from 0 to 1, at which dropout starts; until then there is none."""
    precision: Precision = "auto"
    """Precision of the matmuls; 'auto' is bf16 on CUDA and fp32 elsewhere. bf16 is also faster on
    CPUs that compute it natively (AVX-512 BF16, AMX). Weights stay in fp32."""
    data_parallel: DataParallel = "ddp"
    """With several processes: 'ddp' keeps a whole copy of the weights on each; 'fsdp' shards
    weights, gradients and optimizer state (FSDP2), and runs the plain modules, or with
    `train.compile` compiled layers."""
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
    """Steps between two reports of training metrics; validations and checkpoints have one too. The
    host waits for the device only then."""
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
        if not 0 <= self.dropout_start < 1:
            raise UserError("train.dropout_start must be at least 0 and below 1.")
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
            agree(run, stop, now=True)  # again, as the progress decides the learning rate
            started = time.perf_counter() - state.seconds  # the clock stood still
            metrics.reset()  # the speed is that of the steps from here on
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
            if run.saver is not None:
                run.saver.check()
        if state.step % loop.validate_every == 0:
            metrics.report(rate)
            run_validation(run)
        if state.step % loop.checkpoint_every == 0:
            save_checkpoint(run, metrics, rate)
            pause = score_checkpoint(run, stop)
            started, metrics.time_before = started + pause, metrics.time_before + pause
    if state.step and stopped is None:
        save_checkpoint(run, metrics, rate)
        finish_checkpoint(run)
        score_checkpoint(run, stop, last=True)
    elif state.step:
        if run.progress >= 1:  # the signal came in the last step
            metrics.report(rate)
        else:
            metrics.check()
        write_checkpoint(run)
        finish_checkpoint(run)
    return stopped


def agree(run: Run, stop: GracefulStop, *, now: bool = False) -> signal.Signals | None:
    """Set the first rank's clock on all ranks; return a signal that any of them has received."""
    if run.state.step % steps_per_agreement(run.ranks.size, run.state.step) and not now:
        run.state.seconds = run.agreed_seconds  # the clock stands still in between
        return None
    number, run.state.seconds = run.ranks.agree(stop.signal or 0, run.state.seconds)
    run.agreed_seconds = run.state.seconds
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
    capture_with_others(run)
    if run.state.step:
        extend_positions(run)  # a checkpoint of the very end of a phase has not done it
        log_phase(run)


def begin_phase(run: Run, phase: Phase) -> None:
    """Change to another sequence length or batch size: another CUDA graph, other kernels."""
    with run.ranks.together():
        run.set_phase(phase)
        extend_positions(run)
        dry_run(run, first_rows(run))
    capture_with_others(run)
    run.objective.train()
    log_phase(run)


def capture_with_others(run: Run) -> None:
    """With several ranks, capture the CUDA graph of the current phase.

    The capture sends messages, so it follows a dry run without them, in which an error of one rank
    ends all.
    """
    if run.uses_cuda_graph and run.ranks.size > 1:
        dry_run(run, first_rows(run), messages=True)


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
    current = {name: int(value) for name, value in phase._asdict().items() if name != "begin"}
    logged = [line for line in read_metrics(run.folder) if line["kind"] == "phase"]
    last = logged[-1] if logged else run.phases[0]._asdict()
    if any(last.get(name, 1) != value for name, value in current.items()):
        run.metrics_log.write("phase", run.state.step, **current, kernels=kernels)
        run.view.print(
            f"Step {run.state.step:,}: from here a step has {phase.describe()}. Kernels: {kernels}."
        )


def dry_run(run: Run, rows: Tensor, *, messages: bool = False) -> None:
    """Run one step that changes nothing, so that a lack of memory shows at the start.

    This also compiles the step and captures its CUDA graph before the clock of a time budget
    starts; with several ranks only if it may send `messages`.
    """
    step = run.step
    before = random_state(step.device)
    step.objective.train()
    try:
        if run.uses_cuda_graph and (messages or run.ranks.size == 1):
            run.graphed_step = capture_cuda_graph(step, rows)
            # The graph keeps its memory, so validation needs memory beside it.
            rows = run.held_out[: step.micro_batch]
            validate(step.objective, rows, step.micro_batch, step.dtype)
            return
        for _ in step.objective.each_step_kind():
            check_memory(run, rows)
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
    with step.averaged_weights(), gathered(step.objective):
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
    for name, text in run.health.check(progress, warmup, state.held_out).items():
        run.metrics_log.write("event", state.step, message=text, warning=name)
        run.view.print(f"warning: {text}", style="yellow")


def save_checkpoint(run: Run, metrics: MetricAccumulator, rate: float) -> None:
    """Save a checkpoint with its held-out metrics, update the best one and delete old ones."""
    state = run.state
    metrics.report(rate)
    if not state.held_out:
        run_validation(run)
    # The training losses are from before the last update; validation is the first to see its
    # weights.
    with run.ranks.together():
        check_finite({"held-out loss": state.held_out["loss"]}, state.step, last_good(run))
    finish_checkpoint(run)  # the one before, while `best` is still that one's
    loss, length = state.held_out["loss"], run.phase.seq_length
    # Losses on rows of different lengths are not compared.
    comparable = state.best.get("seq_length", length) == length
    if not state.best or not comparable or loss < state.best["loss"]:
        state.best = {"step": state.step, "loss": loss, "seq_length": length}
    write_checkpoint(run)
    if run.saver is None:
        delete_old_checkpoints(run)


def finish_checkpoint(run: Run) -> None:
    """Wait for a checkpoint that is written in the background, then delete old ones."""
    if run.saver is not None:
        run.saver.wait()
        delete_old_checkpoints(run)


def delete_old_checkpoints(run: Run) -> None:
    """Delete checkpoints that need not be kept any more."""
    with run.ranks.together():
        if run.ranks.first:
            prune_checkpoints(run)


def write_checkpoint(run: Run) -> None:
    """Write a checkpoint of the current step.

    The first rank does it while the others wait; if the run is sharded, all do, in the background.
    """
    step = run.step
    weights_here = [local(p.detach()) for p in step.objective.parameters()]
    finite = torch.stack([weight.isfinite().all() for weight in weights_here]).all()
    with run.ranks.together():
        weights = {"a weight": 0.0 if finite.item() else math.nan}
        check_finite(weights, run.state.step, last_good(run))
        for shards in run.shards.values():
            shards.check_unchanged(last_good(run))
    random = gather_random_states(run.ranks, random_state(step.device))
    if run.saver is not None:
        run.saver.start(run.folder, run.state, step, random)
        return
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
