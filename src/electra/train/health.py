"""The run watches itself: a failure that a falling loss would hide is named in plain words."""

import math
from dataclasses import dataclass, field

from electra.errors import UserError


@dataclass(slots=True)
class HealthCheck:
    """Looks at held-out figures after the warm-up and says each finding once."""

    frequency_loss: float
    """Masked-LM loss of guessing words by frequency; infinite if no network learns words."""
    said: set[str] = field(default_factory=set)

    def check(self, progress: float, warmup: float, held_out: dict[str, float]) -> list[str]:
        """Findings that are new; `warmup` is the progress at which the warm-up ends."""
        # The plateau at the start of a run is normal; a third of the run later it is not.
        if progress < max(2 * warmup, 1 / 3):
            return []
        findings = {}
        # Of two networks that learn words, the generator; without one, the model that is kept.
        name = "generator" if "mlm_loss" in held_out else "model"
        loss = held_out["mlm_loss" if name == "generator" else "model_loss"]
        if loss > 0.98 * self.frequency_loss:
            findings[name] = (
                f"The {name} does not learn: its held-out loss {loss:.2f} is no "
                f"better than guessing words by frequency ({self.frequency_loss:.2f}). Likely "
                "causes: a learning rate that is too high or too low (optim.lr), a batch that is "
                "too small (data.batch_size), or a tokenizer that does not fit the text (see "
                "'electra tokenizer inspect')."
            )
        if held_out.get("recall", 1.0) < 0.01:
            findings["collapse"] = (
                f"The discriminator has collapsed: it calls almost every token original (held-out "
                f"recall {held_out['recall']:.3f}, AUC {held_out['auc']:.2f}) while its loss looks "
                "healthy. Likely causes: a warm-up that is too short (optim.warmup), a learning "
                "rate that is too high (optim.lr), a run that is too short to leave the opening "
                "plateau, or a generator that is too strong (generator.width)."
            )
        new = [text for name, text in findings.items() if name not in self.said]
        self.said |= findings.keys()
        return new


def check_finite(values: dict[str, float], step: int, last_good: str) -> None:
    """Stop a run whose numbers have broken, before anything of it is saved."""
    broken = [name for name, value in values.items() if not math.isfinite(value)]
    if broken:
        raise UserError(
            f"The run stopped at step {step}: {', '.join(broken)} is not a finite number. "
            f"{last_good} Start again with a lower optim.lr (half of it), or a longer optim.warmup."
        )
