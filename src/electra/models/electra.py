"""The two networks: a generator that predicts masked tokens, a discriminator that detects them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError
from electra.models.encoder import (
    Embeddings,
    Encoder,
    EncoderConfig,
    glorot_linear,
    init_truncated_,
)
from electra.models.local_init import init_local_attention_

Sharing = Literal["none", "embeddings", "all", "gdes"]
GeneratorKind = Literal["transformer", "unigram", "uniform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """The generator, sized as fractions of the discriminator."""

    kind: GeneratorKind = "transformer"
    """'transformer' learns; 'unigram' samples tokens by their frequency in the training text and
    'uniform' samples all tokens alike. These two ignore the generator's sizes."""
    width: float = 0.25
    """Fraction of the discriminator's hidden and feed-forward widths and of its heads."""
    depth: float = 1.0
    """Fraction of the discriminator's layers."""
    tie: Sharing = "embeddings"
    """What the networks share: 'embeddings' (the token, position and segment embeddings and their
    LayerNorm), 'all' (the whole encoder, which needs equal sizes), 'none', or 'gdes':
    gradient-disentangled sharing, where the discriminator adds a trained difference to the
    generator's embeddings and sends no gradient to them."""


def generator_sizes(model: EncoderConfig, generator: GeneratorConfig) -> EncoderConfig:
    """Return the sizes of the generator's encoder: rounded fractions of the discriminator's."""
    if not (0 < generator.width <= 1 and 0 < generator.depth <= 1):
        raise UserError("generator.width and generator.depth are fractions above 0, at most 1.")
    if generator.tie == "all" and (generator.width, generator.depth) != (1, 1):
        raise UserError(
            "generator.tie=all shares the whole encoder, so both networks need the same size: "
            "set generator.width=1 generator.depth=1, or generator.tie=embeddings."
        )
    # round, not int: 768 x 0.33333 is 256, not 255
    hidden = max(1, round(model.hidden * generator.width))
    return replace(
        model,
        hidden=hidden,
        layers=max(1, round(model.layers * generator.depth)),
        heads=max(1, round(model.heads * generator.width)) if model.heads else 0,
        feed_forward=round(model.feed_forward * generator.width) if model.feed_forward else 0,
        # Shared embeddings keep the discriminator's width
        embedding=hidden if generator.tie == "none" else model.embedding,
    )


class Generator(nn.Module):
    """A masked language model; its output weights are its token embeddings."""

    def __init__(self, encoder: Encoder, absent: Sequence[int] = ()) -> None:
        super().__init__()
        config = encoder.config
        self.encoder = encoder
        self.dense = nn.Linear(config.hidden, config.embedding)
        self.norm = nn.LayerNorm(config.embedding, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(config.table_rows))
        self.absent: Tensor
        self.register_buffer("absent", absent_token_mask(config, absent), persistent=False)
        init_truncated_(self.dense.weight, config.init_std)
        nn.init.zeros_(self.dense.bias)

    def forward(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None, positions: Tensor
    ) -> Tensor:
        """Return logits over the vocabulary at `positions` only."""
        return self.predict(self.states(ids, segments, attention_mask, positions))

    def states(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None, positions: Tensor
    ) -> Tensor:
        """Return the encoder's output at `positions`."""
        hidden = self.encoder(ids, segments, attention_mask)
        index = positions[..., None].expand(-1, -1, hidden.shape[2])
        return hidden.gather(1, index)  # (batch, masked, hidden)

    def predict(self, hidden: Tensor) -> Tensor:
        """Return logits over the vocabulary."""
        x = self.norm(F.gelu(self.dense(hidden)))
        return F.linear(x, self.encoder.embeddings.token.weight, self.output_bias())

    def output_bias(self) -> Tensor:
        """Return the output bias, -inf for absent tokens: no extra pass over the logits."""
        return self.bias.masked_fill(self.absent, float("-inf"))


