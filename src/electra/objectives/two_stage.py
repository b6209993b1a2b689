"""Two stages: the generator learns alone, then the discriminator from it (section 3.2).

In the first half of the run the generator learns to fill masks. At the half the discriminator takes
over the generator's encoder, if `copy_start` says so, and learns to detect its samples; the
generator is frozen. Each stage has a whole learning-rate schedule of its own.

Adam: a network that has no loss has no gradient, so neither its weights nor its two means move. The
discriminator's means are therefore zero when it begins, and the warm-up of its stage follows; those
of the frozen generator stay what they were and are not used any more.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from electra.models.electra import Discriminator, Generator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import (
    Ids,
    Outcome,
    Sums,
    add_up,
    generator_figures,
    generator_sums,
)
from electra.objectives.rtd import ReplacedTokenDetection, summarise
from electra.objectives.settings import ObjectiveConfig

HALF = 0.5
"""Progress at which the second stage begins."""


class TwoStage(ReplacedTokenDetection):
    """One network after the other."""

    stage_share = HALF

    def __init__(
        self, config: ObjectiveConfig, generator: Generator, discriminator: Discriminator, ids: Ids
    ) -> None:
        super().__init__(config, generator, discriminator, ids)
        self.stage: Tensor  # saved: at the half itself, nothing else tells whether it has begun
        self.register_buffer("stage", torch.ones((), dtype=torch.int32))
        self._second: bool | None = None  # the same on the host, which waits for it only once

    @property
    def second(self) -> bool:
        """Whether the discriminator learns."""
        if self._second is None:
            self._second = int(self.stage) == 2
        return self._second

    @torch.no_grad()
    def reach(self, progress: float) -> bool:
        super().reach(progress)
        if progress < HALF or self.second:
            return False
        if self.config.copy_start:
            assert isinstance(self.generator, Generator)
            theirs = self.generator.encoder.state_dict()
            self.discriminator.encoder.load_state_dict(theirs)
        self.stage.fill_(2)
        self._second = True
        return True

    def stages(self) -> Iterator[None]:
        now = self.second
        try:
            for self._second in (False, True):
                yield
        finally:
            self._second = now

    def phase(self, progress: float) -> float:
        """Each half is a whole run."""
        return min(1.0, (progress - HALF) / (1 - HALF) if progress >= HALF else progress / HALF)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        return (self.learn_verdicts if self.second else self.learn_words)(batch, masked, totals)

    def learn_words(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        """The first stage: masked language modelling; the discriminator is not asked."""
        guesses = self.fill(batch, masked)
        with torch.no_grad():
            generated = generator_sums(guesses, masked)
            nothing = [torch.zeros_like(totals[:1])] * (len(self.names) - len(generated))
            sums = add_up(*generated, *nothing)
        return Outcome(guesses.loss / totals[0], sums)

    def learn_verdicts(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        """The second stage: the detection loss alone."""
        with torch.no_grad():
            guesses = self.fill(batch, masked)
        found = self.detect(batch, masked, guesses)
        weights = self.weights / totals
        return Outcome(weights[1] * found.loss, *found[1:])

    def summarise(self, sums: Sums) -> dict[str, float]:
        """As for joint training, but `loss` is what the present stage lowers."""
        if not sums["judged"]:
            figures = generator_figures(sums)
            return {"loss": figures["mlm_loss"], **figures}
        figures = summarise(sums, self.config)
        return figures | {"loss": self.config.discriminator_weight * figures["detection_loss"]}
