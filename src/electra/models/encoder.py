"""The encoder of both networks: BERT's post-norm transformer with factorised embeddings.

You can read this file alone: precision, compilation and fused kernels are applied from outside.
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
    """The sizes of an encoder."""

    layers: int = 12
    """Number of transformer layers."""
    hidden: int = 256
    """Hidden size of the layers."""
    heads: int = 0
    """Attention heads; 0 means one per 64 of the hidden size, at least one, as in
    google-research/electra."""
    feed_forward: int = 0
    """Inner size of the feed-forward layers; 0 means 4 x hidden."""
    embedding: int = 128
    """Size of the embeddings; if it differs from `hidden`, a projection follows."""
    max_positions: int = 512
    """Longest input that the position embeddings allow; may exceed the training length."""
    vocab_size: int = 0
    """Number of token ids; 0 takes the tokenizer's."""
    vocab_multiple: int = 64
    """The vocabulary is padded to a multiple of this; padding is neither predicted nor exported."""
    dropout: float = 0.1
    """Dropout on the embeddings and on both outputs of each layer."""
    attention_dropout: float = 0.1
    """Dropout on attention probabilities."""
    init_std: float = 0.02
    """Standard deviation of the truncated normal that initialises the weights."""
    init: Literal["paper", "local"] = "paper"
    """Initial attention: 'paper' is random; in 'local' each head attends to a neighbouring token,
    so that a short run leaves the initial plateau."""

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
            raise UserError(
                "model.dropout and model.attention_dropout must be at least 0 and below 1."
            )
        if self.init == "local" and self.embedding % 2:
            raise UserError("model.init=local needs an even model.embedding.")
        if self.hidden % self.head_count:
            raise UserError(
                f"A hidden size of {self.hidden} does not divide into {self.head_count} attention "
                "heads: choose another model.hidden, model.heads or generator.width."
            )

    @property
    def head_count(self) -> int:
        return self.heads or max(1, self.hidden // 64)

    @property
    def feed_forward_width(self) -> int:
        return self.feed_forward or 4 * self.hidden

    @property
    def table_rows(self) -> int:
        """Rows of the token embeddings: the vocabulary size, padded."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


class Embeddings(nn.Module):
    """Token, position and segment embeddings; the networks share this module."""

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
    """Scaled dot-product attention; `mask` is True where a query may attend to a key."""

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
        self.qkv = nn.Linear(hidden, 3 * hidden)  # one GEMM instead of three
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
    """Maps token ids to one vector per token; pass `embeddings` to share another encoder's."""

    def __init__(self, config: EncoderConfig, embeddings: Embeddings | None = None) -> None:
        super().__init__()
        self.config = config
        self.embeddings = embeddings if embeddings is not None else Embeddings(config)
        self.embedding_proj: nn.Module = nn.Identity()
        if config.embedding != config.hidden:
            self.embedding_proj = glorot_linear(config.embedding, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))

    @property
    def dropout_rates(self) -> tuple[float, float]:
        """The current rates of dropout and of attention dropout, which `set_dropout_` changes."""
        dropout = (m.p for m in self.modules() if isinstance(m, nn.Dropout))
        attention = (m.dropout for m in self.modules() if isinstance(m, Attention))
        c = self.config  # where there are no such modules any more
        return next(dropout, c.dropout), next(attention, c.attention_dropout)

    def forward(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Encode; `attention_mask` (batch, length) is True for tokens and False for padding.

        An integer mask holds document ids: a token attends to its own document only.
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
    """Fill with a normal distribution truncated at two standard deviations, as TensorFlow does.

    Uses the inverse of the distribution, because torch's own function gives other numbers in 2.13
    than in 2.11 for the same seed.
    """
    end = math.erf(math.sqrt(2))
    with torch.no_grad():
        weight.uniform_(-end, end).erfinv_().mul_(math.sqrt(2) * std).clamp_(-2 * std, 2 * std)


def glorot_linear(inputs: int, outputs: int) -> nn.Linear:
    """Build a linear layer with TensorFlow's default initialisation: Glorot uniform, zero bias."""
    linear = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear


def set_dropout_(encoder: Encoder, *, on: bool) -> None:
    """Set the dropout rates to those of the encoder's configuration, or to zero."""
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = encoder.config.dropout if on else 0.0
        elif isinstance(module, Attention):
            module.dropout = encoder.config.attention_dropout if on else 0.0


def resize_token_embeddings_(embeddings: Embeddings, rows: int, std: float) -> None:
    """Resize the token embeddings in place, for all networks that share them."""
    old = embeddings.token.weight
    new = torch.empty(rows, old.shape[1], device=old.device, dtype=old.dtype)
    init_truncated_(new, std)
    kept = min(rows, old.shape[0])
    new[:kept] = old.detach()[:kept]
    embeddings.token.weight = nn.Parameter(new)
    embeddings.token.num_embeddings = rows
