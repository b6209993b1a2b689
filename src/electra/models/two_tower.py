"""The two-tower generator of Electric: predicts every token from all the others.

A left-to-right and a right-to-left transformer read the text; the state before a position and the
state after it predict its token. One pass serves all positions, where a masked language model
needs one pass per position.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.electra import absent_token_mask
from electra.models.encoder import Encoder, init_truncated_


class TwoTowerGenerator(nn.Module):
    """A cloze model; both towers share their embeddings, which are also the output weights."""

    def __init__(self, forwards: Encoder, backwards: Encoder, absent: Sequence[int] = ()) -> None:
        super().__init__()
        config = forwards.config
        assert forwards.embeddings is backwards.embeddings
        self.forwards, self.backwards = forwards, backwards
        self.dense = nn.Linear(2 * config.hidden, config.embedding)
        self.norm = nn.LayerNorm(config.embedding, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(config.table_rows))
        self.absent: Tensor
        self.register_buffer("absent", absent_token_mask(config, absent), persistent=False)
        init_truncated_(self.dense.weight, config.init_std)
        nn.init.zeros_(self.dense.bias)

    def forward(self, ids: Tensor, segments: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits for each position; they do not depend on the token there."""
        length = ids.shape[1]
        square = torch.ones(length, length, dtype=torch.bool, device=ids.device)
        # Padding attends to itself, because a softmax over nothing is NaN
        seen = attention_mask[:, None, None, :] | torch.eye(
            length, dtype=torch.bool, device=ids.device
        )
        x = self.forwards.embeddings(ids, segments)
        before = run_tower(self.forwards, x, seen & square.tril())
        after = run_tower(self.backwards, x, seen & square.triu())
        after = after * attention_mask[..., None]  # there is nothing after the text
        # differs from google-research/electra: its roll wraps around at the ends
        states = torch.cat([F.pad(before, (0, 0, 1, -1)), F.pad(after, (0, 0, -1, 1))], dim=-1)
        x = self.norm(F.gelu(self.dense(states)))
        bias = self.bias.masked_fill(self.absent, float("-inf"))
        return F.linear(
            x, self.forwards.embeddings.token.weight, bias
        )  # (batch, length, vocabulary)


def run_tower(encoder: Encoder, embedded: Tensor, mask: Tensor) -> Tensor:
    """Run an encoder's layers with an attention mask (batch, 1, length, length)."""
    x = encoder.embedding_proj(embedded)
    for layer in encoder.layers:
        x = layer(x, mask)
    return x  # (batch, length, hidden)
