"""ELECTRA 15 %: the detection loss counts the masked positions only (section 3.4)."""

import torch
from torch import Tensor

from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import scatter_mask
from electra.objectives.rtd import ReplacedTokenDetection


class MaskedTokenDetection(ReplacedTokenDetection):
    """Replaced token detection whose loss and metrics count the masked positions only."""

    def loss_mask(self, batch: Batch, masked: Masked) -> Tensor:
        return scatter_mask(masked, batch.ids.shape[1])

    def totals(self, batch: Batch, masked: Masked) -> Tensor:
        """Count masked slots and masked positions; repeated sampling masks some positions twice."""
        positions = self.loss_mask(batch, masked)
        return torch.stack([masked.is_masked.sum(), positions.sum()]).clamp_min(1)
