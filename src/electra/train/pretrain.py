"""A pre-training run from its configuration: checks first, then the networks, then the loop."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import torch
from rich.console import Console
from torch import nn

from electra.config import flatten, from_yaml, to_dict, to_yaml
from electra.device import choose_device, choose_precision, knows_bf16, measure_peak
from electra.errors import UserError
from electra.files import write_atomic
from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.models.flops import Workload, row_flops, workloads_of
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.corrupt import max_masked
from electra.objectives.kinds import build, check_together
from electra.objectives.objective import Objective, VocabInfo
from electra.objectives.settings import ObjectiveConfig
from electra.optim.optimizer import Optimizer, build_optimizer
from electra.optim.schedule import OptimConfig
from electra.run_dir import GracefulStop, check_out_dir, lock_run_dir
from electra.text.shards import Shards
from electra.text.tokenizer import Vocabulary, fingerprint, load_tokenizer, load_vocabulary
from electra.train import checkpoint
from electra.train.accelerate import use_cheap_cpu_dropout_, use_fused_kernels_
from electra.train.budget import parse_budget
from electra.train.checkpoint import TrainState
from electra.train.data import DataConfig, held_out_rows, open_data, rows_at, stream
from electra.train.health import HealthCheck
from electra.train.loop import LoopConfig, Run, dry_run, train
from electra.train.metrics_log import MetricsLog, open_logger, read_metrics
from electra.train.progress_view import ProgressView
from electra.train.validation import token_counts, unigram_entropy


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainConfig:
    """A whole pre-training run."""

    name: str = ""
    """Name of the recipe."""
    model: EncoderConfig = field(default_factory=EncoderConfig)
    """The discriminator, the network that is kept."""
    generator: GeneratorConfig = field(default_factory=GeneratorConfig)
    """The generator."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """What is learned from: replaced token detection, or another objective."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """Optimizer and schedule."""
    data: DataConfig = field(default_factory=DataConfig)
    """What is read."""
    train: LoopConfig = field(default_factory=LoopConfig)
    """How the run goes."""

    RENAMED_KEYS: ClassVar[Mapping[str, str]] = {
        "model.positions": "model.max_positions",
        "model.start": "model.init",
        "generator.share": "generator.tie",
        "objective.mask_shown": "objective.mask_token_prob",
        "objective.mask_random": "objective.random_token_prob",
        "objective.count": "objective.mask_count_rounding",
        "objective.draw": "objective.mask_sampling",
        "objective.exclude_true": "objective.disallow_correct",
        "objective.copy_start": "objective.init_from_generator",
        "data.length": "data.seq_length",
        "data.batch": "data.batch_size",
        "data.documents": "data.document_mask",
        "train.accumulate": "train.grad_accumulation",
        "train.graph": "train.cuda_graph",
        "train.kernels": "train.fused_kernels",
        "train.recompute": "train.activation_checkpointing",
        "train.track": "train.logger",
    }
    RENAMED_VALUES: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "model.init": {"neighbours": "local"},
        "train.fused_kernels": {"true": "auto", "false": "off"},
    }

    def __post_init__(self) -> None:
        parse_budget(self.train.budget)
        check_together(self.objective, self.model, self.generator)
        if self.data.document_mask and self.objective.kind == "electric":
            raise UserError(
                "The two towers of objective.kind=electric read a row as one text: leave out "
                "data.document_mask."
            )
        if self.data.batch_size % self.train.grad_accumulation:
            divisors = [
                n for n in range(1, self.data.batch_size + 1) if self.data.batch_size % n == 0
            ]
            near = sorted(divisors, key=lambda n: abs(n - self.train.grad_accumulation))[:3]
            raise UserError(
                f"A batch of {self.data.batch_size} rows does not divide into "
                f"{self.train.grad_accumulation} micro-batches: set train.grad_accumulation to "
                f"{', '.join(map(str, sorted(near)))} or change data.batch_size."
            )


def start(config: PretrainConfig, out: Path, console: Console) -> int:
    """Begin a run in a new folder; returns the exit code."""
    if (out / "config.yaml").exists():
        raise UserError(
            f"{out} already holds a run: add --resume to go on with it, or choose another --out."
        )
    check_out_dir(out, "run")
    config, shards, vocab = resolve_data(config)
    folder = str(shards.folder.resolve())  # to resume from anywhere
    config = replace(config, data=replace(config.data, folder=folder))
    with lock_run_dir(out):
        try:
            shutil.copytree(shards.tokenizer, out / "tokenizer")
            write_atomic(out / "config.yaml", to_yaml(config).encode())
            return run_loop(config, out, shards, vocab, console)
        except Exception:
            if not read_metrics(out):  # failed before it began: the folder is free again
                shutil.rmtree(out, ignore_errors=True)
            raise


def resolve_data(config: PretrainConfig) -> tuple[PretrainConfig, Shards, Vocabulary]:
    """The settings with the size of the data's vocabulary, the data, and the vocabulary."""
    shards = open_data(config.data, config.model.max_positions)
    vocab = load_vocabulary(shards.tokenizer)
    if shards.fingerprint != fingerprint(load_tokenizer(shards.tokenizer)):
        raise UserError(
            f"{shards.tokenizer} is not the tokenizer that the rows beside it were made with: "
            "prepare the text again."
        )
    if config.model.vocab_size not in (0, vocab.size):
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but the tokenizer of {shards.folder} has "
            f"{vocab.size} ids: leave model.vocab_size at 0."
        )
    return replace(config, model=replace(config.model, vocab_size=vocab.size)), shards, vocab


