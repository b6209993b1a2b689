"""Two stages: train the generator, then the discriminator on its samples (section 3.2).

In the first half of the run only the generator learns. At the half the discriminator copies the
generator's encoder (unless `init_from_generator` is false) and learns to detect its samples, while
the generator is frozen. Each stage has its own learning-rate schedule.

A network without a loss has no gradient, so Adam updates neither its weights nor its moments: the
discriminator's moments are zero when its stage begins, and the warmup of that stage follows.
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
    """Replaced token detection with one network trained after the other."""

    stage_fraction = HALF

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator,
        discriminator: Discriminator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, generator, discriminator, vocab)
        self.stage: Tensor  # in checkpoints: at exactly half, progress does not tell the stage
        self.register_buffer("stage", torch.ones((), dtype=torch.int32))
        self._in_second_stage: bool | None = None  # `stage` on the host, read from the device once

    @property
    def in_second_stage(self) -> bool:
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
            weights = self.generator.encoder.state_dict()
            self.discriminator.encoder.load_state_dict(weights)
        self.stage.fill_(2)
        self._in_second_stage = True
        return True

    def each_stage(self) -> Iterator[None]:
        current = self.in_second_stage
        try:
            for self._in_second_stage in (False, True):
                yield
        finally:
            self._in_second_stage = current

    def stage_progress(self, progress: float) -> float:
        return min(1.0, (progress - HALF) / (1 - HALF) if progress >= HALF else progress / HALF)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        stage = self.train_discriminator if self.in_second_stage else self.train_generator
        return stage(batch, masked, totals)

    def train_generator(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """Compute the first stage's loss: masked language modelling."""
        mlm = self.run_mlm(self.generator, masked.inputs, batch, masked, sample=True)
        with torch.no_grad():
            generated = generator_sums(mlm, masked)
            zeros = [torch.zeros_like(totals[:1])] * (len(self.metric_names) - len(generated))
            sums = sum_each(*generated, *zeros)
        return LossOutput(mlm.loss / totals[0], sums)

    def train_discriminator(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """Compute the second stage's loss: detection."""
        with torch.no_grad():
            mlm = self.run_mlm(self.generator, masked.inputs, batch, masked, sample=True)
        corrupted, replaced = self.corrupt(batch, masked, mlm.samples)
        logits = self.discriminator(corrupted, batch.segments, batch.doc_ids).float()
        loss_mask = self.loss_mask(batch, masked)
        detection_loss, sums = self.detection_loss(logits, replaced, loss_mask, batch, masked, mlm)
        weights = self.weights / totals
        loss = weights[1] * detection_loss
        return LossOutput(loss, sums, corrupted, replaced, logits.detach(), loss_mask)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """Compute metrics; `loss` is the loss of the current stage."""
        if not sums["loss_tokens"]:
            metrics = generator_metrics(sums)
            return {"loss": metrics["mlm_loss"], **metrics}
        metrics = compute_metrics(sums, self.config)
        return metrics | {"loss": self.config.discriminator_weight * metrics["detection_loss"]}
