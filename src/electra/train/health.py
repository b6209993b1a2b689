"""Warnings of failures that a falling loss would hide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from electra.errors import DivergedError

MARGIN = 0.02
"""A network whose accuracy is less than this above the floor has learned nothing from context."""
CHANCE_AUC = 0.55
"""A discriminator with a lower AUC on the fixed corruption does not use the context either: the
tokens that replace others there are as frequent as those of the text."""

MAX_SKIPPED = 10
"""Steps in a row that may be skipped before the run stops."""
ADVICE = "Start again with a lower optim.lr (half of it), or a longer optim.warmup."


@dataclass(slots=True)
class HealthCheck:
    """Checks held-out metrics after the warm-up, and gives each warning once."""

    warned: set[str] = field(default_factory=set)
    """Names of the warnings that were given already."""

    def check(self, progress: float, warmup: float, held_out: dict[str, float]) -> dict[str, str]:
        """Return new warnings by name; `warmup` is the progress at which the warm-up ends."""
        # Every run begins on the plateau; a third of the schedule later it should have left it.
        if progress < max(2 * warmup, 1 / 3):
            return {}
        warnings = {}
        # Of two networks that predict tokens, the generator; without one, the model that is kept.
        name = "generator" if "generator_accuracy" in held_out else "model"
        if held_out.get("accuracy_above_floor", math.inf) < MARGIN:
            warnings[name] = (
                f"The {name} is still on the opening plateau: its held-out accuracy "
                f"{held_out[f'{name}_accuracy']:.1%} is that of copying visible tokens and "
                f"guessing the most frequent one ({held_out['accuracy_floor']:.1%}), after "
                f"{progress:.0%} of the schedule. Early in a long schedule that is normal: "
                "paper.small leaves the plateau at about 52,000 of its 1,000,000 steps. In a "
                "shorter run use model.init=local, which leaves it sooner, or a longer budget; "
                "else check optim.lr, data.batch_size and the tokenizer ('electra tokenizer "
                "inspect')."
            )
        if held_out.get("recall", 1.0) < 0.01:
            auc = held_out.get("auc", math.nan)  # there is none if no token was replaced
            warnings["collapse"] = (
                f"The discriminator has collapsed: it calls almost every token original (held-out "
                f"recall {held_out['recall']:.3f}, AUC {auc:.2f}) while its loss looks "
                "healthy. Likely causes: a warm-up that is too short (optim.warmup), a learning "
                "rate that is too high (optim.lr), a run that is too short to leave the opening "
                "plateau, or a generator that is too strong (generator.width)."
            )
        new = {name: text for name, text in warnings.items() if name not in self.warned}
        self.warned |= warnings.keys()
        return new


def plateau_ends(metrics: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """The step of the first validation at which each network uses the context; None if none does.

    Of two networks that predict tokens, only the generator is judged.
    """
    ends: dict[str, int | None] = {}
    for line in metrics:
        if line["kind"] != "held_out":
            continue
        name = "generator" if "generator_accuracy" in line else "model"
        signs = {name: ("accuracy_above_floor", MARGIN), "discriminator": ("fixed_auc", CHANCE_AUC)}
        for network, (metric, bound) in signs.items():
            value = line.get(metric)
            if value is not None and ends.setdefault(network, None) is None and value >= bound:
                ends[network] = line["step"]
    return ends


def check_finite(values: dict[str, float], step: int, last_good: str) -> None:
    """Stop a run whose metrics are not finite, before anything of it is saved."""
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken:
        raise DivergedError(
            f"The run stopped at step {step}: {', '.join(broken)} is not a finite number. "
            f"{last_good} {ADVICE}"
        )


def check_skipped(in_a_row: int, step: int, last_good: str) -> None:
    """Stop a run that skips one step after the other, or has skipped all of them."""
    if in_a_row >= min(MAX_SKIPPED, max(step, 1)):
        raise DivergedError(
            f"The run stopped at step {step}: the gradient of the last {in_a_row} "
            f"step{'s' * (in_a_row > 1)} is not a finite number. {last_good} {ADVICE}"
        )
