"""The learning rate as a function of progress, so that a run of any length ends annealed."""

from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The paper's optimizer and its schedule."""

    lr: float = 5e-4
    """Peak learning rate."""
    warmup: float = 0.01
    """Share of the run over which the rate rises from 0; 0.01 of a million steps is 10,000."""
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
        if not 0 <= self.warmup < 1:
            raise UserError("optim.warmup is a share of the run: at least 0, below 1.")
        if self.clip <= 0:
            raise UserError("optim.clip must be above 0.")


def learning_rate(progress: float, config: OptimConfig) -> float:
    """The rate of the step that starts at `progress`; the first step of a run has rate 0."""
    progress = min(progress, 1.0)
    rise = min(1.0, progress / config.warmup) if config.warmup else 1.0
    if config.schedule == "product":
        fall = (1 - progress) ** config.decay_power
    else:
        fall = min(1.0, (1 - progress) / (1 - config.warmup)) ** config.decay_power
    return config.lr * rise * fall
