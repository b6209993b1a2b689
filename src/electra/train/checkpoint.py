"""Checkpoints: folders that are written atomically and contain no pickle.

RUN/checkpoints/step-00001000/
    state.json               step, position in the data, time, held-out metrics
    config.yaml              the run's configuration
    model.safetensors        the networks (shared weights once) and buffers of the objective
    optimizer.safetensors    Adam's moments of each parameter
    ema.safetensors          with optim.ema, the moving average of each parameter
    sharded/                 instead of these three, if FSDP2 sharded the run: a file of each rank
    random.safetensors       the random generators, with several processes those of each
    discriminator/           a folder for transformers, with the tokenizer; with optim.ema, the
                             average of the weights
    generator/               the same; which networks exist depends on the objective
"""

import contextlib
import dataclasses
import json
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from electra.device import set_random_state
from electra.errors import UserError
from electra.files import is_disk_full, make_folder, sync, sync_tree
from electra.hub.electric import mark_electric
from electra.hub.folders import export, save_tensors
from electra.json_types import check_fields, parse_json
from electra.models.encoder import current_parameter_name
from electra.objectives.electric import Electric
from electra.objectives.objective import Objective
from electra.optim.ema import WeightEma
from electra.optim.optimizer import Optimizer
from electra.optim.shards import copy_whole_
from electra.text.tokenizer import copy_tokenizer
from electra.train.sharded_files import read_shards, stored_shapes

SHARDED = "sharded"
"""The folder of the tensors in the checkpoint of a sharded run."""


