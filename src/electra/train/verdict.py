"""How a run is doing, in plain words: the health check and the last validation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from electra.train.health import HealthCheck

Health = Literal["healthy", "recovered", "unclear", "unhealthy"]
TITLES: dict[Health, str] = {
    "healthy": "Healthy",
    "recovered": "Healthy now",
    "unclear": "Too early to tell",
    "unhealthy": "Needs attention",
}
QUIET = ("started", "resumed")
"""Events that are no warnings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The state of a run and the sentences that explain it."""

    health: Health
    sentences: tuple[str, ...]

    @property
    def title(self) -> str:
        return TITLES[self.health]


def judge_run(metrics: Sequence[dict[str, Any]]) -> Verdict:
    """Judge a run by its warnings and by its last validation."""
    held_out = next((line for line in reversed(metrics) if line["kind"] == "held_out"), None)
    if held_out is None:
        return Verdict(
            health="unclear", sentences=("There was no validation yet: wait for the first one.",)
        )
    known = {key: value for key, value in held_out.items() if value is not None}
    now = HealthCheck().check(1.0, 0.0, known)
    warned = any(line["kind"] == "event" and line.get("message") not in QUIET for line in metrics)
    facts = describe(known)
    if now and warned:
        return Verdict(health="unhealthy", sentences=(*now.values(), *facts))
    if now:
        begun = (
            "The last validation shows a network that has not left its opening plateau. In the "
            "first third of a schedule that is normal, and the run gave no warning."
        )
        return Verdict(health="unclear", sentences=(begun, *facts))
    if warned:
        text = "The run gave warnings, but its last validation is healthy."
        return Verdict(health="recovered", sentences=(text, *facts))
    return Verdict(health="healthy", sentences=tuple(facts))


def describe(held_out: dict[str, Any]) -> list[str]:
    """Say what the metrics of a validation mean."""
    said = []
    if "auc" in held_out:
        said.append(
            f"The discriminator ranks a replaced token above an original one in "
            f"{held_out['auc']:.1%} of all pairs; chance is 50 %."
        )
    if "recall" in held_out and "precision" in held_out:
        said.append(
            f"It finds {held_out['recall']:.1%} of the replaced tokens, and "
            f"{held_out['precision']:.1%} of what it reports is right."
        )
    for name in ("generator", "model"):
        if f"{name}_accuracy" in held_out:
            above = held_out.get("accuracy_above_floor")
            more = (
                f", {above * 100:+.1f} points compared with copying visible tokens and guessing "
                "the most frequent one"
                if above is not None
                else ""
            )
            said.append(
                f"The {name}'s top prediction is right for {held_out[f'{name}_accuracy']:.1%} of "
                f"the masked tokens{more}."
            )
            break
    return said or ["The last validation measured the loss alone."]
