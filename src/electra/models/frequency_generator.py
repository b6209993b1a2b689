"""Generators that do not learn: tokens by frequency, or all alike (paper, section 3.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from electra.models.electra import absent_token_mask
from electra.models.encoder import EncoderConfig

UNSEEN = 0.01
"""Count of a token that never occurs: it may be in held-out text, where the loss must be finite."""


class FrequencyGenerator(nn.Module):
    """Predicts the same distribution at every position; uniform before `set_counts`.

    differs from google-research/electra: never samples special tokens, which are never masked.
    """

    def __init__(
        self,
        config: EncoderConfig,
        absent: Sequence[int],
        special: Sequence[int],
        *,
        counted: bool,
    ) -> None:
        super().__init__()
        self.counted = counted  # whether it needs the frequencies of the training text
        ordinary = ~absent_token_mask(config, (*absent, *special))
        self.ordinary: Tensor
        self.register_buffer("ordinary", ordinary, persistent=False)
        self.logits: Tensor  # in checkpoints: a resumed run does not count again
        self.register_buffer("logits", (ordinary.double() / ordinary.sum()).log().float())

    def set_counts(self, counts: Tensor) -> None:
        """Set the frequencies of tokens, (table rows,); special and absent tokens are ignored."""
        weights = torch.where(self.ordinary.cpu(), counts.clamp_min(UNSEEN), 0.0)
        self.logits.copy_((weights / weights.sum()).log())

    def forward(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None, positions: Tensor
    ) -> Tensor:
        """Return the logits, whatever the text."""
        return self.logits.expand(*positions.shape, -1)  # (batch, masked, vocabulary)
