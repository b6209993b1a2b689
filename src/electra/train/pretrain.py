"""Pre-training from a configuration: check the data, build the run, train, resume."""

import shlex
import shutil
import signal
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from electra.config import override, to_dict
from electra.device import (
    choose_device,
    choose_precision,
    device_name,
    measure_peak,
    set_cpu_threads,
    supports_bf16,
)
from electra.errors import UserError
from electra.models.flops import Workload, row_flops, workloads_of
from electra.objectives.corrupt import max_masked
from electra.objectives.kinds import build
from electra.objectives.objective import Objective, VocabInfo
from electra.optim.ema import WeightEma
from electra.optim.optimizer import build_optimizer
from electra.run_dir import GracefulStop, check_out_dir
from electra.text.remote import is_url
from electra.text.shards import Shards
from electra.text.tokenizer import (
    Vocabulary,
    fingerprint,
    load_tokenizer,
    load_vocabulary,
)
from electra.train import checkpoint
from electra.train.accelerate import use_cheap_cpu_dropout_, use_fused_kernels_
from electra.train.budget import parse_budget
from electra.train.checkpoint import TrainState
from electra.train.data import open_all_lengths, open_data
from electra.train.distributed import (
    ONE_RANK,
    Ranks,
    check_batches,
    check_launched,
    console_of,
    describe_cuda,
    locked_by_first,
)
from electra.train.fsdp import describe_sharding, is_sharded, shard_
from electra.train.headline import headline, parameter_counts
from electra.train.health import HealthCheck
from electra.train.init_from import (
    check_tokenizer,
    describe_init,
    keep_resolved,
    load_init_,
    resolve_init,
    trained_positions,
)
from electra.train.loop import run_validation, train, try_phases
from electra.train.memory import explain_out_of_memory
from electra.train.metrics_log import MetricsLog, open_logger, read_metrics
from electra.train.phases import Phase, extend_positions_, split_at_dropout
from electra.train.progress_view import ProgressView
from electra.train.restore import keep_tokenizer, load_latest, share_state
from electra.train.run import Run
from electra.train.run_config import (
    check_no_run,
    check_same,
    check_unedited,
    read_run_config,
    save_config,
)
from electra.train.scoring import MakeScorer, Scorer, describe_best, prepare_scoring
from electra.train.settings import PretrainConfig
from electra.train.sharded_checkpoint import ShardedSaver
from electra.train.step import Step
from electra.train.unused_settings import check_unused


def start(
    config: PretrainConfig,
    out: Path,
    console: Console,
    given: Collection[str] = (),
    make_scorer: MakeScorer | None = None,
    ranks: Ranks = ONE_RANK,
    *,
    temporary: bool = False,
) -> int:
    """Start a run in a new folder; returns the exit code.

    `given` are the settings that the user named: they are refused if they have no effect, and kept
    by a run that starts from a trained model. At the end, the run says where its model is, unless
    the folder is `temporary`.
    """
    check_launched(ranks)
    console = console_of(ranks, console)
    with ranks.together():
        check_no_run(out)
        check_out_dir(out, "run")
        check_unused(config, given)
        if config.init_from.model:
            config = resolve_init(config, given)
        config, shards, vocab = resolve_data(config)
        folder = absolute(config.data.folder)  # to resume from anywhere
        config = replace(config, data=replace(config.data, folder=folder))
        config, scorer = prepare_scoring(config, shards.tokenizer, make_scorer)
    with locked_by_first(ranks, out):
        with ranks.together():
            if ranks.first:
                check_no_run(out)  # again: another process may have started one until now
        try:
            with ranks.together():
                if ranks.first:
                    save_config(config, out)  # first: from here on the folder can be resumed
                    keep_tokenizer(shards, out)
            if config.init_from.model:
                for line in describe_init(config, row_workloads(config), budget_steps(config)):
                    console.print(line, soft_wrap=True, markup=False)
            return run_loop(config, out, shards, vocab, console, ranks, scorer, temporary=temporary)
        except Exception:
            # failed before the first step: leave nothing behind
            if ranks.first and not read_metrics(out):
                shutil.rmtree(out, ignore_errors=True)
            raise


