"""Training in two stages: first the generator alone, then the discriminator.

`TwoStage` (section 3.2): in the first half of the run only the generator learns. At the half the
discriminator copies the generator's encoder (unless `init_from_generator` is false) and learns to
detect its samples, while the generator is frozen.

`GeneratorFirst`: for a discriminator that was trained before and a new generator. In the first
`generator_first` of the run only the generator learns, then both do, as in `rtd`.

Each stage has its own learning-rate schedule. A parameter without a loss has no gradient, so Adam
updates neither it nor its moments: the discriminator's moments are zero when its stage begins, and
the warmup of that stage follows.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from electra.models.electra import Discriminator, DisentangledEmbeddings, Generator
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
"""Progress at which the second stage of `TwoStage` begins."""


class Staged(ReplacedTokenDetection):
    """Replaced token detection in two stages; in the first one only the generator learns."""

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator,
        discriminator: Discriminator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, generator, discriminator, vocab)
        self.stage: Tensor  # in checkpoints: at the boundary, progress does not tell the stage
        self.register_buffer("stage", torch.ones((), dtype=torch.int32))
        self._in_second_stage: bool | None = None  # `stage` on the host, read from the device once

    @property
    def boundary(self) -> float:
        """Progress at which the second stage begins."""
        raise NotImplementedError

    def prepare_stage(self, second: bool) -> None:
        """Prepare the networks for the steps of a stage."""
        self._in_second_stage = second

    def begin_second_stage(self) -> None:
        """Change the networks once, when the second stage begins."""

    @property
    def in_second_stage(self) -> bool:
        """Whether the second stage has begun."""
        if self._in_second_stage is None:
            self.prepare_stage(int(self.stage) == 2)
        assert self._in_second_stage is not None
        return self._in_second_stage

    @property
    def schedule_span(self) -> tuple[float, float]:
        return (self.boundary, 1.0) if self.in_second_stage else (0.0, self.boundary)

    @property
    def step_kind(self) -> int:
        return int(self.in_second_stage)

    @torch.no_grad()
    def update_progress(self, progress: float) -> bool:
        super().update_progress(progress)
        if self.in_second_stage or progress < self.boundary:
            return False
        self.begin_second_stage()
        self.stage.fill_(2)
        self.prepare_stage(True)
        return True

    def each_step_kind(self) -> Iterator[None]:
        current = self.in_second_stage
        try:
            for second in (False, True):
                self.prepare_stage(second)
                yield
        finally:
            self.prepare_stage(current)

    def train_generator(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """Compute the first stage's loss: masked language modelling."""
        mlm = self.run_mlm(self.generator, masked.inputs, batch, masked, sample=True)
        with torch.no_grad():
            generated = generator_sums(mlm, masked)
            zeros = [torch.zeros_like(totals[:1])] * (len(self.metric_names) - len(generated))
            sums = sum_each(*generated, *zeros)
        return LossOutput(mlm.loss / totals[0], sums)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """Compute metrics; `loss` is the loss of the current stage."""
        if not sums["loss_tokens"]:
            metrics = generator_metrics(sums)
            return {"loss": metrics["mlm_loss"], **metrics}
        return compute_metrics(sums, self.config)


class TwoStage(Staged):
    """Replaced token detection with one network trained after the other."""

    @property
    def boundary(self) -> float:
        return HALF

    def begin_second_stage(self) -> None:
        if self.config.init_from_generator:
            assert isinstance(self.generator, Generator)
            weights = self.generator.encoder.state_dict()
            self.discriminator.encoder.load_state_dict(weights)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        stage = self.train_discriminator if self.in_second_stage else self.train_generator
        return stage(batch, masked, totals)

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
        metrics = super().compute_metrics(sums)
        if not sums["loss_tokens"]:
            return metrics
        return metrics | {"loss": self.config.discriminator_weight * metrics["detection_loss"]}


class GeneratorFirst(Staged):
    """Replaced token detection after a stage in which the generator alone learns."""

    @property
    def boundary(self) -> float:
        return self.config.generator_first

    def prepare_stage(self, second: bool) -> None:
        super().prepare_stage(second)
        for p in self.used_by_discriminator():
            p.requires_grad_(second)

    def used_by_discriminator(self) -> list[nn.Parameter]:
        """Return the generator's parameters that the discriminator reads."""
        used = set(self.discriminator.parameters())
        block = self.discriminator.encoder.embeddings
        if isinstance(block, DisentangledEmbeddings):
            used |= set(block.source.parameters())
        return [p for p in self.generator.parameters() if p in used]

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        if self.in_second_stage:
            return super().forward(batch, masked, totals)
        return self.train_generator(batch, masked, totals)
