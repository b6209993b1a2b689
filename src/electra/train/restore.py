"""The state that a run begins with: that of its latest checkpoint, on all ranks."""

from collections.abc import Mapping
from pathlib import Path

import torch

from electra.errors import UserError
from electra.files import new_folder
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.objective import Objective
from electra.optim.shards import is_sharded
from electra.text.shards import Shards
from electra.text.tokenizer import copy_tokenizer
from electra.train import checkpoint
from electra.train.checkpoint import TrainState
from electra.train.data import data_digest
from electra.train.distributed import set_rank_random_state
from electra.train.step import Step
from electra.train.validation import token_counts


def keep_tokenizer(shards: Shards, out: Path) -> None:
    """Copy the tokenizer of the shards into a run folder, completely or not at all."""
    with new_folder(out / "tokenizer") as staging:
        copy_tokenizer(shards.tokenizer, staging)


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
            f"{first.location} is not the data that {out} was started with: give the same shards, "
            "or start a new run."
        )
    return state


def share_state(
    out: Path, step: Step, state: TrainState, shards: Mapping[int, Shards], seed: int
) -> TrainState:
    """Give all ranks the state that the first one has loaded; only dropout differs.

    If the run is sharded, each rank reads its own part of the checkpoint.
    """
    ranks = step.ranks
    if ranks.size == 1:
        return state
    saved = checkpoint.checkpoints(out) if ranks.first else []
    random = checkpoint.read_random_states(saved[-1]) if saved else None
    state, random = ranks.broadcast((state, random))
    with ranks.together():
        if step.sharded and state.step and not ranks.first:
            path = checkpoint.path_of(out, state.step)
            checkpoint.restore(path, step.objective, step.optimizer, step.ema)
    groups = checkpoint.tensor_groups(step.objective, step.optimizer, step.ema).values()
    tensors = [tensor for group in groups for tensor in group.values()]
    ranks.broadcast_(tensor for tensor in tensors if not is_sharded(tensor))
    set_rank_random_state(ranks, seed, state.step, random)
    with ranks.together():
        if data_digest(shards) != state.data_digest:
            where = next(iter(shards.values())).location
            raise UserError(f"{where} does not hold the same shards on all machines: copy them.")
    return state


def set_unigram_counts(objective: Objective, shards: Shards) -> None:
    """Give a unigram generator the token counts of the training text."""
    generator = getattr(objective, "generator", None)
    if isinstance(generator, FrequencyGenerator) and generator.counted:
        generator.set_counts(torch.from_numpy(token_counts(shards, len(objective.maskable))))
