"""Replace MLM: samples of a generator stand where BERT has [MASK] (section 3.4)."""

from typing import ClassVar

import torch
from torch import Tensor

from electra.models.electra import Discriminator, Generator
from electra.models.frequency_generator import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
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


class ReplaceMlm(CorruptingObjective):
    """The big network predicts the originals of the drawn positions, and never sees a [MASK]."""

    metric_names: ClassVar[tuple[str, ...]] = (
        *GENERATOR_METRIC_SUMS,
        *("tokens", "replaced", "model_loss", "model_right"),
    )

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        mlm: Generator,
        ids: VocabInfo,
    ) -> None:
        super().__init__(config, mlm.encoder.config.table_rows, ids)
        self.mlm = mlm  # first, so that what is shared carries its name
        self.generator = generator

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        c = self.config
        guesses = self.run_generator(batch, masked)
        corrupted, replaced = self.corrupt(batch, masked, guesses.samples)
        answers = self.run_mlm(self.mlm, corrupted, batch, masked, sample=False)
        generated = c.generator_weight * guesses.loss / totals[0]
        loss = generated + c.model_weight * answers.loss / totals[0]
        with torch.no_grad():
            counted = generator_sums(guesses, masked)
            sums = sum_each(*counted, batch.attention_mask, replaced, answers.loss, answers.right)
        return LossOutput(loss, sums, corrupted)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        masked = max(sums["masked"], 1)
        figures, model_loss = generator_metrics(sums), sums["model_loss"] / masked
        generated = self.config.generator_weight * figures["mlm_loss"]
        return {
            "loss": generated + self.config.model_weight * model_loss,
            **figures,
            "replaced_rate": sums["replaced"] / max(sums["tokens"], 1),
            "model_loss": model_loss,
            "model_accuracy": sums["model_right"] / masked,
        }

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"mlm": self.mlm} | self.exported_generator()
