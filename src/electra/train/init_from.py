"""Start a run from a trained model: its sizes, its weights, and where they came from."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from electra.errors import UserError
from electra.files import file_sha256
from electra.hub.electric import is_electric
from electra.hub.folders import (
    load_tokenizer_and_vocab,
    load_weights_,
    named_tensors,
    network_folders,
    read_config,
)
from electra.hub.import_model import find_checkpoint
from electra.model_paths import find_model
from electra.models.electra import DisentangledEmbeddings, Generator, generator_sizes
from electra.models.encoder import EncoderConfig
from electra.models.flops import Workload, row_flops
from electra.objectives.mlm import MaskedLanguageModel
from electra.objectives.objective import Objective
from electra.objectives.rtd import ReplacedTokenDetection
from electra.text.shards import Shards
from electra.text.tokenizer import fingerprint
from electra.train.budget import parse_budget
from electra.train.checkpoint import read_state

if TYPE_CHECKING:
    from electra.train.settings import PretrainConfig

KINDS = ("rtd", "rtd-masked", "mlm")
"""The objectives whose networks can be loaded from a model."""
LR_DIVISOR = 5
"""The recipe's peak learning rate, divided by this, is that of trained weights."""
WARMUP = 0.1
"""The warm-up of a continued run, as a fraction of each stage."""
GENERATOR_FIRST = 0.1
"""Fraction of the run for which a new generator is trained alone."""
SIZES = ("layers", "hidden", "head_count", "feed_forward_width", "embedding", "max_positions")
SETTINGS = {"head_count": "heads", "feed_forward_width": "feed_forward"}
"""The setting behind a size, if it has another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitFromConfig:
    """The trained model that a run starts from; `--init-from` sets it."""

    model: str = ""
    """A folder or a name; without one, the run starts from random weights."""
    sha256: str = ""
    """SHA-256 of the `model.safetensors` that the discriminator (or, in a run with
    `objective.kind=mlm`, the model) starts from; a run records it."""
    generator_sha256: str = ""
    """The same for the generator."""


@dataclass(frozen=True, slots=True)
class SourceFolders:
    """The folders of the networks that a run starts from."""

    kept: Path | None
    """The discriminator, or the masked language model of `objective.kind=mlm`."""
    generator: Path | None

    @property
    def first(self) -> Path:
        folder = self.kept or self.generator
        assert folder is not None
        return folder


def find_source(config: "PretrainConfig") -> SourceFolders:
    """Find the networks for a run in another run, an imported model, a folder or a Hub model."""
    model, kind = config.init_from.model, config.objective.kind
    if kind not in KINDS:
        raise UserError(
            f"--init-from does not work with objective.kind={kind}, only with {', '.join(KINDS)}."
        )
    folder = find_trained_model(model)
    found = network_folders(folder)
    for path in found.values():
        if is_electric(path):
            raise UserError(
                f"{path} is an Electric model, whose outputs are energies: start from a model that "
                "detects replaced tokens."
            )
    if kind == "mlm":
        kept = found.get("mlm") or found.get("generator")
        if kept is None:
            raise UserError(
                f"{folder} has no masked language model, only a discriminator: leave out "
                "objective.kind=mlm."
            )
        return SourceFolders(kept, None)
    if found.keys() == {"mlm"}:
        raise UserError(
            f"{folder} has only a masked language model: set objective.kind=mlm to continue it."
        )
    generator = found.get("generator") if config.generator.kind == "transformer" else None
    return SourceFolders(found.get("discriminator"), generator)


def find_trained_model(model: str) -> Path:
    """Return the folder of a model; a TensorFlow checkpoint must be imported first."""
    if find_checkpoint(model) is not None:
        raise UserError(
            f"{model} is a TensorFlow checkpoint: import it first, with: electra import "
            f"{shlex.quote(model)} --out MODEL"
        )
    return find_model(model)


def origin_name(model: str) -> str:
    """Return how a run records its origin: a folder's full path, or a name as it is."""
    return str(find_model(model).resolve()) if Path(model).expanduser().is_dir() else model


def resolve_init(config: "PretrainConfig", given: Collection[str] = ()) -> "PretrainConfig":
    """Return the configuration of a run that starts from `init_from.model`.

    Sizes that differ from the model's are refused. Settings of the schedule that are not in `given`
    become those of a continued run.
    """
    init, model = config.init_from, config.init_from.model
    source = find_source(config)
    config = check_sizes(config, source)
    for recorded, path in ((init.sha256, source.kept), (init.generator_sha256, source.generator)):
        if recorded and recorded != _sha256(path):
            raise UserError(
                f"The weights of {model} are not those that the configuration records: give the "
                "model that it was written for, or leave out init_from.sha256 and "
                "init_from.generator_sha256."
            )
    init = InitFromConfig(
        model=origin_name(model),
        sha256=_sha256(source.kept),
        generator_sha256=_sha256(source.generator),
    )
    config = replace(config, init_from=init)
    return continued_schedule(config, given, new=(source.kept is None, source.generator is None))