class Discriminator(nn.Module):
    """Detects replaced tokens; the network that is kept."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        hidden = encoder.config.hidden
        self.encoder = encoder
        self.dense = nn.Linear(hidden, hidden)
        self.score = glorot_linear(hidden, 1)
        init_truncated_(self.dense.weight, encoder.config.init_std)
        nn.init.zeros_(self.dense.bias)

    def forward(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return the logit of 'replaced' for each token."""
        hidden = self.encoder(ids, segments, attention_mask)
        return self.score(F.gelu(self.dense(hidden))).squeeze(-1)  # (batch, length)


class DisentangledEmbeddings(Embeddings):
    """The generator's embeddings without their gradient, plus a trained difference.

    As in DeBERTa-V3: E_D = stop_gradient(E_G) + E_delta, where E_delta starts at zero. The
    discriminator has its own LayerNorm.
    """

    def __init__(self, config: EncoderConfig, source: Embeddings) -> None:
        super().__init__(config)
        self._source = (source,)  # in a tuple, so that its parameters stay the generator's
        self.zero_()

    @torch.no_grad()
    def zero_(self) -> None:
        """Set the difference to zero."""
        for table in (self.token, self.position, self.segment):
            table.weight.zero_()

    @property
    def source(self) -> Embeddings:
        """The generator's embeddings."""
        return self._source[0]

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        source = self.source
        there = source.position.weight[: ids.shape[1]].detach()
        x = self.token(ids) + F.embedding(ids, source.token.weight.detach())
        x = x + self.segment(segments) + F.embedding(segments, source.segment.weight.detach())
        x = x + self.position.weight[: ids.shape[1]] + there
        return self.dropout(self.norm(x))  # (batch, length, embedding)

    @torch.no_grad()
    def merge_disentangled(self) -> Embeddings:
        """Return ordinary embeddings with the sums."""
        block = copy.deepcopy(self.source)
        block.norm = copy.deepcopy(self.norm)
        for name in ("token.weight", "position.weight", "segment.weight"):
            block.get_parameter(name).add_(self.get_parameter(name))
        return block


def merge_disentangled(discriminator: Discriminator) -> Discriminator:
    """Return the discriminator with ordinary embeddings, for export."""
    block = discriminator.encoder.embeddings
    if not isinstance(block, DisentangledEmbeddings):
        return discriminator
    plain = copy.deepcopy(discriminator)
    plain.encoder.embeddings = block.merge_disentangled()
    return plain


def build_pair(
    model: EncoderConfig, generator: GeneratorConfig, absent: Sequence[int] = ()
) -> tuple[Generator, Discriminator]:
    """Build both networks; what they share is the same module."""
    discriminator = Discriminator(Encoder(model))
    return Generator(
        build_generator_encoder(model, generator, discriminator), absent
    ), discriminator


def build_generator_encoder(
    model: EncoderConfig, generator: GeneratorConfig, discriminator: Discriminator | Generator
) -> Encoder:
    """Build the generator's encoder for the network that is kept, usually a discriminator."""
    sizes = generator_sizes(model, generator)
    if generator.tie == "all":
        encoder = discriminator.encoder
    elif generator.tie == "embeddings":
        encoder = Encoder(sizes, embeddings=discriminator.encoder.embeddings)
    else:
        encoder = Encoder(sizes)
    if generator.tie == "gdes":
        discriminator.encoder.embeddings = DisentangledEmbeddings(model, encoder.embeddings)
    init_attention_(model, discriminator.encoder, encoder)
    return encoder


def init_attention_(model: EncoderConfig, *encoders: Encoder) -> None:
    """Apply `model.init=local`, if it is set."""
    if model.init == "local":
        for encoder in encoders:
            init_local_attention_(encoder)
            if isinstance(encoder.embeddings, DisentangledEmbeddings):
                encoder.embeddings.zero_()  # the generator's embeddings have the waves


def absent_token_mask(config: EncoderConfig, absent: Sequence[int]) -> Tensor:
    """Return which rows of the embedding table are no token: unused ids and padding."""
    rows = torch.arange(config.table_rows) >= config.vocab_size
    rows[list(absent)] = True
    return rows
