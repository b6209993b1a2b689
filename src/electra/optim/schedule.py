"""The learning rate as a function of progress, so that a run of any length ends annealed.

The warm-up alone is counted in steps, because a network needs as many of them in a short run as in
a long one: as a share of the run it would be over, in a short one, before the network is ready.
"""

from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError

LONGEST_WARMUP = 0.25
"""Share of a short run beyond which steps of warm-up are cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The paper's optimizer and its schedule."""

    lr: float = 5e-4
    """Peak learning rate."""
    warmup: float = 10_000
    """Steps over which the rate rises from 0, at most a quarter of the run; below 1, the share of
    the run."""
    decay_power: float = 1.0
    """The rate falls as (1 - progress) to this power; 1 is linear."""
    schedule: Literal["product", "sequential"] = "product"
    """'product' multiplies warm-up and decay as the released code does; 'sequential' reaches the
    whole peak and decays from there, as linear schedules are usually written."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's two running means."""
    eps: float = 1e-6
    """Added to the root of the second mean."""
    weight_decay: float = 0.01
    """Decoupled decay of matrices and tables; biases and LayerNorm are exempt."""
    clip: float = 1.0
    """Largest norm of the gradient of both networks together."""

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(
                "optim.warmup is a number of steps, or below 1 a share of the run: at least 0."
            )
        if self.clip <= 0 or self.eps <= 0:
            raise UserError("optim.clip and optim.eps must be above 0.")
        for name in ("lr", "decay_power", "weight_decay"):
            if getattr(self, name) < 0:
                raise UserError(f"optim.{name} is a number from 0 on.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError("optim.betas are two numbers from 0 on, below 1.")


def warmup_share(steps: float, config: OptimConfig) -> float:
    """The share of a run of so many steps over which the rate rises."""
    if config.warmup < 1:
        return config.warmup
    return min(LONGEST_WARMUP, config.warmup / steps)


def learning_rate(progress: float, steps: float, config: OptimConfig) -> float:
    """The rate of the step that starts at `progress`, of a run that has so many steps.

    The first step has rate 0.
    """
    progress, warmup = min(progress, 1.0), warmup_share(steps, config)
    rise = min(1.0, progress / warmup) if warmup else 1.0
    if config.schedule == "product":
        fall = (1 - progress) ** config.decay_power
    else:
        fall = min(1.0, (1 - progress) / (1 - warmup)) ** config.decay_power
    return config.lr * rise * fall
