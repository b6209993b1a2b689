"""The learning rate as a function of progress, so that a run of any length ends at 0.

Only the warmup is counted in steps, because a network needs as many of them in a short run as in a
long one.
"""

from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError

ClipBy = Literal["joint", "network"]
LONGEST_WARMUP = 0.25
"""The largest fraction of a run that warmup steps may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """The paper's optimizer and its schedule."""

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
    """'product' multiplies warmup and decay, as the released code does; 'sequential' reaches the
    peak at the end of the warmup and decays from there."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the two moments."""
    eps: float = 1e-6
    """Adam's epsilon, added to the root of the second moment."""
    generator_eps: float = 0.0
    """Adam's epsilon for the generator's own parameters; 0 means the same as `eps`."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and LayerNorm are exempt."""
    clip: float = 1.0
    """Maximum gradient norm."""
    clip_by: ClipBy = "joint"
    """'joint' clips the gradient of both networks together; 'network' clips each network by its
    own norm, shared parameters counting as the discriminator's."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999; validation and exported
    models then use the average. 0 means none."""

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise UserError(
                "optim.warmup is a number of steps, or below 1 a fraction of the run: at least 0."
            )
        if self.clip <= 0 or self.eps <= 0:
            raise UserError("optim.clip and optim.eps must be above 0.")
        for name in ("lr", "generator_lr", "decay_power", "generator_eps", "weight_decay"):
            if getattr(self, name) < 0:
                raise UserError(f"optim.{name} must be at least 0.")
        if self.generator_lr and not self.lr:
            raise UserError("optim.generator_lr needs an optim.lr above 0.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError("optim.betas are two numbers, at least 0 and below 1.")
        if not 0 <= self.ema < 1:
            raise UserError(
                "optim.ema is a decay such as 0.999, at least 0 and below 1; 0 means no average."
            )


def warmup_share(steps: float, config: OptimConfig) -> float:
    """Return the warmup as a fraction of a run of `steps` steps."""
    if config.warmup < 1:
        return config.warmup
    return min(LONGEST_WARMUP, config.warmup / steps)


def learning_rate(progress: float, steps: float, config: OptimConfig) -> float:
    """Return the learning rate of the step that starts at `progress`; the first one's is 0."""
    progress, warmup = min(progress, 1.0), warmup_share(steps, config)
    rise = min(1.0, progress / warmup) if warmup else 1.0
    if config.schedule == "product":
        fall = (1 - progress) ** config.decay_power
    else:
        fall = min(1.0, (1 - progress) / (1 - warmup)) ** config.decay_power
    return config.lr * rise * fall