def absolute(location: str) -> str:
    """The absolute path of a folder; an address stays as it is."""
    return location if is_url(location) else str(Path(location).resolve())


def resolve_data(config: PretrainConfig) -> tuple[PretrainConfig, Shards, Vocabulary]:
    """The configuration with its vocabulary size filled in, the shards and the vocabulary."""
    shards = open_data(config.data, config.model.max_positions)
    vocab = load_vocabulary(shards.tokenizer)
    if shards.fingerprint != fingerprint(load_tokenizer(shards.tokenizer)):
        raise UserError(
            f"{shards.tokenizer} is not the tokenizer that its shards were prepared with: "
            "prepare the text again."
        )
    if config.init_from.model:
        check_tokenizer(config, shards)
        return config, shards, vocab
    if config.model.vocab_size not in (0, vocab.size):
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but the tokenizer of {shards.location} "
            f"has {vocab.size} ids: leave model.vocab_size at 0."
        )
    return replace(config, model=replace(config.model, vocab_size=vocab.size)), shards, vocab


def row_workloads(config: PretrainConfig, length: int = 0) -> tuple[Workload, ...]:
    """The work of each network per row and step; `length` 0 is that of the first phase."""
    length, o = length or config.data.lengths[0], config.objective
    slots = max_masked(length, o.top_rate, o.mask_count_rounding)
    sizes = (config.model, config.generator, length, slots)
    return workloads_of(o.kind, *sizes, o.generator_first)


def flops_per_row(config: PretrainConfig, length: int = 0) -> int:
    """FLOPs of a step per row, as the hardware computes them; `length` 0 as above."""
    return row_flops(row_workloads(config, length), length or config.data.lengths[0])


def phase_steps(config: PretrainConfig) -> list[tuple[Phase, int]] | None:
    """The steps of each phase until the budget is spent; None for a time budget."""
    budget, phases, spent = parse_budget(config.train.budget), config.data.phases, 0.0
    found = []
    for number, phase in enumerate(phases):
        until = phases[number + 1].begin if number + 1 < len(phases) else 1.0
        tokens = phase.batch_size * phase.seq_length
        flops = phase.batch_size * flops_per_row(config, phase.seq_length)
        steps = budget.steps(tokens_per_step=tokens, flops_per_step=flops, until=until, spent=spent)
        if steps is None:
            return None
        spent += steps * budget.per_step(tokens, flops)
        found.append((phase, steps))
    return found


def budget_steps(config: PretrainConfig) -> int | None:
    """Steps until the budget is spent; None for a time budget."""
    found = phase_steps(config)
    return None if found is None else sum(steps for _, steps in found)


def resume(
    out: Path,
    console: Console,
    data: str | Path | None = None,
    *,
    base: PretrainConfig | None = None,
    changes: Sequence[str] = (),
    make_scorer: MakeScorer | None = None,
    ranks: Ranks = ONE_RANK,
) -> int:
    """Continue a run from its last checkpoint; the run folder is all that is needed.

    `changes` may set what `MAY_CHANGE_ON_RESUME` lists; `base`, if given, must be the recipe that
    the run was started with.
    """
    check_launched(ranks)
    console = console_of(ranks, console)
    with ranks.together():
        config = read_run_config(out)
        check_unedited(config, out)
        check_same(config, override(keep_resolved(base or config, config), changes))
        config = override(config, changes)
        if data is not None:  # the shards may have moved; their digest is compared later
            config = replace(config, data=replace(config.data, folder=absolute(str(data))))
        elif not is_url(config.data.folder) and not Path(config.data.folder).is_dir():
            raise UserError(
                f"'{config.data.folder}', the data of {out}, is not a folder of token shards any "
                "more: say with --data where it is now."
            )
    with locked_by_first(ranks, out):
        with ranks.together():
            shards = open_data(config.data, config.model.max_positions)
            started = (out / "tokenizer").exists() or checkpoint.checkpoints(out)
            if ranks.first and not started:  # the run was killed at its very start
                keep_tokenizer(shards, out)
        with ranks.together():
            if shards.fingerprint != fingerprint(load_tokenizer(out / "tokenizer")):
                raise UserError(
                    f"{shards.location} was prepared with another tokenizer than the run {out}: "
                    "give the data that the run was started with."
                )
            config, scorer = prepare_scoring(config, out / "tokenizer", make_scorer)
            vocab = load_vocabulary(out / "tokenizer")
        return run_loop(config, out, shards, vocab, console, ranks, scorer)


