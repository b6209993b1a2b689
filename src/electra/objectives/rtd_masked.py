"""ELECTRA 15 %: the discriminator learns from the masked positions alone (section 3.4)."""

import torch
from torch import Tensor

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import at_positions
from electra.objectives.rtd import ReplacedTokenDetection


class MaskedTokenDetection(ReplacedTokenDetection):
    """Replaced token detection whose loss and figures leave out what was never masked."""

    def judged(self, batch: Batch, masked: Masked) -> Tensor:
        return at_positions(masked, batch.ids.shape[1])

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Slots, of which a position may have two, and positions."""
        places = self.judged(batch, masked)
        return torch.stack([masked.drawn.sum(), places.sum()]).clamp_min(1)
