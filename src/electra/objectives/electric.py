"""Electric: an energy for every token, learned by noise-contrastive estimation.

Clark et al., 2020, "Pre-Training Transformers as Energy-Based Cloze Models". The network gives
each token an energy E_t, and exp(-E_t) learns to be p(x_t | the rest) without being normalised. k
of the n words of a row are replaced by noise from q, and the odds that token t is noise are

    k q(x_t) / ((n - k) exp(-E_t)),   so the logit is   E_t + log q(x_t) + log(k / (n - k)).

A sample that happens to be the true token is noise all the same.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Discriminator, Generator, merge_disentangled
from electra.models.two_tower import TwoTowerGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, put, sample_tokens
from electra.objectives.objective import (
    LossOutput,
    MetricSums,
    Objective,
    VocabInfo,
    scatter_mask,
    sum_each,
)
from electra.objectives.settings import ObjectiveConfig


class Electric(Objective):
    """The energies are the scores of a discriminator; q is a two-tower cloze model."""

    metric_names = (
        *("masked", "sampled_true", "words", "mlm_loss", "guessed"),
        *("tokens", "detection_loss", "replaced"),
    )

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: TwoTowerGenerator,
        discriminator: Discriminator,
        ids: VocabInfo,
    ) -> None:
        super().__init__(config, discriminator.encoder.config.table_rows, ids)
        self.discriminator = discriminator
        self.generator = generator

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Both losses are over the words: the special tokens are never noise."""
        words = batch.attention_mask & self.maskable[batch.ids]
        return torch.stack([words.sum(), words.sum()]).clamp_min(1)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        c = self.config
        ids, segments, attention_mask, _ = batch
        words = attention_mask & self.maskable[ids]
        logits = self.generator(
            ids, segments, attention_mask
        ).float()  # (batch, length, vocabulary)
        cloze = F.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        mlm_loss = (cloze * words).sum()

        with torch.no_grad():
            index = masked.positions[..., None].expand(-1, -1, logits.shape[-1])
            samples = sample_tokens(logits.gather(1, index), c.temperature)
            noised = put(ids, masked.positions, samples, masked.is_masked)
            noise = scatter_mask(masked, ids.shape[1])
            q = (logits / c.temperature).log_softmax(-1)
            log_q = q.gather(-1, noised[..., None]).squeeze(-1)  # (batch, length)

        energies = self.discriminator(noised, segments, attention_mask).float()
        scores = energies + log_q + prior(noise, words)
        nce = F.binary_cross_entropy_with_logits(scores, noise.float(), reduction="none")
        detection_loss = torch.where(words, nce, 0.0).sum()
        loss = (
            c.generator_weight * mlm_loss / totals[0]
            + c.discriminator_weight * detection_loss / totals[1]
        )
        with torch.no_grad():
            sampled_true = (samples == masked.labels) & masked.is_masked
            right = (logits.argmax(-1) == ids) & words
            counted = (masked.is_masked, sampled_true, words, mlm_loss, right)
            sums = sum_each(*counted, attention_mask, detection_loss, noised != ids)
        return LossOutput(loss, sums, noised, noise, scores.detach(), words)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        words, tokens = max(sums["words"], 1), max(sums["tokens"], 1)
        mlm_loss, detection_loss = sums["mlm_loss"] / words, sums["detection_loss"] / words
        c = self.config
        return {
            "loss": c.generator_weight * mlm_loss + c.discriminator_weight * detection_loss,
            "mlm_loss": mlm_loss,
            "detection_loss": detection_loss,
            "replaced_rate": sums["replaced"] / tokens,
            "generator_accuracy": sums["guessed"] / words,
            "generator_sampled_accuracy": sums["sampled_true"] / max(sums["masked"], 1),
        }

    def unigram_loss(self, entropy: float) -> float:
        return entropy  # the towers never see the word itself

    def networks(self) -> dict[str, Generator | Discriminator]:
        return {
            "discriminator": merge_disentangled(self.discriminator)
        }  # nobody else has two towers


def prior(noise: Tensor, words: Tensor) -> Tensor:
    """log(k / (n - k)) of each row: the odds of noise before anything is read."""
    k = noise.sum(1, keepdim=True).clamp_min(1)
    rest = (words.sum(1, keepdim=True) - k).clamp_min(1)
    return (k / rest).log()  # (batch, 1)
