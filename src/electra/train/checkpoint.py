"""Checkpoints: folders that are written atomically and contain no pickle.

RUN/checkpoints/step-00001000/
    state.json               step, position in the data, time, held-out metrics
    config.yaml              the run's configuration
    model.safetensors        the networks (shared weights once) and buffers of the objective
    optimizer.safetensors    Adam's moments of each parameter
    ema.safetensors          with optim.ema, the moving average of each parameter
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
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from electra.device import set_random_state
from electra.errors import UserError
from electra.files import is_disk_full, make_folder, sync, sync_tree
from electra.hub.electric import mark_electric
from electra.hub.folders import export, save_tensors
from electra.models.encoder import current_parameter_name
from electra.objectives.electric import Electric
from electra.objectives.objective import Objective
from electra.optim.ema import WeightEma
from electra.optim.optimizer import Optimizer


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
    final = run / "checkpoints" / f"step-{state.step:08d}"
    if final.exists():  # the same step of the same run, saved before an interruption
        return final
    partial = final.with_name(f".{final.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    try:
        parameters: dict[str, Tensor] = dict(objective.named_parameters())
        save_tensors(partial / "model.safetensors", parameters | _buffers(objective))
        save_tensors(partial / "optimizer.safetensors", _moments(parameters, optimizer))
        save_tensors(partial / "random.safetensors", random)
        if ema is not None:
            save_tensors(partial / "ema.safetensors", ema.tensors())
        with contextlib.nullcontext() if ema is None else ema.applied():
            _export_networks(objective, partial, run / "tokenizer", pad_id)
        shutil.copyfile(run / "config.yaml", partial / "config.yaml")
        text = json.dumps(dataclasses.asdict(state), indent=2)
        (partial / "state.json").write_text(text + "\n", encoding="utf-8")
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
    return final


def restore(
    checkpoint: Path,
    objective: Objective,
    optimizer: Optimizer | None = None,
    ema: WeightEma | None = None,
) -> TrainState:
    """Load a checkpoint to continue its run; its tensors must be exactly those of the run."""
    with _readable(checkpoint):
        parameters: dict[str, Tensor] = dict(objective.named_parameters())
        model = parameters | _buffers(objective)
        _copy_all(load_file(checkpoint / "model.safetensors"), model, checkpoint)
        state = read_state(checkpoint)
        if optimizer is not None:
            moments = _moments(parameters, optimizer)
            _copy_all(load_file(checkpoint / "optimizer.safetensors"), moments, checkpoint)
            set_random_state(load_file(checkpoint / "random.safetensors"))
        if ema is not None:
            _copy_all(load_file(checkpoint / "ema.safetensors"), ema.tensors(), checkpoint)
    return state


def run_tensors(
    objective: Objective, optimizer: Optimizer, ema: WeightEma | None
) -> dict[str, Tensor]:
    """All tensors of a checkpoint but the random states; the ranks of a run have the same ones."""
    parameters: dict[str, Tensor] = dict(objective.named_parameters())
    averages = {} if ema is None else {f"ema.{name}": t for name, t in ema.tensors().items()}
    return parameters | _buffers(objective) | _moments(parameters, optimizer) | averages


def read_random_states(checkpoint: Path) -> dict[str, Tensor]:
    """The random states of all ranks, as `gather_random_states` names them."""
    with _readable(checkpoint):
        return load_file(checkpoint / "random.safetensors")


def restore_for_inference(checkpoint: Path, objective: Objective) -> None:
    """Load the weights that the checkpoint exports: with `optim.ema`, their average."""
    restore(checkpoint, objective)
    if (checkpoint / "ema.safetensors").is_file():
        with _readable(checkpoint):
            averages = load_file(checkpoint / "ema.safetensors")
            del averages["updates"]
            _copy_all(averages, dict(objective.named_parameters()), checkpoint)


def read_state(checkpoint: Path) -> TrainState:
    """The `TrainState` of a checkpoint."""
    with _readable(checkpoint):
        return TrainState(**json.loads((checkpoint / "state.json").read_text(encoding="utf-8")))


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


def _export_networks(objective: Objective, folder: Path, tokenizer: Path, pad_id: int) -> None:
    """Write the folders for transformers."""
    for name, network in objective.networks().items():
        export(network, folder / name, pad_id)
        if isinstance(objective, Electric):
            mark_electric(folder / name)
        shutil.copytree(tokenizer, folder / name, dirs_exist_ok=True)


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


def _copy_all(stored: dict[str, Tensor], wanted: dict[str, Any], checkpoint: Path) -> None:
    stored = {current_parameter_name(name): tensor for name, tensor in stored.items()}
    if stored.keys() != wanted.keys():
        odd = sorted(stored.keys() ^ wanted.keys())
        raise UserError(f"{checkpoint} is not of this model: {odd[0]} is missing in one of them.")
    with torch.no_grad():
        for name, tensor in wanted.items():
            if tensor.shape != stored[name].shape:
                raise UserError(f"{checkpoint} is not of this model: {name} has another shape.")
            tensor.copy_(stored[name])


@contextlib.contextmanager
def _readable(checkpoint: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"The checkpoint {checkpoint} cannot be read ({error}); delete that folder to "
            "resume from the one before it."
        ) from None
