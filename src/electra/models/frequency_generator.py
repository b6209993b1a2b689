"""Generators that do not learn: words by their frequency, or all alike (paper, section 3.2)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from electra.models.electra import absent_token_mask
from electra.models.encoder import EncoderConfig

UNSEEN = 0.01
"""Occurrences of a word that never occurred: held-out text may have it, and no loss is infinite."""


class FrequencyGenerator(nn.Module):
    """The same distribution at every position; before `set_counts` all words are alike.

    differs from the released code: special tokens, which no text has in a word's place, are not
    among the words.
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
        self.counted = counted  # whether it waits for the frequencies of a text
        words = ~absent_token_mask(config, (*absent, *special))
        self.words: Tensor
        self.register_buffer("words", words, persistent=False)
        self.logits: Tensor  # persistent: a resumed run does not count again
        self.register_buffer("logits", (words.double() / words.sum()).log().float())

    def set_counts(self, counts: Tensor) -> None:
        """Follow these frequencies; `counts` is (table rows,) and what is no word is left out."""
        weights = torch.where(self.words.cpu(), counts.clamp_min(UNSEEN), 0.0)
        self.logits.copy_((weights / weights.sum()).log())

    def forward(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None, positions: Tensor
    ) -> Tensor:
        """The logits of a generator, without a look at the text."""
        return self.logits.expand(*positions.shape, -1)  # (batch, masked, vocabulary)
