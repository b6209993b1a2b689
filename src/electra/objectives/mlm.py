"""BERT: masked language modelling with masks that are drawn anew at each step (section 3.4)."""

import torch
from torch import Tensor

from electra.models.electra import Discriminator, Generator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, put
from electra.objectives.objective import LossOutput, MetricSums, Objective, VocabInfo, sum_each
from electra.objectives.settings import ObjectiveConfig


class MaskedLanguageModel(Objective):
    """One network, of the size that a discriminator would have; there is no generator."""

    metric_names = ("masked", "model_loss", "model_right")

    def __init__(self, config: ObjectiveConfig, mlm: Generator, ids: VocabInfo) -> None:
        super().__init__(config, mlm.encoder.config.table_rows, ids)
        self.mlm = mlm
        words = (self.maskable & ~mlm.absent).nonzero().flatten()
        self.words: Tensor
        self.register_buffer("words", words, persistent=False)  # what may stand in a text

    def mask(self, batch: Batch) -> Masked:
        """Some of the positions that still show their token show a random one, as in BERT."""
        c = self.config
        masked = super().mask(batch)
        if not c.random_token_prob:
            return masked
        shape, device = masked.positions.shape, masked.positions.device
        visible = masked.is_masked & (masked.inputs.gather(1, masked.positions) != self.mask_id)
        chosen = visible & (
            torch.rand(shape, device=device) < c.random_token_prob / (1 - c.mask_token_prob)
        )
        random = self.words[torch.randint(len(self.words), shape, device=device)]
        return masked._replace(inputs=put(masked.inputs, masked.positions, random, chosen))

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        answers = self.run_mlm(self.mlm, masked.inputs, batch, masked, sample=False)
        sums = sum_each(masked.is_masked, answers.loss, answers.right)
        return LossOutput(answers.loss / totals[0], sums)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        loss = sums["model_loss"] / max(sums["masked"], 1)
        accuracy = sums["model_right"] / max(sums["masked"], 1)
        return {"loss": loss, "model_loss": loss, "model_accuracy": accuracy}

    def unigram_loss(self, entropy: float) -> float:
        return (self.config.mask_token_prob + self.config.random_token_prob) * entropy

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"mlm": self.mlm}
