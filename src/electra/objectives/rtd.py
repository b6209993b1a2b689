"""Replaced token detection: mask -> sample -> detect, both networks trained jointly (section 2)."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Discriminator, Generator, folded
from electra.models.simple import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import (
    GENERATOR_SUMS,
    Corrupting,
    Guesses,
    Ids,
    Outcome,
    Sums,
    add_up,
    generator_figures,
    generator_sums,
)
from electra.objectives.settings import ObjectiveConfig

SUMS = (
    *GENERATOR_SUMS,
    "tokens",  # all real tokens
    "detection_loss",
    "replaced",  # tokens that differ from the original
    "flagged",  # tokens that the discriminator calls replaced
    "caught",  # tokens that are replaced and flagged
    "judged",  # tokens that the detection loss counts
)


class ReplacedTokenDetection(Corrupting):
    """Both networks and the loss that trains them."""

    names: ClassVar[tuple[str, ...]] = SUMS

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        discriminator: Discriminator,
        ids: Ids,
    ) -> None:
        super().__init__(config, discriminator.encoder.config.table_rows, ids)
        # The discriminator comes first, so that what is shared carries its name.
        self.discriminator = discriminator
        self.generator = generator
        self.weights: Tensor
        weights = torch.tensor([config.generator_weight, config.discriminator_weight])
        self.register_buffer("weights", weights, persistent=False)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        """One pass over a micro-batch; `totals` are the masked and real tokens of the whole batch.

        Dividing by the totals of the batch, not by the micro-batch's own counts, makes the sum of
        the micro-batches' gradients the gradient of the batch.
        """
        # One pass serves the loss and the sample, dropout included.
        guesses = self.fill(batch, masked)
        found = self.detect(batch, masked, guesses)
        weights = self.weights / totals
        loss = weights[0] * guesses.loss + weights[1] * found.loss
        return Outcome(loss, *found[1:])  # torch.compile of torch 2.11 knows no `_replace`

    def detect(self, batch: Batch, masked: Masked, guesses: Guesses) -> Outcome:
        """The discriminator's part; its loss is summed, and not weighted yet."""
        corrupted, replaced = self.corrupt(batch, masked, guesses.samples)
        judged = self.judged(batch, masked)
        scores = self.discriminator(corrupted, batch.segments, batch.seen).float()
        loss, sums = self.weigh(scores, replaced, judged, batch, masked, guesses)
        return Outcome(loss, sums, corrupted, replaced, scores.detach(), judged)

    def weigh(
        self,
        scores: Tensor,
        replaced: Tensor,
        judged: Tensor,
        batch: Batch,
        masked: Masked,
        guesses: Guesses,
    ) -> tuple[Tensor, Tensor]:
        """The summed loss of the scores, and the sums that `SUMS` names."""
        bce = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="none")
        loss = (bce * judged).sum()
        with torch.no_grad():
            flagged = (scores > 0) & judged
            detected = (batch.real, loss, replaced, flagged, flagged & replaced, judged)
            sums = add_up(*generator_sums(guesses, masked), *detected)
        return loss, sums

    def judged(self, batch: Batch, masked: Masked) -> Tensor:
        """Where the loss asks for a verdict: every real token."""
        return batch.real

    def summarise(self, sums: Sums) -> dict[str, float]:
        return summarise(sums, self.config)

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"discriminator": folded(self.discriminator)} | self.exported_generator()


def summarise(sums: Sums, config: ObjectiveConfig) -> dict[str, float]:
    """The figures people look at, from sums over any number of batches."""
    tokens, judged = max(sums["tokens"], 1), max(sums["judged"], 1)
    figures = generator_figures(sums)
    detection_loss = sums["detection_loss"] / judged
    wrong = sums["replaced"] + sums["flagged"] - 2 * sums["caught"]
    weighted = config.discriminator_weight * detection_loss
    return {
        "loss": config.generator_weight * figures["mlm_loss"] + weighted,
        **figures,
        "detection_loss": detection_loss,
        "replaced_rate": sums["replaced"] / tokens,
        "discriminator_accuracy": 1 - wrong / judged,
        "precision": sums["caught"] / max(sums["flagged"], 1),
        "recall": sums["caught"] / max(sums["replaced"], 1),
    }