@dataclass(slots=True, kw_only=True)
class TrainState:
    """The state of a run, except for tensors."""

    step: int = 0
    rows: int = 0
    """Rows trained on."""
    rows_of_length: dict[int, int] = field(default_factory=dict)
    """The same for each sequence length: the position in its endless stream of rows."""
    known_positions: int = 0
    """Rows of the position table that were trained before the run, in a model that it continues."""
    tokens: int = 0
    """Tokens trained on: rows x length, padding included, as the paper counts."""
    seconds: float = 0.0
    """Training time, including that before a resume."""
    data_digest: str = ""
    """Identity of the shards."""
    held_out: dict[str, float] = field(default_factory=dict)
    """Held-out metrics at this step, if validated."""
    best: dict[str, float] = field(default_factory=dict)
    """Step, held-out loss and sequence length of the best checkpoint."""
    unreported: dict[str, float] = field(default_factory=dict)
    """Sums of metrics since the last report, and the number of `steps`."""

    def __post_init__(self) -> None:
        # JSON has no numbers as keys; checkpoints of earlier versions have one length.
        self.rows_of_length = {int(n): rows for n, rows in self.rows_of_length.items()}
        if self.rows and not self.rows_of_length:
            self.rows_of_length = {self.tokens // self.rows: self.rows}

    def advance(self, rows: int, length: int) -> None:
        """Count a step on a batch of so many rows."""
        self.step += 1
        self.rows += rows
        self.rows_of_length[length] = self.rows_of_length.get(length, 0) + rows
        self.tokens += rows * length
        self.held_out = {}


def save(
    run: Path,
    state: TrainState,
    objective: Objective,
    optimizer: Optimizer,
    ema: WeightEma | None = None,
    *,
    random: dict[str, Tensor],
    pad_id: int,
) -> Path:
    """Write the checkpoint of this step under a temporary name, then rename it into place.

    `random` is the state of the random generators.
    """
    partial = begin(run, state.step)
    if partial is None:
        return path_of(run, state.step)
    with completed(partial, run, state, random):
        for name, tensors in tensor_groups(objective, optimizer, ema).items():
            save_tensors(partial / f"{name}.safetensors", tensors)
        with contextlib.nullcontext() if ema is None else ema.applied():
            export_networks(objective, partial, run / "tokenizer", pad_id)
    return path_of(run, state.step)


def path_of(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:08d}"


def begin(run: Path, step: int) -> Path | None:
    """Create the temporary folder of a checkpoint; None if the checkpoint is there already."""
    final = path_of(run, step)
    if final.exists():  # the same step of the same run, saved before an interruption
        return None
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    return partial


@contextlib.contextmanager
def completed(
    partial: Path, run: Path, state: TrainState, random: dict[str, Tensor]
) -> Iterator[None]:
    """Write what is no network, and after the `with` give the checkpoint its name.

    After an error, nothing of it is left.
    """
    final = path_of(run, state.step)
    try:
        save_tensors(partial / "random.safetensors", random)
        shutil.copyfile(run / "config.yaml", partial / "config.yaml")
        text = json.dumps(dataclasses.asdict(state), indent=2)
        (partial / "state.json").write_text(text + "\n", encoding="utf-8")
        yield
        sync_tree(partial)
        partial.rename(final)
        sync(final.parent)
    except BaseException as error:  # interruptions too: leave nothing half-written
        shutil.rmtree(partial, ignore_errors=True)
        if is_disk_full(error):
            raise UserError(
                f"The disk is full: the checkpoint of step {state.step} could not be written. Free "
                "some space and continue with: electra pretrain --resume --out "
                f"{shlex.quote(str(run))}"
            ) from None
        raise


def restore(
    checkpoint: Path,
    objective: Objective,
    optimizer: Optimizer | None = None,
    ema: WeightEma | None = None,
) -> TrainState:
    """Load a checkpoint to continue its run; its tensors must be exactly those of the run."""
    with _readable(checkpoint):
        for name, tensors in tensor_groups(objective, optimizer, ema).items():
            _load(checkpoint, name, tensors)
        if optimizer is not None:
            restore_random_state(checkpoint)
        return read_state(checkpoint)


def tensor_groups(
    objective: Objective, optimizer: Optimizer | None, ema: WeightEma | None
) -> dict[str, dict[str, Tensor]]:
    """The tensors of a checkpoint but the random states, by the file that one process writes."""
    parameters: dict[str, Tensor] = dict(objective.named_parameters())
    groups = {"model": parameters | _buffers(objective)}
    if optimizer is not None:
        groups["optimizer"] = _moments(parameters, optimizer)
    if ema is not None:
        groups["ema"] = ema.tensors()
    return groups


def read_random_states(checkpoint: Path) -> dict[str, Tensor]:
    """The random states of all ranks, as `gather_random_states` names them."""
    with _readable(checkpoint):
        return load_file(checkpoint / "random.safetensors")


def restore_random_state(checkpoint: Path) -> None:
    """Set the random generators to the state of a checkpoint."""
    with _readable(checkpoint):
        set_random_state(load_file(checkpoint / "random.safetensors"))


def restore_for_inference(checkpoint: Path, objective: Objective) -> None:
    """Load the weights that the checkpoint exports: with `optim.ema`, their average."""
    restore(checkpoint, objective)
    with _readable(checkpoint):
        if "ema" in stored_groups(checkpoint):
            averages = dict(objective.named_parameters()) | {"updates": torch.tensor(0)}
            _load(checkpoint, "ema", averages)


def read_state(checkpoint: Path) -> TrainState:
    """The `TrainState` of a checkpoint."""
    with _readable(checkpoint):
        values = parse_json((checkpoint / "state.json").read_bytes())
        check_fields(TrainState, values)
        return TrainState(**values)


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    return sorted((run / "checkpoints").glob("step-*"))


def prune(
    run: Path, state: TrainState, *, keep_last: int, keep_best: bool, keep: Collection[int] = ()
) -> None:
    """Delete old checkpoints, except the last few, the best one and those of the steps `keep`."""
    best = [int(state.best["step"])] if keep_best and state.best else []
    kept = {f"step-{step:08d}" for step in (*best, *keep)}
    for old in checkpoints(run)[:-keep_last]:
        if old.name not in kept:
            # Renamed first: a half-deleted folder must not pass for a checkpoint.
            doomed = old.with_name(f".{old.name}.partial")
            old.rename(doomed)
            shutil.rmtree(doomed)


def clean(run: Path) -> None:
    """Remove checkpoints that a killed process left half-written."""
    for partial in (run / "checkpoints").glob(".step-*.partial"):
        shutil.rmtree(partial)


def export_networks(objective: Objective, folder: Path, tokenizer: Path, pad_id: int) -> None:
    """Write the folders for transformers."""
    for name, network in objective.networks().items():
        export(network, folder / name, pad_id)
        if isinstance(objective, Electric):
            mark_electric(folder / name)
        copy_tokenizer(tokenizer, folder / name)


def _buffers(objective: Objective) -> dict[str, Tensor]:
    """Persistent buffers by name, such as token counts and the stage of a run."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in objective.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def _moments(parameters: dict[str, Tensor], optimizer: Optimizer) -> dict[str, Tensor]:
    """Adam's moments of each parameter, by name."""
    return {
        f"{kind}.{name}": tensor
        for name, p in parameters.items()
        for kind, tensor in optimizer.moments(p).items()
    }


def stored_groups(checkpoint: Path) -> set[str]:
    """The groups of `tensor_groups` that a checkpoint has."""
    if (checkpoint / SHARDED).is_dir():
        return {name.partition(".")[0] for name in stored_shapes(checkpoint / SHARDED)}
    return {path.stem for path in checkpoint.glob("*.safetensors")}


def _load(checkpoint: Path, group: str, wanted: dict[str, Tensor]) -> None:
    """Fill a group of tensors from the file of one process, or from those of several ranks."""
    sharded, prefix = checkpoint / SHARDED, f"{group}."
    if sharded.is_dir():
        shapes = {
            name.removeprefix(prefix): shape
            for name, shape in stored_shapes(sharded).items()
            if name.startswith(prefix)
        }
        places = _match(checkpoint, shapes, wanted)
        read_shards(sharded, {prefix + name: tensor for name, tensor in places.items()})
        return
    stored = load_file(checkpoint / f"{group}.safetensors")
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    for name, tensor in _match(checkpoint, shapes, wanted).items():
        copy_whole_(tensor, stored[name])


def _match(
    checkpoint: Path, shapes: Mapping[str, torch.Size], wanted: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The wanted tensors by their stored names; names and shapes must be the same."""
    current = {name: current_parameter_name(name) for name in shapes}
    if odd := sorted(wanted.keys() ^ current.values()):
        raise UserError(f"{checkpoint} is not of this model: {odd[0]} is missing in one of them.")
    for name, shape in shapes.items():
        if shape != wanted[current[name]].shape:
            raise UserError(f"{checkpoint} is not of this model: {name} has another shape.")
    return {name: wanted[now] for name, now in current.items()}


@contextlib.contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except (
        *(OSError, SafetensorError, ValueError, TypeError, KeyError, AttributeError),
        *(ZeroDivisionError, RuntimeError),  # tensors of a shape or type that torch refuses
    ) as error:
        raise UserError(
            f"The checkpoint {checkpoint} cannot be read ({error}); delete that folder to "
            "resume from the one before it."
        ) from None
