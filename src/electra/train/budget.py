"""The length of a run in steps, tokens, FLOPs or time, as progress from 0 to 1."""

import math
import re
from dataclasses import dataclass
from typing import Literal

from electra.errors import UserError

SECONDS = {"s": 1, "sec": 1, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of steps, tokens, FLOPs or seconds."""

    amount: float
    unit: Literal["steps", "tokens", "flops", "seconds"]

    def progress(self, *, steps: int, tokens: int, flops: float, seconds: float) -> float:
        """Share of the budget that is spent; the run ends at 1."""
        spent = {"steps": steps, "tokens": tokens, "flops": flops, "seconds": seconds}[self.unit]
        return min(1.0, spent / self.amount)

    def steps(
        self, *, tokens_per_step: int, flops_per_step: float, until: float = 1.0, spent: float = 0.0
    ) -> int | None:
        """Steps from `spent` until the progress `until`; None for a time budget."""
        if self.unit == "seconds":
            return None
        left = self.amount * until - spent
        return max(0, math.ceil(left / self.per_step(tokens_per_step, flops_per_step)))

    def per_step(self, tokens: int, flops: float) -> float:
        """What a step spends of a budget in steps, tokens or FLOPs."""
        return {"steps": 1, "tokens": tokens, "flops": flops}[self.unit]


def parse_budget(text: str) -> Budget:
    """Read `10000steps`, `1e9tokens`, `1e16flops`, `25min`, `2h`, `90s` or `1d`."""
    match = re.fullmatch(r"(\d+\.?\d*(?:e\+?\d+)?)\s*([a-z]+)", text.strip().lower())
    if match and 0 < float(match[1]) < math.inf:
        amount, unit = float(match[1]), match[2]
        if unit in SECONDS:
            return Budget(amount * SECONDS[unit], "seconds")
        if unit in ("steps", "step"):
            return Budget(amount, "steps")
        if unit in ("tokens", "token"):
            return Budget(amount, "tokens")
        if unit in ("flops", "flop"):
            return Budget(amount, "flops")
    raise UserError(
        f"'{text}' is not a budget: write for example 10000steps, 1e9tokens, 1e16flops, 25min, 2h "
        "or 1d."
    )
