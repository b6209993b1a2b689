"""ELECTRA 15 %: the discriminator learns from the masked positions alone (section 3.4)."""

import torch
from torch import Tensor

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import scatter_mask
from electra.objectives.rtd import ReplacedTokenDetection


class MaskedTokenDetection(ReplacedTokenDetection):
    """Replaced token detection whose loss and figures leave out what was never masked."""

    def loss_mask(self, batch: Batch, masked: Masked) -> Tensor:
        return scatter_mask(masked, batch.ids.shape[1])

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Slots, of which a position may have two, and positions."""
        places = self.loss_mask(batch, masked)
        return torch.stack([masked.is_masked.sum(), places.sum()]).clamp_min(1)
