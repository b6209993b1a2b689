"""Adversarial training: the generator learns to raise the discriminator's loss.

No gradient passes the sampling, so the generator is trained by REINFORCE. Each drawn position is an
action of its own, on the assumption that the verdict on a token does not depend on the other
samples; its reward R is the discriminator's loss there.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.electra import Discriminator, Generator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import LossOutput, MetricSums, VocabInfo, sum_each
from electra.objectives.rtd import METRIC_SUMS, ReplacedTokenDetection, compute_metrics
from electra.objectives.settings import ObjectiveConfig


class Adversarial(ReplacedTokenDetection):
    """Detection against a generator that is told nothing but how well it misled."""

    metric_names = (*METRIC_SUMS, "reward", "baseline_loss")

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: Generator,
        discriminator: Discriminator,
        ids: VocabInfo,
    ) -> None:
        super().__init__(config, generator, discriminator, ids)
        # b = -log sigmoid(w h): it begins at log 2, the loss of a discriminator that knows nothing
        self.baseline = nn.Linear(generator.encoder.config.hidden, 1, bias=False)
        nn.init.zeros_(self.baseline.weight)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        assert isinstance(self.generator, Generator)
        states = self.generator.states(
            masked.inputs, batch.segments, batch.doc_ids, masked.positions
        )
        logits = self.generator.predict(states).float()
        guesses = self.read(logits, masked, sample=True)
        found = self.detect(batch, masked, guesses)

        assert found.replaced is not None
        assert found.scores is not None
        wrong = torch.where(found.replaced, -found.scores, found.scores)
        reward = F.softplus(wrong).gather(1, masked.positions)  # its loss there, (batch, slots)
        # The states are cut off: the baseline judges the generator and does not teach it.
        expected = self.baseline(states.detach()).squeeze(-1).float()
        gain = reward + F.logsigmoid(expected.detach())  # R - b
        chance = self.log_chance(logits, guesses.samples, masked)
        raised = (chance * gain * masked.is_masked).sum()
        # The discriminator's probability of the right verdict is exp(-R): cross-entropy to that
        miss = F.binary_cross_entropy_with_logits(expected, (-reward).exp(), reduction="none")
        baseline_loss = (miss * masked.is_masked).sum()

        weights = self.weights / totals
        loss = weights[0] * (baseline_loss - raised) + weights[1] * found.loss
        more = sum_each(reward * masked.is_masked, baseline_loss)
        return LossOutput(loss, torch.cat([found.sums, more]), *found[2:])

    def log_chance(self, logits: Tensor, samples: Tensor, masked: Masked) -> Tensor:
        """How likely each sample was, under the distribution that it was drawn from."""
        scores = logits / self.config.temperature
        if self.config.disallow_correct:
            scores = scores.scatter(-1, masked.labels[..., None], float("-inf"))
        return scores.log_softmax(-1).gather(-1, samples[..., None]).squeeze(-1)  # (batch, slots)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        """`loss` is the discriminator's: the two networks do not pull on one rope."""
        figures, masked = compute_metrics(sums, self.config), max(sums["masked"], 1)
        return figures | {
            "loss": self.config.discriminator_weight * figures["detection_loss"],
            "reward": sums["reward"] / masked,
            "baseline_loss": sums["baseline_loss"] / masked,
        }

    def unigram_loss(self, entropy: float) -> float:
        return float("inf")  # nobody teaches it words
