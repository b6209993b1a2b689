"""Replace MLM: samples of a generator stand where BERT has [MASK] (section 3.4)."""

from typing import ClassVar

import torch
from torch import Tensor

from electra.models.electra import Discriminator, Generator
from electra.models.simple import FrequencyGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import (
    GENERATOR_SUMS,
    Corrupting,
    Ids,
    Outcome,
    Sums,
    add_up,
    generator_figures,
    generator_sums,
)
from electra.objectives.settings import ObjectiveConfig


class ReplaceMlm(Corrupting):
    """The big network predicts the originals of the drawn positions, and never sees a [MASK]."""

    names: ClassVar[tuple[str, ...]] = (
        *GENERATOR_SUMS,
        *("tokens", "replaced", "model_loss", "model_right"),
    )

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator | FrequencyGenerator,
        mlm: Generator,
        ids: Ids,
    ) -> None:
        super().__init__(config, mlm.encoder.config.table_rows, ids)
        self.mlm = mlm  # first, so that what is shared carries its name
        self.generator = generator

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        c = self.config
        guesses = self.fill(batch, masked)
        corrupted, replaced = self.corrupt(batch, masked, guesses.samples)
        answers = self.guess(self.mlm, corrupted, batch, masked, sample=False)
        generated = c.generator_weight * guesses.loss / totals[0]
        loss = generated + c.model_weight * answers.loss / totals[0]
        with torch.no_grad():
            counted = generator_sums(guesses, masked)
            sums = add_up(*counted, batch.real, replaced, answers.loss, answers.right)
        return Outcome(loss, sums, corrupted)

    def summarise(self, sums: Sums) -> dict[str, float]:
        masked = max(sums["masked"], 1)
        figures, model_loss = generator_figures(sums), sums["model_loss"] / masked
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