def row_workloads(config: PretrainConfig) -> tuple[Workload, ...]:
    """What the networks do with a row in a step."""
    length, o = config.data.seq_length, config.objective
    slots = max_masked(length, o.top_rate, o.mask_count_rounding)
    return workloads_of(o.kind, config.model, config.generator, length, slots)


def flops_per_row(config: PretrainConfig) -> int:
    """Arithmetic of a step for each row, as the hardware does it."""
    return row_flops(row_workloads(config), config.data.seq_length)


def budget_steps(config: PretrainConfig) -> int | None:
    """Steps until the budget is spent; None if the clock decides."""
    data = config.data
    return parse_budget(config.train.budget).steps(
        tokens_per_step=data.batch_size * data.seq_length,
        flops_per_step=data.batch_size * flops_per_row(config),
    )


def resume(out: Path, console: Console, data: Path | None = None) -> int:
    """Go on with a run from its last checkpoint; the folder is all that is needed."""
    config = read_run_config(out)
    if data is not None:  # the shards may have moved; their digest is compared below
        config = replace(config, data=replace(config.data, folder=str(data)))
    elif not Path(config.data.folder).is_dir():
        raise UserError(
            f"'{config.data.folder}', the data of {out}, is no folder of token shards any more: "
            "say with --data where it is now."
        )
    with lock_run_dir(out):
        shards = open_data(config.data, config.model.max_positions)
        if shards.fingerprint != fingerprint(load_tokenizer(out / "tokenizer")):
            raise UserError(
                f"{shards.folder} was prepared with another tokenizer than the run {out}: give the "
                "data that the run was started with."
            )
        vocab = load_vocabulary(out / "tokenizer")
        return run_loop(config, out, shards, vocab, console)


def read_run_config(out: Path) -> PretrainConfig:
    """The configuration that a run or a checkpoint was started with."""
    path = out / "config.yaml"
    if not path.is_file():
        raise UserError(f"{out} holds no run: there is no config.yaml in it.")
    return from_yaml(PretrainConfig, path.read_bytes(), str(path))


def check_same(stored: PretrainConfig, wanted: PretrainConfig) -> None:
    """Refuse to resume with other settings than those that the run was started with."""
    found, others = dict(flatten(stored)), dict(flatten(wanted))
    for key, value in found.items():
        filled_in = key in ("data.folder", "model.vocab_size")  # by the start of the run
        if value != others[key] and not filled_in:
            raise UserError(
                f"The run was started with {key}={value}, not {others[key]}: a resumed run "
                "keeps its settings; leave that out, or start a new run in another --out."
            )


def build_objective(config: PretrainConfig, vocab: Vocabulary) -> Objective:
    """The networks with their initial weights, and the loss."""
    ids = VocabInfo(vocab.mask, vocab.special, vocab.absent)
    objective = build(config.objective, config.model, config.generator, ids)
    objective.set_seed(config.train.seed)
    objective.document_start_id = vocab.cls if config.data.document_mask else None
    return objective


