"""BERT: masked language modelling with new masks at each step (section 3.4)."""

from torch import Tensor

from electra.models.electra import Discriminator, Generator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, scatter_tokens
from electra.objectives.objective import LossOutput, MetricSums, Objective, VocabInfo, sum_each
from electra.objectives.random import Purpose, uniform
from electra.objectives.settings import ObjectiveConfig


class MaskedLanguageModel(Objective):
    """One network of the discriminator's size; there is no generator."""

    metric_names = ("masked", "model_loss", "model_correct")

    def __init__(self, config: ObjectiveConfig, mlm: Generator, vocab: VocabInfo) -> None:
        super().__init__(config, mlm.encoder.config.table_rows, vocab)
        self.mlm = mlm
        tokens = (self.maskable & ~mlm.absent).nonzero().flatten()
        self.ordinary_ids: Tensor  # what a random token may be
        self.register_buffer("ordinary_ids", tokens, persistent=False)

    def mask(self, batch: Batch) -> Masked:
        """Also replace some of the masked positions by random tokens, as BERT does."""
        c = self.config
        masked = super().mask(batch)
        if not c.random_token_prob:
            return masked
        slots, ids = masked.positions.shape[1], self.ordinary_ids
        visible = masked.is_masked & (masked.inputs.gather(1, masked.positions) != self.mask_id)
        share = c.random_token_prob / (1 - c.mask_token_prob)
        chosen = visible & (uniform(batch.row_keys, Purpose.USE_RANDOM_TOKEN, slots) < share)
        index = (uniform(batch.row_keys, Purpose.RANDOM_TOKEN, slots) * len(ids)).long()
        tokens = ids[index.clamp_max(len(ids) - 1)]  # the product may round up
        inputs = scatter_tokens(masked.inputs, masked.positions, tokens, chosen)
        return masked._replace(inputs=inputs)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        mlm = self.run_mlm(self.mlm, masked.inputs, batch, masked, sample=False)
        return LossOutput(mlm.loss / totals[0], sum_each(masked.is_masked, mlm.loss, mlm.correct))

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        loss = sums["model_loss"] / max(sums["masked"], 1)
        accuracy = sums["model_correct"] / max(sums["masked"], 1)
        return {"loss": loss, "model_loss": loss, "model_accuracy": accuracy}

    def hidden_share(self) -> float:
        return self.config.mask_token_prob + self.config.random_token_prob

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {"mlm": self.mlm}
