"""Replaced token detection: mask -> sample -> detect, both networks trained jointly (section 2)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Discriminator, Generator, merge_disentangled
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import (
    GENERATOR_METRIC_SUMS,
    CorruptingObjective,
    LossOutput,
    MetricSums,
    MlmOutput,
    VocabInfo,
    generator_metrics,
    generator_sums,
    sum_each,
)
from electra.objectives.settings import ObjectiveConfig

METRIC_SUMS = (
    *GENERATOR_METRIC_SUMS,
    "tokens",  # all real tokens
    "detection_loss",
    "replaced",  # tokens that differ from the original
    "flagged",  # tokens that the discriminator calls replaced
    "caught",  # tokens that are replaced and flagged
    "judged",  # tokens that the detection loss counts
)


class ReplacedTokenDetection(CorruptingObjective):
    """Both networks and the loss that trains them."""

    metric_names: ClassVar[tuple[str, ...]] = METRIC_SUMS

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        discriminator: Discriminator,
        ids: VocabInfo,
    ) -> None:
        super().__init__(config, discriminator.encoder.config.table_rows, ids)
        # The discriminator comes first, so that what is shared carries its name.
        self.discriminator = discriminator
        self.generator = generator
        self.weights: Tensor
        weights = torch.tensor([config.generator_weight, config.discriminator_weight])
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """One pass over a micro-batch; `totals` are the masked and real tokens of the whole batch.

        Dividing by the totals of the batch, not by the micro-batch's own counts, makes the sum of
        the micro-batches' gradients the gradient of the batch.
        """
        # One pass serves the loss and the sample, dropout included.
        guesses = self.run_generator(batch, masked)
        found = self.detect(batch, masked, guesses)
        weights = self.weights / totals
        loss = weights[0] * guesses.loss + weights[1] * found.loss
        return LossOutput(loss, *found[1:])  # torch.compile of torch 2.11 knows no `_replace`

    def detect(self, batch: Batch, masked: Masked, guesses: MlmOutput) -> LossOutput:
        """The discriminator's part; its loss is summed, and not weighted yet."""
        corrupted, replaced = self.corrupt(batch, masked, guesses.samples)
        loss_mask = self.loss_mask(batch, masked)
        scores = self.discriminator(corrupted, batch.segments, batch.doc_ids).float()
        loss, sums = self.detection_loss(scores, replaced, loss_mask, batch, masked, guesses)
        return LossOutput(loss, sums, corrupted, replaced, scores.detach(), loss_mask)

    def detection_loss(
        self,
        scores: Tensor,
        replaced: Tensor,
        loss_mask: Tensor,
        batch: Batch,
        masked: Masked,
        guesses: MlmOutput,
    ) -> tuple[Tensor, Tensor]:
        """The summed loss of the scores, and the sums that `METRIC_SUMS` names."""
        bce = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="none")
        loss = (bce * loss_mask).sum()
        with torch.no_grad():
            flagged = (scores > 0) & loss_mask
            detected = (
                batch.attention_mask,
                loss,
                replaced,
                flagged,
                flagged & replaced,
                loss_mask,
            )
            sums = sum_each(*generator_sums(guesses, masked), *detected)
        return loss, sums

    def loss_mask(self, batch: Batch, masked: Masked) -> Tensor:
        """Where the loss asks for a verdict: every real token."""
        return batch.attention_mask

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        return compute_metrics(sums, self.config)

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"discriminator": merge_disentangled(self.discriminator)} | self.exported_generator()


def compute_metrics(sums: MetricSums, config: ObjectiveConfig) -> dict[str, float]:
    """The figures people look at, from sums over any number of batches."""
    tokens, loss_mask = max(sums["tokens"], 1), max(sums["judged"], 1)
    figures = generator_metrics(sums)
    detection_loss = sums["detection_loss"] / loss_mask
    wrong = sums["replaced"] + sums["flagged"] - 2 * sums["caught"]
    weighted = config.discriminator_weight * detection_loss
    return {
        "loss": config.generator_weight * figures["mlm_loss"] + weighted,
        **figures,
        "detection_loss": detection_loss,
        "replaced_rate": sums["replaced"] / tokens,
        "discriminator_accuracy": 1 - wrong / loss_mask,
        "precision": sums["caught"] / max(sums["flagged"], 1),
        "recall": sums["caught"] / max(sums["replaced"], 1),
    }