def run_loop(
    config: PretrainConfig, out: Path, shards: Shards, vocab: Vocabulary, console: Console
) -> int:
    """Build, restore where there is something to restore, train, and say how it ended."""
    with GracefulStop() as stop, build_run(config, out, shards, vocab, console) as run:
        position = run.state.rows
        first = torch.from_numpy(
            rows_at(shards, position, config.data.batch_size, config.train.seed)
        )
        dry_run(run, first.to(run.device))
        if not read_metrics(out):
            sizes = parameter_counts(run.objective)
            run.metrics_log.write("event", 0, message="started", parameters=sizes)
        run.view.say(_headline(run, shards))
        batches = stream(shards, config.data.batch_size, config.train.seed, position, run.device)
        train(run, batches, stop)
    last = checkpoint.checkpoints(out)
    if stop.signal is not None:
        console.print(
            f"Stopped by {stop.signal.name} at step {run.state.step}; "
            + (f"saved {last[-1]}. " if last else "")
            + f"Go on with: electra pretrain --resume --out {out}",
            soft_wrap=True,
            markup=False,
        )
        return 128 + stop.signal
    done = f"Done: {run.state.step:,} steps. The model is in {last[-1]}"
    console.print(done, soft_wrap=True, markup=False)
    return 0


@contextmanager
def build_run(
    config: PretrainConfig, out: Path, shards: Shards, vocab: Vocabulary, console: Console
) -> Iterator[Run]:
    """A run with everything in place, at its last checkpoint if there is one."""
    torch.manual_seed(config.train.seed)
    device = choose_device(config.train.device)
    dtype = choose_precision(config.train.precision, device)
    objective = build_objective(config, vocab).to(device)
    optim, loop = config.optim, config.train
    optimizer = build_optimizer(
        objective,
        optim,
        generator_modules=objective.generator_modules,
        kernels=loop.fused_kernels != "off",
    )
    state = load_latest(out, objective, optimizer, shards)
    if (
        loop.fused_kernels != "off"
        and not loop.compile
        and dtype == torch.bfloat16
        and knows_bf16(device)
    ):
        use_fused_kernels_(objective, recompute=loop.activation_checkpointing)
    elif device.type == "cpu" and not loop.compile:
        use_cheap_cpu_dropout_(objective)
    metrics_log = MetricsLog(out)
    metrics_log.rewind(state.step)
    sample = rows_at(shards, 0, min(4096, shards.rows("train")), config.train.seed)
    with ProgressView(console, f"electra pretrain · {config.name} · {out}") as view:
        metrics_log.logger = open_logger(config.train.logger, out, to_dict(config))
        try:
            yield Run(
                folder=out,
                loop=loop,
                optim=optim,
                budget=parse_budget(loop.budget),
                objective=objective,
                forward=torch.compile(objective, dynamic=False) if loop.compile else objective,
                optimizer=optimizer,
                state=state,
                dtype=dtype,
                micro_batch=config.data.batch_size // loop.grad_accumulation,
                flops_per_row=flops_per_row(config),
                peak=measure_peak(device, dtype),
                pad_id=vocab.pad,
                held_out=held_out_rows(shards, loop.validate_rows),
                metrics_log=metrics_log,
                view=view,
                health=HealthCheck(objective.unigram_loss(unigram_entropy(sample, vocab.special))),
            )
        finally:
            metrics_log.close()


def load_latest(
    out: Path, objective: Objective, optimizer: Optimizer, shards: Shards
) -> TrainState:
    """Put a run back to its last checkpoint; without one it is at its beginning."""
    checkpoint.clean(out)
    saved = checkpoint.checkpoints(out)
    if not saved:
        set_unigram_counts(objective, shards)
        return TrainState(data_digest=shards.digest)
    state = checkpoint.restore(saved[-1], objective, optimizer)
    if state.data_digest != shards.digest:
        raise UserError(
            f"{shards.folder} is not the data that {out} was started with: give the same shards, "
            "or start a new run."
        )
    return state


def set_unigram_counts(objective: Objective, shards: Shards) -> None:
    """Tell a unigram generator the frequencies of the training text; others need none."""
    generator = getattr(objective, "generator", None)
    if isinstance(generator, FrequencyGenerator) and generator.counted:
        generator.set_counts(torch.from_numpy(token_counts(shards, len(objective.maskable))))


def parameter_counts(objective: nn.Module) -> dict[str, int]:
    """Parameters of each network that has some, what they share counted in each."""
    parts = {name: list(part.parameters()) for name, part in objective.named_children()}
    return {name: sum(p.numel() for p in part) for name, part in parts.items() if part}


def _headline(run: Run, shards: Shards) -> str:
    counts = parameter_counts(run.objective)
    sizes = ", ".join(f"{name} {n / 1e6:.1f} M" for name, n in counts.items())
    where = "Resuming at step" if run.state.step else "Starting at step"
    precision = str(run.dtype).removeprefix("torch.")
    return (
        f"{where} {run.state.step:,} on {run.device.type} in {precision}: parameters of the "
        f"{sizes}; {shards.tokens / 1e6:.1f} M tokens of text, {run.loop.budget}."
    )
