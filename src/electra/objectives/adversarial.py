"""Adversarial training: the generator learns to raise the discriminator's loss.

No gradient passes the sampling, so REINFORCE trains the generator. Each masked position is an
action of its own, assuming that the discriminator's output for a token does not depend on the other
samples; the reward R is the discriminator's loss at that position.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.electra import Discriminator, Generator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.mlm_output import (
    MlmOutput,
    cross_entropy_sum,
    is_correct,
    sample_replacements,
)
from electra.objectives.objective import LossOutput, MetricSums, VocabInfo, sum_each
from electra.objectives.rtd import METRIC_SUMS, ReplacedTokenDetection, compute_metrics
from electra.objectives.settings import ObjectiveConfig


class Adversarial(ReplacedTokenDetection):
    """Replaced token detection with a generator that is rewarded for misleading."""

    metric_names = (*METRIC_SUMS, "reward", "baseline_loss")
    generator_modules = ("generator", "baseline")

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator,
        discriminator: Discriminator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, generator, discriminator, vocab)
        # b = -log sigmoid(w h): starts at log 2, the loss of an untrained discriminator
        self.baseline = nn.Linear(generator.encoder.config.hidden, 1, bias=False)
        nn.init.zeros_(self.baseline.weight)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        assert isinstance(self.generator, Generator)
        states = self.generator.states(
            masked.inputs, batch.segments, batch.doc_ids, masked.positions
        )
        mlm_logits = self.generator.predict(states).float()
        samples = sample_replacements(mlm_logits, batch, masked, self.config)
        mlm = MlmOutput(
            cross_entropy_sum(mlm_logits, masked), is_correct(mlm_logits, masked), samples
        )

        corrupted, replaced = self.corrupt(batch, masked, samples)
        logits = self.discriminator(corrupted, batch.segments, batch.doc_ids).float()
        loss_mask = self.loss_mask(batch, masked)
        detection_loss, sums = self.detection_loss(logits, replaced, loss_mask, batch, masked, mlm)

        logits = logits.detach()
        wrong = torch.where(replaced, -logits, logits)
        reward = F.softplus(wrong).gather(1, masked.positions)  # (batch, slots)
        # The baseline must not train the generator, so its input is detached
        expected = self.baseline(states.detach()).squeeze(-1).float()
        advantage = reward + F.logsigmoid(expected.detach())  # R - b
        log_prob = self.log_prob(mlm_logits, samples, masked)
        policy_gain = (log_prob * advantage * masked.is_masked).sum()
        # exp(-R) is the discriminator's probability of the correct label: cross-entropy to that
        error = F.binary_cross_entropy_with_logits(expected, (-reward).exp(), reduction="none")
        baseline_loss = (error * masked.is_masked).sum()

        weights = self.weights / totals
        loss = weights[0] * (baseline_loss - policy_gain) + weights[1] * detection_loss
        own_sums = sum_each(reward * masked.is_masked, baseline_loss)
        return LossOutput(loss, torch.cat([sums, own_sums]), corrupted, replaced, logits, loss_mask)

    def log_prob(self, logits: Tensor, samples: Tensor, masked: Masked) -> Tensor:
        """Return the log probability of each sample under the distribution it comes from."""
        logits = logits / self.config.temperature
        if self.config.disallow_correct:
            logits = logits.scatter(-1, masked.labels[..., None], float("-inf"))
        return logits.log_softmax(-1).gather(-1, samples[..., None]).squeeze(-1)  # (batch, slots)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """Compute metrics; `loss` is the discriminator's, which the generator raises."""
        metrics, masked = compute_metrics(sums, self.config), max(sums["masked"], 1)
        return metrics | {
            "loss": self.config.discriminator_weight * metrics["detection_loss"],
            "reward": sums["reward"] / masked,
            "baseline_loss": sums["baseline_loss"] / masked,
        }

    def hidden_share(self) -> None:
        return None  # the generator has no MLM loss