def build_objective(config: PretrainConfig, vocab: Vocabulary) -> Objective:
    """The objective with freshly initialised networks."""
    # A trained model may have more rows than its tokenizer has tokens.
    absent = (*vocab.absent, *range(vocab.size, config.model.vocab_size))
    ids = VocabInfo(vocab.mask, vocab.special, absent)
    objective = build(config.objective, config.model, config.generator, ids)
    objective.set_seed(config.train.seed)
    objective.document_start_id = vocab.cls if config.data.document_mask else None
    return objective


def run_loop(
    config: PretrainConfig,
    out: Path,
    shards: Shards,
    vocab: Vocabulary,
    console: Console,
    ranks: Ranks = ONE_RANK,
    scorer: Scorer | None = None,
    *,
    temporary: bool = False,
) -> int:
    """Build the run, load its latest checkpoint, train, and print how it ended."""
    several = ranks.size > 1
    with GracefulStop(patient=several) as stop:  # until the user knows how to continue
        with build_run(config, out, shards, vocab, console, ranks) as run:
            run.scorer, run.score_every = scorer, config.score_on.every
            try_phases(run)
            with ranks.together():
                if ranks.first:
                    save_config(config, out)
            log_start(run, config)
            run.view.print(f"{headline(run, shards)} Kernels: {run.kernels()}.")
            if config.train.data_parallel == "fsdp":
                compiled = config.train.compile
                run.view.print(describe_sharding(run.objective, ranks, compiled=compiled))
            elif run.step.device.type == "cuda" and several:
                run.view.print(describe_cuda(ranks, config.train.cuda_graph))
            if scorer is not None:
                run.view.print(scorer.description)
            with explain_out_of_memory(run), ranks.explain_lost_ranks():
                stopped = train(run, stop)
            run.free_cuda_graph()  # before the process group ends, which would wait for it
        if not temporary:
            print_end(run, stopped, console)
        return 0 if stopped is None else 128 + stopped


def print_end(run: Run, stopped: signal.Signals | None, console: Console) -> None:
    """Print where the model is; after a signal, also how to continue."""
    out, last = run.folder, checkpoint.checkpoints(run.folder) if run.ranks.first else []
    if stopped is not None:
        console.print(
            f"Stopped by {stopped.name} at step {run.state.step}; "
            + (f"saved {last[-1]}. " if last else "")
            + f"Continue with: electra pretrain --resume --out {shlex.quote(str(out))}",
            soft_wrap=True,
            markup=False,
        )
    elif run.ranks.first:
        done = f"Done: {run.state.step:,} steps. The model is in {last[-1]}"
        best = describe_best(read_metrics(out)) if run.scorer is not None else ""
        console.print(done + (f"; {best}" if best else ""), soft_wrap=True, markup=False)


def log_start(run: Run, config: PretrainConfig) -> None:
    """Log how the run is computed; measure the model that a continued run starts from."""
    how = {
        "kernels": run.kernels(),
        "device": run.step.device.type,
        "hardware": device_name(run.step.device),
        "ranks": run.ranks.size,
        "grad_accumulation": run.loop.grad_accumulation,
    }
    if run.ranks.broadcast(bool(read_metrics(run.folder))):
        if run.progress < 1:
            run.metrics_log.write("event", run.state.step, message="resumed", **how)
        return
    sizes = parameter_counts(run.objective)
    run.metrics_log.write("event", 0, message="started", parameters=sizes, **how)
    if config.init_from.sha256 and not config.objective.generator_first:
        run_validation(run)  # of the model as it was, to compare with