def continued_schedule(
    config: "PretrainConfig", given: Collection[str], *, new: tuple[bool, bool]
) -> "PretrainConfig":
    """Return the configuration with the learning rates of a continued run, unless `given` has them.

    New weights learn at the recipe's rate, trained ones at that divided by `LR_DIVISOR`; `new` says
    whether the discriminator and the generator are.
    """
    optim, objective, (new_discriminator, new_generator) = config.optim, config.objective, new
    has_generator = objective.kind != "mlm" and config.generator.kind == "transformer"
    if "optim.lr" not in given:
        lr = optim.lr / (1 if new_discriminator else LR_DIVISOR)
        generator_lr = (optim.generator_lr or optim.lr) / (1 if new_generator else LR_DIVISOR)
        if not has_generator or generator_lr == lr:
            generator_lr = 0.0
        if "optim.generator_lr" in given:
            generator_lr = optim.generator_lr
        muon_lr = optim.muon_lr
        if muon_lr and "optim.muon_lr" not in given:
            muon_lr *= lr / optim.lr
        optim = replace(optim, lr=lr, generator_lr=generator_lr, muon_lr=muon_lr)
    if "optim.warmup" not in given and not new_discriminator:
        optim = replace(optim, warmup=WARMUP)
    if has_generator and new_generator and "objective.generator_first" not in given:
        if objective.kind != "rtd":
            raise UserError(
                f"{config.init_from.model} has no generator, and objective.kind={objective.kind} "
                "cannot train one first: use objective.kind=rtd, or import a generator with it."
            )
        first = objective.generator_first or GENERATOR_FIRST
        objective = replace(objective, generator_first=first)
    return replace(config, optim=optim, objective=objective)


def describe_init(
    config: "PretrainConfig", works: Sequence[Workload], steps: int | None
) -> Iterator[str]:
    """Yield what to know before a continued run starts: its origin, its rate, a new generator."""
    init, optim = config.init_from, config.optim
    known = {"discriminator": init.sha256, "generator": init.generator_sha256}
    if config.objective.kind == "mlm":
        known = {"model": init.sha256}
    loaded = " and ".join(f"{name} (sha256 {sha[:12]})" for name, sha in known.items() if sha)
    rates = f"learning rate {optim.lr:g}"
    rates += f", of the generator {optim.generator_lr:g}" if optim.generator_lr else ""
    yield f"Starting from {init.model}: {loaded}; {rates}, warm-up {optim.warmup:g}."
    if init.sha256 and not init.generator_sha256 and config.objective.generator_first:
        share, phase = config.objective.generator_first, config.data.phases[0]
        length, mlm = phase.seq_length, works[0]
        sizes = mlm.sizes
        alone = share * row_flops([mlm], length) / row_flops(works, length)
        budget = parse_budget(config.train.budget)
        if steps is None:
            cost = f"{share * budget.amount / 60:.3g} of {budget.amount / 60:.3g} minutes"
        else:
            flops = steps * phase.batch_size * row_flops(works, length)
            cost = (
                f"{share * steps:,.0f} of {steps:,} steps, {alone * flops:.2g} of {flops:.2g} FLOPs"
            )
        yield (
            f"The model has no generator. A new one (layers {sizes.layers}, hidden size "
            f"{sizes.hidden}) is trained alone first, for {share:.0%} of the run: {cost}. The "
            "discriminator does not change meanwhile (objective.generator_first sets the share)."
        )


def check_sizes(config: "PretrainConfig", source: SourceFolders) -> "PretrainConfig":
    """Refuse sizes that differ from the model's; return the configuration with its vocabulary."""
    model = config.init_from.model
    vocab_size = read_config(source.first).vocab_size
    if config.model.vocab_size not in (0, vocab_size):
        raise UserError(
            f"model.vocab_size={config.model.vocab_size}, but {model} has a vocabulary of "
            f"{vocab_size}: leave model.vocab_size at 0."
        )
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    if source.kept is not None:
        for name, ours, theirs in _differing(config.model, read_config(source.kept)):
            setting = f"model.{name}"
            raise UserError(
                f"The recipe has {setting}={ours}, but {model} has {setting}={theirs}, and weights "
                f"cannot change their size: set {setting}={theirs}, or leave out the recipe to "
                "take all sizes from the model."
            )
    if source.generator is None:
        return config
    sizes = generator_sizes(config.model, config.generator)
    theirs_config = read_config(source.generator)
    for name, ours, theirs in _differing(sizes, theirs_config):
        width, depth, tie = config.generator.width, config.generator.depth, config.generator.tie
        raise UserError(
            f"generator.width={width:g}, generator.depth={depth:g} and generator.tie={tie} make a "
            f"generator with {name}={ours}, but that of {model} has {name}={theirs}: set "
            f"generator.width={theirs_config.hidden / config.model.hidden:g} "
            f"generator.depth={theirs_config.layers / config.model.layers:g}, or give the "
            "discriminator's folder alone to train a new generator."
        )
    return config


