"""Two stages: the generator learns alone, then the discriminator from it (section 3.2).

In the first half of the run the generator learns to fill masks. At the half the discriminator takes
over the generator's encoder, if `init_from_generator` says so, and learns to detect its samples;
the generator is frozen. Each stage has a whole learning-rate schedule of its own.

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
    LossOutput,
    MetricSums,
    VocabInfo,
    generator_metrics,
    generator_sums,
    sum_each,
)
from electra.objectives.rtd import ReplacedTokenDetection, compute_metrics
from electra.objectives.settings import ObjectiveConfig

HALF = 0.5
"""Progress at which the second stage begins."""


class TwoStage(ReplacedTokenDetection):
    """One network after the other."""

    stage_fraction = HALF

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator,
        discriminator: Discriminator,
        ids: VocabInfo,
    ) -> None:
        super().__init__(config, generator, discriminator, ids)
        self.stage: Tensor  # saved: at the half itself, nothing else tells whether it has begun
        self.register_buffer("stage", torch.ones((), dtype=torch.int32))
        self._in_second_stage: bool | None = (
            None  # the same on the host, which waits for it only once
        )

    @property
    def in_second_stage(self) -> bool:
        """Whether the discriminator learns."""
        if self._in_second_stage is None:
            self._in_second_stage = int(self.stage) == 2
        return self._in_second_stage

    @torch.no_grad()
    def update_progress(self, progress: float) -> bool:
        super().update_progress(progress)
        if progress < HALF or self.in_second_stage:
            return False
        if self.config.init_from_generator:
            assert isinstance(self.generator, Generator)
            theirs = self.generator.encoder.state_dict()
            self.discriminator.encoder.load_state_dict(theirs)
        self.stage.fill_(2)
        self._in_second_stage = True
        return True

    def each_stage(self) -> Iterator[None]:
        now = self.in_second_stage
        try:
            for self._in_second_stage in (False, True):
                yield
        finally:
            self._in_second_stage = now

    def stage_progress(self, progress: float) -> float:
        """Each half is a whole run."""
        return min(1.0, (progress - HALF) / (1 - HALF) if progress >= HALF else progress / HALF)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        return (self.learn_verdicts if self.in_second_stage else self.learn_words)(
            batch, masked, totals
        )

    def learn_words(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """The first stage: masked language modelling; the discriminator is not asked."""
        guesses = self.run_generator(batch, masked)
        with torch.no_grad():
            generated = generator_sums(guesses, masked)
            nothing = [torch.zeros_like(totals[:1])] * (len(self.metric_names) - len(generated))
            sums = sum_each(*generated, *nothing)
        return LossOutput(guesses.loss / totals[0], sums)

    def learn_verdicts(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """The second stage: the detection loss alone."""
        with torch.no_grad():
            guesses = self.run_generator(batch, masked)
        found = self.detect(batch, masked, guesses)
        weights = self.weights / totals
        return LossOutput(weights[1] * found.loss, *found[1:])

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """As for joint training, but `loss` is what the present stage lowers."""
        if not sums["judged"]:
            figures = generator_metrics(sums)
            return {"loss": figures["mlm_loss"], **figures}
        figures = compute_metrics(sums, self.config)
        return figures | {"loss": self.config.discriminator_weight * figures["detection_loss"]}