@contextmanager
def build_run(
    config: PretrainConfig,
    out: Path,
    shards: Shards,
    vocab: Vocabulary,
    console: Console,
    ranks: Ranks = ONE_RANK,
) -> Iterator[Run]:
    """Build a run; if it has checkpoints, load the latest."""
    loop = config.train
    set_cpu_threads(loop.threads)
    torch.manual_seed(loop.seed)
    with ranks.together():
        check_batches(ranks, (p.batch_size for p in config.data.phases), loop.grad_accumulation)
        objective = build_objective(config, vocab)
        if config.init_from.model and not checkpoint.checkpoints(out):
            load_init_(objective, config)
        objective = objective.to(ranks.place(choose_device(loop.device)))
        step = build_step(config, objective, ranks)
        by_length = open_all_lengths(config.data, shards)
        state = load_latest(out, step, by_length) if ranks.first else TrainState()
    state = share_state(out, step, state, by_length, loop.seed)
    if config.init_from.model and not state.step:
        state.known_positions = trained_positions(config)
        extend_positions_(
            step, state.known_positions, config.data.phases[0].seq_length, state.known_positions
        )
    saver = build_saver(config, vocab, ranks) if step.sharded else None
    metrics_log = MetricsLog(out, enabled=ranks.first)
    metrics_log.rewind(state.step)
    with ProgressView(console, f"electra pretrain · {config.name} · {out}") as view:
        with ranks.together():
            if ranks.first:
                metrics_log.logger = open_logger(loop.logger, out, to_dict(config))
        try:
            yield Run(
                folder=out,
                loop=loop,
                optim=config.optim,
                budget=parse_budget(loop.budget),
                step=step,
                state=state,
                phases=split_at_dropout(config.data.phases, loop.dropout_start),
                shards=by_length,
                flops_per_row={n: flops_per_row(config, n) for n in by_length},
                peak_flops=ranks.size * measure_peak(step.device, step.dtype),
                pad_id=vocab.pad,
                metrics_log=metrics_log,
                view=view,
                health=HealthCheck({m["warning"] for m in read_metrics(out) if "warning" in m}),
                saver=saver,
            )
        finally:
            metrics_log.close()


def build_saver(config: PretrainConfig, vocab: Vocabulary, ranks: Ranks) -> ShardedSaver:
    """What writes the checkpoints of a sharded run."""
    with torch.random.fork_rng(devices=[]):  # its weights are read from checkpoints
        whole = build_objective(config, vocab) if ranks.first else None
    return ShardedSaver(ranks, whole, vocab.pad)


def build_step(config: PretrainConfig, objective: Objective, ranks: Ranks = ONE_RANK) -> Step:
    """The training step of a configuration, on the objective's device."""
    optim, loop = config.optim, config.train
    device = objective.maskable.device
    dtype = choose_precision(loop.precision, device)
    fused, sharded = loop.fused_kernels, is_sharded(loop.data_parallel, ranks, device)
    if sharded:
        shard_(objective, ranks, compiled=loop.compile)
    optimizer = build_optimizer(
        objective,
        optim,
        generator_modules=objective.generator_modules,
        kernels=fused != "off",
        sum_over_ranks=ranks.sum_ if sharded else None,
    )
    bf16 = dtype == torch.bfloat16 and supports_bf16(device)
    if fused != "off" and not loop.compile and not sharded and bf16:
        use_fused_kernels_(objective, recompute=loop.activation_checkpointing, setting=fused)
    else:
        if device.type == "cpu" and not loop.compile:
            use_cheap_cpu_dropout_(objective)
        if loop.activation_checkpointing:
            warnings.warn(
                "train.activation_checkpointing=true has no effect without the fused kernels.",
                stacklevel=2,
            )
    compiled = loop.compile and not sharded  # which compiles each layer
    return Step(
        objective=objective,
        optimizer=optimizer,
        forward=torch.compile(objective, dynamic=False) if compiled else objective,
        dtype=dtype,
        micro_batch=config.data.phases[0].batch_size // loop.grad_accumulation // ranks.size,
        ema=WeightEma(dict(objective.named_parameters()), optim.ema) if optim.ema else None,
        ranks=ranks,
        sharded=sharded,
    )
