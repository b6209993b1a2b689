"""Replaced token detection: mask -> sample -> detect, both networks trained jointly (section 2)."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError
from electra.models.electra import Discriminator, Generator
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Draw, Masked, Rounding, mask_tokens, put, sample_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RtdConfig:
    """The objective of the paper."""

    mask_rate: float = 0.15
    """Share of a row's tokens that the generator predicts and its samples replace."""
    mask_shown: float = 0.85
    """Share of the drawn positions that the generator sees as [MASK]; the others keep their token.
    The released code has 0.85, the paper's text speaks of masking all of them: 1.0."""
    count: Rounding = "round"
    """How mask_rate x tokens becomes a number: 'round' as the released code (19 of 128),
    'ceil' as the paper's text (20 of 128)."""
    draw: Draw = "distinct"
    """'distinct' draws each position at most once; 'repeated' draws with replacement as the
    released code does, so that fewer tokens (13.8 % of 128) are masked."""
    temperature: float = 1.0
    """Temperature of the generator's samples."""
    exclude_true: bool = False
    """Never sample the true token, so that each drawn position is replaced."""
    generator_weight: float = 1.0
    """Weight of the masked language modelling loss."""
    discriminator_weight: float = 50.0
    """Weight of the detection loss."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_rate < 1 or not 0 <= self.mask_shown <= 1:
            raise UserError("objective.mask_rate and mask_shown are shares between 0 and 1.")
        if self.temperature <= 0:
            raise UserError("objective.temperature must be above 0.")


SUMS = (
    "masked",  # positions that were drawn
    "mlm_loss",
    "guessed",  # the generator's best guess is the true token
    "sampled_true",  # its sample is the true token
    "tokens",  # all real tokens
    "detection_loss",
    "replaced",  # tokens that differ from the original
    "flagged",  # tokens that the discriminator calls replaced
    "caught",  # tokens that are replaced and flagged
)
"""What a step adds up. Ratios are taken of the sums over many batches, never averaged."""


class Outcome(NamedTuple):
    """The result of one forward pass."""

    loss: Tensor
    sums: Tensor  # (len(SUMS),) in fp32
    corrupted: Tensor  # (batch, length) what the discriminator read
    replaced: Tensor  # (batch, length) its labels
    scores: Tensor  # (batch, length) its logits


class ReplacedTokenDetection(nn.Module):
    """Both networks and the loss that trains them."""

    def __init__(
        self,
        config: RtdConfig,
        generator: Generator,
        discriminator: Discriminator,
        *,
        mask_id: int,
        special: tuple[int, ...],
    ) -> None:
        super().__init__()
        self.config = config
        # The discriminator comes first, so that what is shared carries its name.
        self.discriminator = discriminator
        self.generator = generator
        self.mask_id = mask_id
        maskable = torch.ones(discriminator.encoder.config.table_rows, dtype=torch.bool)
        maskable[list(special)] = False
        self.maskable: Tensor
        self.register_buffer("maskable", maskable, persistent=False)

    def mask(self, batch: Batch) -> Masked:
        """The generator's exercise for a whole batch, before it is cut into micro-batches."""
        c = self.config
        return mask_tokens(
            batch.ids,
            batch.real,
            self.maskable,
            self.mask_id,
            rate=c.mask_rate,
            shown=c.mask_shown,
            rounding=c.count,
            draw=c.draw,
        )

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        """One pass over a micro-batch; `totals` are the masked and real tokens of the whole batch.

        Dividing by the totals of the batch, not by the micro-batch's own counts, makes the sum of
        the micro-batches' gradients the gradient of the batch.
        """
        c = self.config
        ids, segments, real = batch
        logits = self.generator(masked.inputs, segments, real, masked.positions).float()
        nll = F.cross_entropy(logits.flatten(0, 1), masked.originals.flatten(), reduction="none")
        mlm_loss = (nll * masked.drawn.flatten()).sum()

        # One pass serves the loss and the sample, dropout included; no gradient flows through it.
        samples = sample_tokens(logits, c.temperature, masked.originals if c.exclude_true else None)
        corrupted = put(ids, masked.positions, samples, masked.drawn)
        replaced = corrupted != ids  # a correct guess counts as original

        scores = self.discriminator(corrupted, segments, real).float()
        bce = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="none")
        detection_loss = (bce * real).sum()

        loss = (
            c.generator_weight * mlm_loss / totals[0]
            + c.discriminator_weight * detection_loss / totals[1]
        )
        with torch.no_grad():
            flagged = (scores > 0) & real
            right = (logits.argmax(-1) == masked.originals) & masked.drawn
            sampled_true = (samples == masked.originals) & masked.drawn
            counted = (
                masked.drawn,
                mlm_loss,
                right,
                sampled_true,
                real,
                detection_loss,
                replaced,
                flagged,
                flagged & replaced,
            )
            sums = torch.stack([x.detach().sum(dtype=torch.float32) for x in counted])
        return Outcome(loss, sums, corrupted, replaced, scores.detach())


def totals_of(batch: Batch, masked: Masked) -> Tensor:
    """Masked and real tokens of a batch: the denominators of the two losses."""
    return torch.stack([masked.drawn.sum(), batch.real.sum()]).clamp_min(1)


def summarise(sums: dict[str, float], config: RtdConfig) -> dict[str, float]:
    """The figures people look at, from sums over any number of batches."""
    masked, tokens = max(sums["masked"], 1), max(sums["tokens"], 1)
    mlm_loss, detection_loss = sums["mlm_loss"] / masked, sums["detection_loss"] / tokens
    wrong = sums["replaced"] + sums["flagged"] - 2 * sums["caught"]
    return {
        "loss": config.generator_weight * mlm_loss + config.discriminator_weight * detection_loss,
        "mlm_loss": mlm_loss,
        "detection_loss": detection_loss,
        "replaced_rate": sums["replaced"] / tokens,
        "generator_accuracy": sums["guessed"] / masked,
        "generator_sampled_accuracy": sums["sampled_true"] / masked,
        "discriminator_accuracy": 1 - wrong / tokens,
        "precision": sums["caught"] / max(sums["flagged"], 1),
        "recall": sums["caught"] / max(sums["replaced"], 1),
    }
