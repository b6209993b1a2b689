"""The state that a run begins with: that of its latest checkpoint, on all ranks."""

from collections.abc import Mapping
from pathlib import Path

import torch

from electra.errors import UserError
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.objective import Objective
from electra.text.shards import Shards
from electra.train import checkpoint
from electra.train.checkpoint import TrainState
from electra.train.data import data_digest
from electra.train.distributed import set_rank_random_state
from electra.train.step import Step
from electra.train.validation import token_counts


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
    """Give all ranks the state that the first one has loaded; only dropout differs."""
    ranks = step.ranks
    if ranks.size == 1:
        return state
    saved = checkpoint.checkpoints(out) if ranks.first else []
    random = checkpoint.read_random_states(saved[-1]) if saved else None
    state, random = ranks.broadcast((state, random))
    ranks.broadcast_(checkpoint.run_tensors(step.objective, step.optimizer, step.ema).values())
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
