"""Electric: an energy for every token, learned by noise-contrastive estimation.

Clark et al., 2020, "Pre-Training Transformers as Energy-Based Cloze Models". The network gives
each token an energy E_t, and exp(-E_t) learns to be p(x_t | the rest) without normalisation. k of
the n ordinary tokens of a row are replaced by noise from q. The logit that token t is noise is

    E_t + log q(x_t) + log(k / (n - k)).

A sample that equals the original token is labelled as noise, too.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.models.electra import Discriminator, Generator, merge_disentangled
from electra.models.two_tower import TwoTowerGenerator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, sample_tokens, sampling_numbers, scatter_tokens
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
    """The energies are the logits of a discriminator; q is a two-tower cloze model."""

    metric_names = (
        *("masked", "sampled_correct", "ordinary", "mlm_loss", "generator_correct"),
        *("tokens", "detection_loss", "replaced"),
    )

    def __init__(
        self,
        config: ObjectiveConfig,
        generator: TwoTowerGenerator,
        discriminator: Discriminator,
        vocab: VocabInfo,
    ) -> None:
        super().__init__(config, discriminator.encoder.config.table_rows, vocab)
        self.discriminator = discriminator
        self.generator = generator

    def ordinary(self, batch: Batch) -> Tensor:
        """Return which tokens are neither special nor padding; only these can be noise."""
        return batch.attention_mask & self.maskable[batch.ids]  # (batch, length)

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Both losses are means over the ordinary tokens."""
        count = self.ordinary(batch).sum()
        return torch.stack([count, count]).clamp_min(1)

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> LossOutput:
        c = self.config
        ids, segments, attention_mask = batch.ids, batch.segments, batch.attention_mask
        ordinary = self.ordinary(batch)
        mlm_logits = self.generator(ids, segments, attention_mask).float()  # (batch, length, vocab)
        cloze = F.cross_entropy(mlm_logits.flatten(0, 1), ids.flatten(), reduction="none")
        mlm_loss = (cloze.view_as(ids) * ordinary).sum()

        with torch.no_grad():
            index = masked.positions[..., None].expand(-1, -1, mlm_logits.shape[-1])
            random = sampling_numbers(batch.row_keys, masked.positions.shape[1])
            samples = sample_tokens(mlm_logits.gather(1, index), c.temperature, random)
            corrupted = scatter_tokens(ids, masked.positions, samples, masked.is_masked)
            is_noise = scatter_mask(masked, ids.shape[1])
            q = (mlm_logits / c.temperature).log_softmax(-1)
            log_q = q.gather(-1, corrupted[..., None]).squeeze(-1)  # (batch, length)

        energies = self.discriminator(corrupted, segments, attention_mask).float()
        logits = energies + log_q + prior_logit(is_noise, ordinary)
        nce = F.binary_cross_entropy_with_logits(logits, is_noise.float(), reduction="none")
        detection_loss = torch.where(ordinary, nce, 0.0).sum()
        loss = (
            c.generator_weight * mlm_loss / totals[0]
            + c.discriminator_weight * detection_loss / totals[1]
        )
        with torch.no_grad():
            sampled_correct = (samples == masked.labels) & masked.is_masked
            correct = (mlm_logits.argmax(-1) == ids) & ordinary
            sums = sum_each(
                *(masked.is_masked, sampled_correct, ordinary, mlm_loss, correct),
                *(attention_mask, detection_loss, corrupted != ids),
            )
        return LossOutput(loss, sums, corrupted, is_noise, logits.detach(), ordinary)

    def compute_metrics(self, sums: MetricSums) -> dict[str, float]:
        ordinary, tokens = max(sums["ordinary"], 1), max(sums["tokens"], 1)
        mlm_loss, detection_loss = sums["mlm_loss"] / ordinary, sums["detection_loss"] / ordinary
        c = self.config
        return {
            "loss": c.generator_weight * mlm_loss + c.discriminator_weight * detection_loss,
            "mlm_loss": mlm_loss,
            "detection_loss": detection_loss,
            "replaced_rate": sums["replaced"] / tokens,
            "generator_accuracy": sums["generator_correct"] / ordinary,
            "generator_sampled_accuracy": sums["sampled_correct"] / max(sums["masked"], 1),
        }

    def hidden_share(self) -> float:
        return 1.0  # the towers never see the token that they predict

    def networks(self) -> dict[str, Generator | Discriminator]:
        # No other library has a two-tower generator to load it into
        return {"discriminator": merge_disentangled(self.discriminator)}


def prior_logit(is_noise: Tensor, ordinary: Tensor) -> Tensor:
    """Return log(k / (n - k)) of each row: the logit of noise before the text is read."""
    k = is_noise.sum(1, keepdim=True).clamp_min(1)
    rest = (ordinary.sum(1, keepdim=True) - k).clamp_min(1)
    return (k / rest).log()  # (batch, 1)
