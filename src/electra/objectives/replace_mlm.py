"""Replace MLM: the generator's samples take the place of BERT's [MASK] (section 3.4)."""

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
    """A large network predicts the original tokens from the generator's samples."""

    metric_names: ClassVar[tuple[str, ...]] = (
        *GENERATOR_METRIC_SUMS,
        *("tokens", "replaced", "model_loss", "model_correct"),
    )

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        mlm: Generator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, mlm.encoder.config.table_rows, vocab)
        self.mlm = mlm  # first, so that shared parameters are stored under its name
        self.generator = generator

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        c = self.config
        generated = self.run_mlm(self.generator, masked.inputs, batch, masked, sample=True)
        corrupted, replaced = self.corrupt(batch, masked, generated.samples)
        model = self.run_mlm(self.mlm, corrupted, batch, masked, sample=False)
        generator_loss = c.generator_weight * generated.loss / totals[0]
        loss = generator_loss + c.model_weight * model.loss / totals[0]
        with torch.no_grad():
            sums = sum_each(
                *generator_sums(generated, masked),
                *(batch.attention_mask, replaced, model.loss, model.correct),
            )
        return LossOutput(loss, sums, corrupted)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        masked = max(sums["masked"], 1)
        metrics, model_loss = generator_metrics(sums), sums["model_loss"] / masked
        generator_loss = self.config.generator_weight * metrics["mlm_loss"]
        return {
            "loss": generator_loss + self.config.model_weight * model_loss,
            **metrics,
            "replaced_rate": sums["replaced"] / max(sums["tokens"], 1),
            "model_loss": model_loss,
            "model_accuracy": sums["model_correct"] / masked,
        }

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"mlm": self.mlm} | self.exported_generator()
