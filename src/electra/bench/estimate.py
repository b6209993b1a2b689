"""`electra bench estimate`: how long a recipe takes, from a few minutes of it."""

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
    """What was measured, and the recipe at that pace."""

    steps: int
    seconds: float
    """From the first step to the last, with reports, validation and checkpoints in between."""
    validations: int
    checkpoints: int
    tokens_per_second: float
    total_steps: int
    total_seconds: float


def estimate_run(config: PretrainConfig, duration: str, console: Console) -> Estimate:
    """Train for `duration` and extrapolate to the budget of the recipe."""
    if parse_budget(duration).unit != "seconds":
        raise UserError(f"--for {duration} is not a time: write for example 3min.")
    config.data.single_phase("electra bench estimate")
    config = resolve_data(config)[0]  # FLOPs depend on the vocabulary
    total = total_steps(config)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if start(override(config, [f"train.budget={duration}"]), out, console, temporary=True):
            raise UserError("The run was stopped before it was measured.")
        state = read_state(checkpoints(out)[-1])
        validated = [line["step"] for line in read_metrics(out) if line["kind"] == "held_out"]
    return Estimate(
        steps=state.step,
        seconds=state.seconds,
        # The last validation comes after the clock has stopped.
        validations=sum(step < state.step for step in validated),
        checkpoints=(state.step - 1) // config.train.checkpoint_every,
        tokens_per_second=state.tokens / state.seconds,
        total_steps=total,
        total_seconds=total * state.seconds / state.step,
    )


def format_duration(seconds: float) -> str:
    """1 h 8 min, 3 min or 40 s."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min"


def total_steps(config: PretrainConfig) -> int:
    """Steps of the recipe's budget."""
    steps = budget_steps(config)
    if steps is None:
        raise UserError(
            f"train.budget={config.train.budget} is a time already: give steps, tokens or FLOPs."
        )
    return steps
