"""The encoder of the paper: BERT's post-norm body over a factorised embedding.

Both networks of ELECTRA are this encoder, at two widths. The file can be read alone: precision,
compilation and parallelism are put on from outside.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Sizes of one encoder."""

    layers: int = 12
    """Number of transformer layers."""
    hidden: int = 256
    """Width of the layers."""
    heads: int = 0
    """Attention heads; 0 follows the original's rule: one per 64 of width, at least one."""
    feed_forward: int = 0
    """Inner width of the feed-forward part; 0 means 4 x hidden."""
    embedding: int = 128
    """Width of the embedding tables; a projection follows where it differs from hidden."""
    max_positions: int = 512
    """Longest input that the position table allows, whatever the training length."""
    vocab_size: int = 0
    """Number of token ids; 0 takes the tokenizer's."""
    vocab_multiple: int = 64
    """The tables are padded to a multiple of this; padded ids are never predicted nor exported."""
    dropout: float = 0.1
    """Dropout on embeddings and on each layer's two outputs."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the truncated normal that initialises the matrices."""
    init: Literal["paper", "local"] = "paper"
    """How attention starts: 'paper' at random, 'neighbours' with heads that look at the tokens
    before and after, so that a short run leaves the opening plateau."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "embedding", "max_positions", "vocab_multiple"):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name} must be at least 1.")
        for name in ("heads", "feed_forward", "vocab_size"):
            if getattr(self, name) < 0:
                raise UserError(f"model.{name} must be at least 0.")
        if self.init_std <= 0:
            raise UserError("model.init_std must be above 0.")
        if not (0 <= self.dropout < 1 and 0 <= self.attention_dropout < 1):
            raise UserError("model.dropout and model.attention_dropout are shares below 1.")
        if self.init == "local" and self.embedding % 2:
            raise UserError("model.init=local needs an even model.embedding.")
        if self.hidden % self.head_count:
            raise UserError(
                f"A width of {self.hidden} does not divide into {self.head_count} attention heads: "
                "choose another model.hidden, model.heads or generator.width."
            )

    @property
    def head_count(self) -> int:
        return self.heads or max(1, self.hidden // 64)

    @property
    def feed_forward_width(self) -> int:
        return self.feed_forward or 4 * self.hidden

    @property
    def table_rows(self) -> int:
        """Rows of the token table: the vocabulary, padded."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


class Embeddings(nn.Module):
    """Token + position + segment tables, normalised; the block that the two networks share."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.token = nn.Embedding(config.table_rows, config.embedding)
        self.position = nn.Embedding(config.max_positions, config.embedding)
        self.segment = nn.Embedding(2, config.embedding)
        self.norm = nn.LayerNorm(config.embedding, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        for table in (self.token, self.position, self.segment):
            init_truncated_(table.weight, config.init_std)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        positions = self.position.weight[: ids.shape[1]]
        x = self.token(ids) + self.segment(segments) + positions
        return self.dropout(self.norm(x))  # (batch, length, embedding)


class Attention(nn.Module):
    """Each query's mixture of the values; `mask` is True where a key may be looked at."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)


class Layer(nn.Module):
    """Self-attention and feed-forward, each followed by dropout, residual and LayerNorm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden, config.feed_forward_width
        self.heads = config.head_count
        self.attention = Attention(config.attention_dropout)
        self.qkv = nn.Linear(hidden, 3 * hidden)  # one product instead of three
        self.out_proj = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.up_proj = nn.Linear(hidden, inner)
        self.down_proj = nn.Linear(inner, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(config.dropout)
        for linear in (self.qkv, self.out_proj, self.up_proj, self.down_proj):
            init_truncated_(linear.weight, config.init_std)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attend(x, mask)))
        inner = self.down_proj(F.gelu(self.up_proj(x)))  # the erf form of GELU, as BERT
        return self.output_norm(x + self.dropout(inner))

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, hidden / heads)
        mixed = self.attention(q, k, v, mask)
        return self.out_proj(mixed.transpose(1, 2).reshape(batch, length, hidden))


class Encoder(nn.Module):
    """Token ids to one vector per token; `embeddings` may be another encoder's, to share them."""

    def __init__(self, config: EncoderConfig, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings if embeddings is not None else Embeddings(config)
        self.embedding_proj: nn.Module = nn.Identity()
        if config.embedding != config.hidden:
            self.embedding_proj = glorot_linear(config.embedding, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    def forward(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """`attention_mask` (batch, length) is True for tokens and False for padding.

        An integer tensor holds document ids instead: a token attends to its own document only.
        """
        x = self.embedding_proj(self.embeddings(ids, segments))
        mask = None
        if attention_mask is not None:
            mask = attention_mask[:, None, None, :]  # (batch, 1, 1, length)
            if attention_mask.dtype != torch.bool:
                mask = mask == attention_mask[:, None, :, None]  # (batch, 1, length, length)
        for layer in self.layers:
            x = layer(x, mask)
        return x  # (batch, length, hidden)


RENAMED_PARAMETERS = {
    "attended": "out_proj",
    "expand": "up_proj",
    "contract": "down_proj",
    "project": "embedding_proj",
}
"""Modules by the names that checkpoints of earlier versions have for them."""


def current_parameter_name(name: str) -> str:
    """Return a stored parameter name with modules by their current names."""
    return ".".join(RENAMED_PARAMETERS.get(part, part) for part in name.split("."))


def init_truncated_(weight: Tensor, std: float) -> None:
    """TensorFlow's truncated normal: nothing beyond two standard deviations.

    By the inverse of the distribution: torch's own function draws otherwise in 2.13 than in 2.11,
    and a seed should give the same weights in both.
    """
    end = math.erf(math.sqrt(2))
    with torch.no_grad():
        weight.uniform_(-end, end).erfinv_().mul_(math.sqrt(2) * std).clamp_(-2 * std, 2 * std)


def glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    """A layer that the original left at TensorFlow's default: Glorot uniform, zero bias."""
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def resize_token_embeddings_(embeddings: Embeddings, rows: int, std: float) -> None:
    """Grow or cut the token table in place; whoever shares the block sees the new table."""
    old = embeddings.token.weight
    new = torch.empty(rows, old.shape[1], device=old.device, dtype=old.dtype)
    init_truncated_(new, std)
    kept = min(rows, old.shape[0])
    new[:kept] = old.detach()[:kept]
    embeddings.token.weight = nn.Parameter(new)
    embeddings.token.num_embeddings = rows
