"""The learning rate as a function of progress, so that a run of any length ends at 0.

Only the warmup is counted in steps, because a network needs as many of them in a short run as in a
long one.
"""

from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError

LONGEST_WARMUP = 0.25
"""The largest fraction of a run that warmup steps may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over a run."""

    lr: float = 5e-4
    """Peak learning rate."""
    generator_lr: float = 0.0
    """Peak learning rate of the generator's own parameters; 0 means the same as `lr`. Parameters
    that both networks share have the discriminator's."""
    warmup: float = 10_000
    """Warmup steps, at most a quarter of the run; below 1, a fraction of the run."""
    decay_power: float = 1.0
    """The learning rate decays as (1 - progress) to this power; 1 is linear."""
    schedule: Literal["product", "sequential"] = "product"
    """'product' multiplies warmup and decay, as google-research/electra does; 'sequential' reaches
    the peak at the end of the warmup and decays from there."""

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(
                "optim.warmup is a number of steps, or below 1 a fraction of the run: at least 0."
            )
        for name in ("lr", "generator_lr", "decay_power"):
            if getattr(self, name) < 0:
                raise UserError(f"optim.{name} must be at least 0.")
        if self.generator_lr and not self.lr:
            raise UserError("optim.generator_lr needs an optim.lr above 0.")


def warmup_share(steps: float, config: ScheduleConfig) -> float:
    """Return the warmup as a fraction of a run of `steps` steps."""
    if config.warmup < 1:
        return config.warmup
    return min(LONGEST_WARMUP, config.warmup / steps)


def learning_rate(progress: float, steps: float, config: ScheduleConfig) -> float:
    """Return the learning rate of the step that starts at `progress`; the first one's is 0."""
    progress, warmup = min(progress, 1.0), warmup_share(steps, config)
    rise = min(1.0, progress / warmup) if warmup else 1.0
    if config.schedule == "product":
        fall = (1 - progress) ** config.decay_power
    else:
        fall = min(1.0, (1 - progress) / (1 - warmup)) ** config.decay_power
    return config.lr * rise * fall
