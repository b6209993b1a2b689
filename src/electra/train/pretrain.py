"""Pre-training from a configuration: check the data, build the run, train, resume."""

import shlex
import shutil
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from electra.config import override, to_dict
from electra.device import (
    check_one_process,
    choose_device,
    choose_precision,
    device_name,
    measure_peak,
    set_cpu_threads,
    supports_bf16,
)
from electra.errors import UserError
from electra.models.flops import Workload, row_flops, workloads_of
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.corrupt import max_masked
from electra.objectives.kinds import build
from electra.objectives.objective import Objective, VocabInfo
from electra.optim.ema import WeightEma
from electra.optim.optimizer import build_optimizer
from electra.run_dir import GracefulStop, check_out_dir, lock_run_dir
from electra.text.shards import Shards
from electra.text.tokenizer import Vocabulary, fingerprint, load_tokenizer, load_vocabulary
from electra.train import checkpoint
from electra.train.accelerate import use_cheap_cpu_dropout_, use_fused_kernels_
from electra.train.budget import parse_budget
from electra.train.checkpoint import TrainState
from electra.train.data import data_digest, open_all_lengths, open_data
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
from electra.train.metrics_log import MetricsLog, open_logger, read_metrics
from electra.train.phases import Phase, extend_positions_
from electra.train.progress_view import ProgressView
from electra.train.run import Run
from electra.train.run_config import check_same, check_unedited, read_run_config, save_config
from electra.train.scoring import MakeScorer, Scorer, describe_best, prepare_scoring
from electra.train.settings import PretrainConfig
from electra.train.step import Step
from electra.train.unused_settings import check_unused
from electra.train.validation import token_counts


def start(
    config: PretrainConfig,
    out: Path,
    console: Console,
    given: Collection[str] = (),
    make_scorer: MakeScorer | None = None,
    *,
    temporary: bool = False,
) -> int:
    """Start a run in a new folder; returns the exit code.

    `given` are the settings that the user named: they are refused if they have no effect, and kept
    by a run that starts from a trained model. At the end, the run says where its model is, unless
    the folder is `temporary`.
    """
    check_one_process()
    if (out / "config.yaml").exists() or checkpoint.checkpoints(out):
        raise UserError(
            f"{out} already holds a run: add --resume to continue it, or choose another --out."
        )
    check_out_dir(out, "run")
    check_unused(config, given)
    if config.init_from.model:
        config = resolve_init(config, given)
    config, shards, vocab = resolve_data(config)
    folder = str(Path(config.data.folder).resolve())  # absolute, to resume from anywhere
    config = replace(config, data=replace(config.data, folder=folder))
    config, scorer = prepare_scoring(config, shards.tokenizer, make_scorer)
    with lock_run_dir(out):
        try:
            shutil.copytree(shards.tokenizer, out / "tokenizer")
            save_config(config, out)
            if config.init_from.model:
                for line in describe_init(config, row_workloads(config), budget_steps(config)):
                    console.print(line, soft_wrap=True, markup=False)
            return run_loop(config, out, shards, vocab, console, scorer, temporary=temporary)
        except Exception:
            if not read_metrics(out):  # failed before the first step: leave nothing behind
                shutil.rmtree(out, ignore_errors=True)
            raise


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
            f"model.vocab_size={config.model.vocab_size}, but the tokenizer of {shards.folder} has "
            f"{vocab.size} ids: leave model.vocab_size at 0."
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
    data: Path | None = None,
    *,
    base: PretrainConfig | None = None,
    changes: Sequence[str] = (),
    make_scorer: MakeScorer | None = None,
) -> int:
    """Continue a run from its last checkpoint; the run folder is all that is needed.

    `changes` may set what `MAY_CHANGE_ON_RESUME` lists; `base`, if given, must be the recipe that
    the run was started with.
    """
    check_one_process()
    config = read_run_config(out)
    check_unedited(config, out)
    check_same(config, override(keep_resolved(base or config, config), changes))
    config = override(config, changes)
    if data is not None:  # the shards may have moved; their digest is compared when they are opened
        config = replace(config, data=replace(config.data, folder=str(data.resolve())))
    elif not Path(config.data.folder).is_dir():
        raise UserError(
            f"'{config.data.folder}', the data of {out}, is not a folder of token shards any more: "
            "say with --data where it is now."
        )
    with lock_run_dir(out):
        shards = open_data(config.data, config.model.max_positions)
        if shards.fingerprint != fingerprint(load_tokenizer(out / "tokenizer")):
            raise UserError(
                f"{shards.folder} was prepared with another tokenizer than the run {out}: give the "
                "data that the run was started with."
            )
        config, scorer = prepare_scoring(config, out / "tokenizer", make_scorer)
        vocab = load_vocabulary(out / "tokenizer")
        return run_loop(config, out, shards, vocab, console, scorer)


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
    scorer: Scorer | None = None,
    *,
    temporary: bool = False,
) -> int:
    """Build the run, load its latest checkpoint, train, and print how it ended."""
    with GracefulStop() as stop, build_run(config, out, shards, vocab, console) as run:
        run.scorer, run.score_every = scorer, config.score_on.every
        try_phases(run)
        save_config(config, out)
        how = {
            "kernels": run.kernels(),
            "device": run.step.device.type,
            "hardware": device_name(run.step.device),
            "grad_accumulation": run.loop.grad_accumulation,
        }
        if read_metrics(out):
            if run.progress < 1:
                run.metrics_log.write("event", run.state.step, message="resumed", **how)
        else:
            sizes = parameter_counts(run.objective)
            run.metrics_log.write("event", 0, message="started", parameters=sizes, **how)
            if config.init_from.sha256 and not config.objective.generator_first:
                run_validation(run)  # of the model as it was, to compare with
        run.view.print(f"{_headline(run, shards)} Kernels: {run.kernels()}.")
        if scorer is not None:
            run.view.print(scorer.description)
        train(run, stop)
    if temporary:
        return 0 if stop.signal is None else 128 + stop.signal
    last = checkpoint.checkpoints(out)
    if stop.signal is not None:
        console.print(
            f"Stopped by {stop.signal.name} at step {run.state.step}; "
            + (f"saved {last[-1]}. " if last else "")
            + f"Continue with: electra pretrain --resume --out {shlex.quote(str(out))}",
            soft_wrap=True,
            markup=False,
        )
        return 128 + stop.signal
    done = f"Done: {run.state.step:,} steps. The model is in {last[-1]}"
    best = describe_best(read_metrics(out)) if scorer is not None else ""
    console.print(done + (f"; {best}" if best else ""), soft_wrap=True, markup=False)
    return 0


