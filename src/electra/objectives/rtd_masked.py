"""ELECTRA 15 %: the discriminator learns from the masked positions alone (section 3.4)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked, put
from electra.objectives.objective import Outcome, add_up, at_positions, generator_sums
from electra.objectives.rtd import ReplacedTokenDetection, detection_sums


class MaskedTokenDetection(ReplacedTokenDetection):
    """Replaced token detection whose loss and figures leave out what was never masked."""

    def forward(self, batch: Batch, masked: Masked, totals: Tensor) -> Outcome:
        c = self.config
        guesses = self.fill(batch, masked)
        corrupted = put(batch.ids, masked.positions, guesses.samples, masked.drawn)
        replaced = corrupted != batch.ids
        judged = at_positions(masked, batch.ids.shape[1])

        scores = self.discriminator(corrupted, batch.segments, batch.seen).float()
        bce = F.binary_cross_entropy_with_logits(scores, replaced.float(), reduction="none")
        detection_loss = (bce * judged).sum()
        generated = c.generator_weight * guesses.loss / totals[0]
        loss = generated + c.discriminator_weight * detection_loss / totals[1]
        with torch.no_grad():
            counted = generator_sums(guesses, masked)
            detected = detection_sums(batch, detection_loss, replaced, scores, judged)
            sums = add_up(*counted, *detected)
        return Outcome(loss, sums, corrupted, replaced, scores.detach(), judged)

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Slots, of which a position may have two, and positions."""
        places = at_positions(masked, batch.ids.shape[1])
        return torch.stack([masked.drawn.sum(), places.sum()]).clamp_min(1)
