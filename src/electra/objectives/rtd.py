"""Replaced token detection: mask -> sample -> detect, both networks trained jointly (section 2)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Discriminator, Generator, merge_disentangled
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.mlm_output import (
    MlmOutput,
    cross_entropy_sum,
    is_correct,
    sample_replacements,
)
from electra.objectives.objective import (
    GENERATOR_METRIC_SUMS,
    CorruptingObjective,
    LossOutput,
    MetricSums,
    VocabInfo,
    generator_metrics,
    generator_sums,
    sum_each,
)
from electra.objectives.settings import ObjectiveConfig

METRIC_SUMS = (
    *GENERATOR_METRIC_SUMS,
    "tokens",  # all tokens but padding
    "detection_loss",
    "replaced",  # tokens that differ from the original text
    "predicted_replaced",  # tokens that the discriminator calls replaced
    "true_positives",  # tokens that are replaced and called so
    "loss_tokens",  # tokens that count in the detection loss
)


class ReplacedTokenDetection(CorruptingObjective):
    """A generator that replaces tokens, and a discriminator that detects which ones."""

    metric_names: ClassVar[tuple[str, ...]] = METRIC_SUMS

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        discriminator: Discriminator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, discriminator.encoder.config.table_rows, vocab)
        # The discriminator comes first, so that shared parameters are stored under its name.
        self.discriminator = discriminator
        self.generator = generator
        self.weights: Tensor
        weights = torch.tensor([config.generator_weight, config.discriminator_weight])
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        """Compute the loss of a micro-batch; `totals` counts masked and all tokens of the batch.

        Dividing by the batch's totals instead of the micro-batch's own counts makes the gradients
        of the micro-batches add up to the gradient of the batch.
        """
        # 1. The generator's logits at the masked positions, (batch, slots, vocabulary)
        predicted = self.generator(masked.inputs, batch.segments, batch.doc_ids, masked.positions)
        predicted = predicted.float()

        # 2. Masked language modelling loss
        mlm_loss = cross_entropy_sum(predicted, masked)

        # 3. Sampling, from the same logits; no gradient passes it
        samples = sample_replacements(predicted, batch, masked, self.config)

        # 4. Corruption: the samples replace the masked tokens; the labels say where they differ
        corrupted, replaced = self.corrupt(batch, masked, samples)

        # 5. Detection loss: replaced or original, at every token
        logits = self.discriminator(corrupted, batch.segments, batch.doc_ids).float()
        loss_mask = self.loss_mask(batch, masked)
        mlm = MlmOutput(mlm_loss, is_correct(predicted, masked), samples)
        detection_loss, sums = self.detection_loss(logits, replaced, loss_mask, batch, masked, mlm)

        weights = self.weights / totals
        loss = weights[0] * mlm_loss + weights[1] * detection_loss
        return LossOutput(loss, sums, corrupted, replaced, logits.detach(), loss_mask)

    def detection_loss(
        self,
        logits: Tensor,
        replaced: Tensor,
        loss_mask: Tensor,
        batch: Batch,
        masked: Masked,
        mlm: MlmOutput,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed detection loss, and the sums that `METRIC_SUMS` names."""
        bce = F.binary_cross_entropy_with_logits(logits, replaced.float(), reduction="none")
        loss = (bce * loss_mask).sum()
        with torch.no_grad():
            predicted = (logits > 0) & loss_mask
            sums = sum_each(
                *generator_sums(mlm, masked),
                *(batch.attention_mask, loss, replaced),
                *(predicted, predicted & replaced, loss_mask),
            )
        return loss, sums

    def loss_mask(self, batch: Batch, masked: Masked) -> Tensor:
        """Return the positions that count in the detection loss: all but padding."""
        return batch.attention_mask

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        return compute_metrics(sums, self.config)

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"discriminator": merge_disentangled(self.discriminator)} | self.exported_generator()


def compute_metrics(sums: MetricSums, config: ObjectiveConfig) -> dict[str, float]:
    """Compute metrics from sums over any number of batches."""
    tokens, loss_tokens = max(sums["tokens"], 1), max(sums["loss_tokens"], 1)
    metrics = generator_metrics(sums)
    detection_loss = sums["detection_loss"] / loss_tokens
    replaced, predicted = sums["replaced"], sums["predicted_replaced"]
    wrong = replaced + predicted - 2 * sums["true_positives"]
    weighted = config.discriminator_weight * detection_loss
    return {
        "loss": config.generator_weight * metrics["mlm_loss"] + weighted,
        **metrics,
        "detection_loss": detection_loss,
        "replaced_rate": replaced / tokens,
        "discriminator_accuracy": 1 - wrong / loss_tokens,
        "precision": sums["true_positives"] / max(predicted, 1),
        "recall": sums["true_positives"] / max(replaced, 1),
    }
