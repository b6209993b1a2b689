"""`electra bench whole`: how long all of a recipe would take, from a stretch of it."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from electra.config import override
from electra.errors import UserError
from electra.train.budget import parse_budget
from electra.train.checkpoint import checkpoints, read_state
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import budget_steps, resolve_data, start
from electra.train.settings import PretrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A stretch as it was, and the whole run at its pace."""

    steps: int
    seconds: float
    """Of the stretch, from the first step to the last, with all that comes between."""
    looks: int
    """At held-out text, in between."""
    checkpoints: int
    tokens_per_second: float
    whole_steps: int
    whole_seconds: float


def estimate_run(config: PretrainConfig, stretch: str, console: Console) -> Estimate:
    """An ordinary run for that time, with its reports, validation and checkpoints."""
    if parse_budget(stretch).unit != "seconds":
        raise UserError(f"--stretch {stretch}: write a time, as 3min.")
    config = resolve_data(config)[0]  # FLOPs depend on the vocabulary
    total = whole_steps(config)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if start(override(config, [f"train.budget={stretch}"]), out, console):
            raise UserError("The run was stopped before it was measured.")
        state = read_state(checkpoints(out)[-1])
        looks = [line["step"] for line in read_metrics(out) if line["kind"] == "held_out"]
    return Estimate(
        steps=state.step,
        seconds=state.seconds,
        # Those after the last step come when the clock has stopped
        looks=sum(step < state.step for step in looks),
        checkpoints=(state.step - 1) // config.train.checkpoint_every,
        tokens_per_second=state.tokens / state.seconds,
        whole_steps=total,
        whole_seconds=total * state.seconds / state.step,
    )


def whole_steps(config: PretrainConfig) -> int:
    """Steps of the recipe's own budget."""
    steps = budget_steps(config)
    if steps is None:
        raise UserError(
            f"train.budget={config.train.budget} is a time already: give steps, tokens or FLOPs."
        )
    return steps