def check_tokenizer(config: "PretrainConfig", shards: Shards) -> None:
    """Refuse shards of another tokenizer than the model's."""
    folder = find_source(config).first
    tokenizer, _ = load_tokenizer_and_vocab(folder)
    if shards.fingerprint != fingerprint(tokenizer):
        raise UserError(
            f"{shards.location} was prepared with another tokenizer than that of "
            f"{config.init_from.model}: prepare the text again with --tokenizer "
            f"{shlex.quote(str(folder))}"
        )


def load_init_(objective: Objective, config: "PretrainConfig") -> None:
    """Copy the weights of `init_from.model` into the networks of a new run."""
    init = config.init_from
    source = find_source(config)
    if (init.sha256, init.generator_sha256) != (_sha256(source.kept), _sha256(source.generator)):
        raise UserError(
            f"The weights of {init.model} changed since this run was started from them, and it has "
            "no checkpoint yet: start a new run in another --out."
        )
    if isinstance(objective, MaskedLanguageModel):
        load_weights_(objective.mlm, source.first)
        return
    assert isinstance(objective, ReplacedTokenDetection)
    generator = objective.generator
    if source.generator is not None:
        assert isinstance(generator, Generator)
        load_weights_(generator, source.generator)
        before = {name: tensor.clone() for name, tensor in named_tensors(generator)}
    else:
        before = {}
    if source.kept is None:
        return
    load_weights_(objective.discriminator, source.kept)
    block = objective.discriminator.encoder.embeddings
    if isinstance(block, DisentangledEmbeddings):
        _disentangle_(block, generator_is_new=not before)
    for name, loaded in before.items():
        assert isinstance(generator, Generator)
        if not torch.equal(dict(named_tensors(generator))[name], loaded):
            raise UserError(
                f"The networks of {init.model} do not share what generator.tie="
                f"{config.generator.tie} shares ({name} differs): set generator.tie=gdes, or give "
                "the discriminator's folder alone to train a new generator."
            )


def trained_positions(config: "PretrainConfig") -> int:
    """Return how many rows of the position table the model of `init_from` has trained.

    A run of ours knows; for other models it is the whole table.
    """
    folder = find_source(config).first.parent
    if not (folder / "state.json").is_file():
        return config.model.max_positions
    state = read_state(folder)
    return max([state.known_positions, *state.rows_of_length])


@torch.no_grad()
def _disentangle_(block: DisentangledEmbeddings, *, generator_is_new: bool) -> None:
    """Turn loaded embeddings into a difference to the generator's, which a new one copies."""
    if generator_is_new:
        for ours, theirs in zip(block.parameters(), block.source.parameters(), strict=True):
            theirs.copy_(ours)
    for name in ("token", "position", "segment"):
        block.get_parameter(f"{name}.weight").sub_(block.source.get_parameter(f"{name}.weight"))


def _differing(ours: EncoderConfig, theirs: EncoderConfig) -> Iterator[tuple[str, int, int]]:
    """Yield the sizes that differ: the setting's name and both values."""
    for name in SIZES:
        a, b = getattr(ours, name), getattr(theirs, name)
        if a != b:
            yield SETTINGS.get(name, name), a, b


def _sha256(folder: Path | None) -> str:
    return "" if folder is None else file_sha256(folder / "model.safetensors")


def keep_resolved(base: "PretrainConfig", run: "PretrainConfig") -> "PretrainConfig":
    """Return a recipe with the settings that `resolve_init` decided for a run, to resume it."""
    if not run.init_from.model:
        return base
    optim = replace(
        base.optim,
        lr=run.optim.lr,
        generator_lr=run.optim.generator_lr,
        warmup=run.optim.warmup,
    )
    first = run.objective.generator_first
    objective = replace(base.objective, generator_first=first)
    return replace(base, optim=optim, objective=objective, init_from=run.init_from)
