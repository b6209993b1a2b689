"""The two networks: a small generator that fills masks, a discriminator that spots the fillings."""

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
    resize_token_embeddings_,
)
from electra.models.local_init import init_local_attention_

Sharing = Literal["none", "embeddings", "all", "gdes"]
GeneratorKind = Literal["transformer", "unigram", "uniform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorConfig:
    """The generator, as fractions of the discriminator."""

    kind: GeneratorKind = "transformer"
    """'transformer' learns; 'unigram' samples words by their frequency in the training text and
    'uniform' samples all words alike, whatever the other settings of the generator say."""
    width: float = 0.25
    """Fraction of the discriminator's hidden and feed-forward widths and of its heads."""
    depth: float = 1.0
    """Fraction of the discriminator's layers."""
    tie: Sharing = "embeddings"
    """What both networks have in common: 'embeddings' (the token, position and segment tables and
    their LayerNorm), 'all' (one body, which needs equal sizes) or 'none'; 'gdes' lets the
    discriminator read the generator's tables but not move them: it adds a difference of its own."""


def generator_sizes(model: EncoderConfig, generator: GeneratorConfig) -> EncoderConfig:
    """The generator's encoder: rounded fractions, the same rules for heads and feed-forward."""
    if not (0 < generator.width <= 1 and 0 < generator.depth <= 1):
        raise UserError("generator.width and generator.depth are fractions above 0, at most 1.")
    if generator.tie == "all" and (generator.width, generator.depth) != (1, 1):
        raise UserError(
            "generator.tie=all makes both networks one body, so they need the same size: "
            "set generator.width=1 generator.depth=1, or share only the embeddings."
        )
    # round, not int: 768 x 0.33333 is 256, not 255
    hidden = max(1, round(model.hidden * generator.width))
    return replace(
        model,
        hidden=hidden,
        layers=max(1, round(model.layers * generator.depth)),
        heads=max(1, round(model.heads * generator.width)) if model.heads else 0,
        feed_forward=round(model.feed_forward * generator.width) if model.feed_forward else 0,
        # Shared tables keep the discriminator's width; its own ones have the generator's.
        embedding=hidden if generator.tie == "none" else model.embedding,
    )


class Generator(nn.Module):
    """A masked language model; its output matrix is its own token table."""

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
        """Logits over the vocabulary at `positions` alone: the other 85 % are never computed."""
        return self.predict(self.states(ids, segments, attention_mask, positions))

    def states(
        self, ids: Tensor, segments: Tensor, attention_mask: Tensor | None, positions: Tensor
    ) -> Tensor:
        """The encoder's vectors at `positions`."""
        hidden = self.encoder(ids, segments, attention_mask)
        index = positions[..., None].expand(-1, -1, hidden.shape[2])
        return hidden.gather(1, index)  # (batch, masked, hidden)

    def predict(self, hidden: Tensor) -> Tensor:
        x = self.norm(F.gelu(self.dense(hidden)))
        return F.linear(x, self.encoder.embeddings.token.weight, self.word_bias())

    def word_bias(self) -> Tensor:
        """Ids that no token has get probability 0 through it: no extra pass over the logits."""
        return self.bias.masked_fill(self.absent, float("-inf"))


class Discriminator(nn.Module):
    """Says for every token whether it was replaced; the network that is kept."""

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
        """The logit of 'replaced' for each token."""
        hidden = self.encoder(ids, segments, attention_mask)
        return self.score(F.gelu(self.dense(hidden))).squeeze(-1)  # (batch, length)


class DisentangledEmbeddings(Embeddings):
    """Tables that are another block's, which they do not move, plus a difference of their own.

    As in DeBERTa-V3: E_D = stop_gradient(E_G) + E_delta, the difference starting at zero.
    The LayerNorm is the discriminator's own; it starts as the generator's does.
    """

    def __init__(self, config: EncoderConfig, source: Embeddings) -> None:
        super().__init__(config)
        self._source = (source,)  # a tuple hides it: its parameters are the generator's
        self.zero_()

    @torch.no_grad()
    def zero_(self) -> None:
        """No difference."""
        for table in (self.token, self.position, self.segment):
            table.weight.zero_()

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        (source,) = self._source
        there = source.position.weight[: ids.shape[1]].detach()
        x = self.token(ids) + F.embedding(ids, source.token.weight.detach())
        x = x + self.segment(segments) + F.embedding(segments, source.segment.weight.detach())
        x = x + self.position.weight[: ids.shape[1]] + there
        return self.dropout(self.norm(x))  # (batch, length, embedding)

    @torch.no_grad()
    def merge_disentangled(self) -> Embeddings:
        """An ordinary block with the sums, as everybody else has it."""
        block = copy.deepcopy(self._source[0])
        block.norm = copy.deepcopy(self.norm)
        for name in ("token.weight", "position.weight", "segment.weight"):
            block.get_parameter(name).add_(self.get_parameter(name))
        return block


def merge_disentangled(discriminator: Discriminator) -> Discriminator:
    """The discriminator with ordinary tables, to be exported; itself where it has them already."""
    block = discriminator.encoder.embeddings
    if not isinstance(block, DisentangledEmbeddings):
        return discriminator
    plain = copy.deepcopy(discriminator)
    plain.encoder.embeddings = block.merge_disentangled()
    return plain


def build_pair(
    model: EncoderConfig, generator: GeneratorConfig, absent: Sequence[int] = ()
) -> tuple[Generator, Discriminator]:
    """Both networks, with what they share being one and the same module."""
    discriminator = Discriminator(Encoder(model))
    return Generator(build_body(model, generator, discriminator), absent), discriminator


def build_body(
    model: EncoderConfig, generator: GeneratorConfig, discriminator: Discriminator | Generator
) -> Encoder:
    """The generator's encoder, beside the network that is kept: mostly a discriminator."""
    sizes = generator_sizes(model, generator)
    if generator.tie == "all":
        body = discriminator.encoder
    elif generator.tie == "embeddings":
        body = Encoder(sizes, embeddings=discriminator.encoder.embeddings)
    else:
        body = Encoder(sizes)
    if generator.tie == "gdes":
        discriminator.encoder.embeddings = DisentangledEmbeddings(model, body.embeddings)
    init_attention_(model, discriminator.encoder, body)
    return body


def init_attention_(model: EncoderConfig, *encoders: Encoder) -> None:
    """How attention starts, where it does not start at random."""
    if model.init == "local":
        for encoder in encoders:
            init_local_attention_(encoder)
            if isinstance(encoder.embeddings, DisentangledEmbeddings):
                encoder.embeddings.zero_()  # the waves stand in the generator's table


def resize_token_embeddings(
    generator: Generator, discriminator: Discriminator, vocab_size: int, absent: Sequence[int] = ()
) -> None:
    """Another vocabulary size for both networks, what was shared staying shared."""
    for encoder in {generator.encoder, discriminator.encoder}:
        encoder.config = replace(encoder.config, vocab_size=vocab_size)
    config = generator.encoder.config
    for block in {generator.encoder.embeddings, discriminator.encoder.embeddings}:
        kept = block.token.num_embeddings
        resize_token_embeddings_(block, config.table_rows, config.init_std)
        if isinstance(block, DisentangledEmbeddings):
            block.token.weight.data[kept:] = 0  # new words begin without a difference
    bias = torch.zeros(config.table_rows, device=generator.bias.device)
    kept = min(len(bias), len(generator.bias))
    bias[:kept] = generator.bias.detach()[:kept]
    generator.bias = nn.Parameter(bias)
    generator.absent = absent_token_mask(config, absent).to(bias.device)


def absent_token_mask(config: EncoderConfig, absent: Sequence[int]) -> Tensor:
    """True for the rows of the table that are no token: holes in the vocabulary and padding."""
    rows = torch.arange(config.table_rows) >= config.vocab_size
    rows[list(absent)] = True
    return rows