@contextmanager
def build_run(
    config: PretrainConfig, out: Path, shards: Shards, vocab: Vocabulary, console: Console
) -> Iterator[Run]:
    """Build a run; if it has checkpoints, load the latest."""
    loop = config.train
    set_cpu_threads(loop.threads)
    torch.manual_seed(loop.seed)
    objective = build_objective(config, vocab)
    if config.init_from.model and not checkpoint.checkpoints(out):
        load_init_(objective, config)
    objective = objective.to(choose_device(loop.device))
    step = build_step(config, objective)
    by_length = open_all_lengths(config.data, shards)
    state = load_latest(out, step, by_length)
    if config.init_from.model and not state.step:
        state.known_positions = trained_positions(config)
        extend_positions_(
            step, state.known_positions, config.data.phases[0].seq_length, state.known_positions
        )
    metrics_log = MetricsLog(out)
    metrics_log.rewind(state.step)
    with ProgressView(console, f"electra pretrain · {config.name} · {out}") as view:
        metrics_log.logger = open_logger(loop.logger, out, to_dict(config))
        try:
            yield Run(
                folder=out,
                loop=loop,
                optim=config.optim,
                budget=parse_budget(loop.budget),
                step=step,
                state=state,
                phases=config.data.phases,
                shards=by_length,
                flops_per_row={n: flops_per_row(config, n) for n in by_length},
                peak_flops=measure_peak(step.device, step.dtype),
                pad_id=vocab.pad,
                metrics_log=metrics_log,
                view=view,
                health=HealthCheck(),
            )
        finally:
            metrics_log.close()


def build_step(config: PretrainConfig, objective: Objective) -> Step:
    """The training step of a configuration, on the objective's device."""
    optim, loop = config.optim, config.train
    device = objective.maskable.device
    dtype = choose_precision(loop.precision, device)
    fused = loop.fused_kernels
    optimizer = build_optimizer(
        objective, optim, generator_modules=objective.generator_modules, kernels=fused != "off"
    )
    bf16 = dtype == torch.bfloat16 and supports_bf16(device)
    if fused != "off" and not loop.compile and bf16:
        use_fused_kernels_(objective, recompute=loop.activation_checkpointing, setting=fused)
    else:
        if device.type == "cpu" and not loop.compile:
            use_cheap_cpu_dropout_(objective)
        if loop.activation_checkpointing:
            warnings.warn(
                "train.activation_checkpointing=true has no effect without the fused kernels.",
                stacklevel=2,
            )
    return Step(
        objective=objective,
        optimizer=optimizer,
        forward=torch.compile(objective, dynamic=False) if loop.compile else objective,
        dtype=dtype,
        micro_batch=config.data.phases[0].batch_size // loop.grad_accumulation,
        ema=WeightEma(dict(objective.named_parameters()), optim.ema) if optim.ema else None,
    )


def load_latest(out: Path, step: Step, shards: Mapping[int, Shards]) -> TrainState:
    """Load the last checkpoint; without one, return the state of a new run."""
    digest, first = data_digest(shards), next(iter(shards.values()))
    checkpoint.clean(out)
    saved = checkpoint.checkpoints(out)
    if not saved:
        set_unigram_counts(step.objective, first)
        return TrainState(data_digest=digest)
    state = checkpoint.restore(saved[-1], step.objective, step.optimizer, step.ema)
    if state.data_digest != digest:
        raise UserError(
            f"{first.folder} is not the data that {out} was started with: give the same shards, "
            "or start a new run."
        )
    return state


def set_unigram_counts(objective: Objective, shards: Shards) -> None:
    """Give a unigram generator the token counts of the training text."""
    generator = getattr(objective, "generator", None)
    if isinstance(generator, FrequencyGenerator) and generator.counted:
        generator.set_counts(torch.from_numpy(token_counts(shards, len(objective.maskable))))


def parameter_counts(objective: nn.Module) -> dict[str, int]:
    """Parameters per network; shared ones count in each."""
    parts = {name: list(part.parameters()) for name, part in objective.named_children()}
    return {name: sum(p.numel() for p in part) for name, part in parts.items() if part}


def _headline(run: Run, shards: Shards) -> str:
    counts = parameter_counts(run.objective)
    sizes = ", ".join(f"{name} {n / 1e6:.1f} M" for name, n in counts.items())
    where = "Resuming at step" if run.state.step else "Starting at step"
    precision = str(run.step.dtype).removeprefix("torch.")
    later = [f"from {phase.begin:.0%} {phase.describe()}" for phase in run.phases[1:]]
    phases = f"; a step has {', '.join([run.phases[0].describe(), *later])}" if later else ""
    return (
        f"{where} {run.state.step:,} on {run.step.device.type} in {precision}: parameters of the "
        f"{sizes}; {shards.tokens / 1e6:.1f} M tokens of text, {run.loop.budget}{phases}."
    )
