"""Arithmetic of a training step, counted by hand: what 'share of the hardware's peak' divides.

Matrix products alone, a multiply-add being two operations. What a fused attention computes a
second time in its backward pass is not counted: it is how, not what.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from electra.models.electra import GeneratorConfig, generator_sizes
from electra.models.encoder import EncoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one network does with a row in a step."""

    sizes: EncoderConfig
    """Its encoder."""
    towers: int = 1
    """Encoders of these sizes on the same embeddings; a word is scored from the states of all."""
    words: int = 0
    """Positions for which it scores the whole vocabulary."""
    verdicts: int = 0
    """Positions that it judges with one number, as the discriminator does."""
    trained: bool = True
    """Whether a backward pass follows; a frozen network only runs forward."""
    share: float = 1.0
    """Share of the run's steps in which it does so."""


def encoder_flops(config: EncoderConfig, length: int) -> int:
    """Forward arithmetic of one row through an encoder."""
    h, inner = config.hidden, config.feed_forward_width
    per_token = config.layers * 2 * (4 * h * h + 2 * h * inner + 2 * length * h)
    if config.embedding != h:
        per_token += 2 * config.embedding * h
    return length * per_token


def forward_flops(work: Work, length: int) -> int:
    """Forward arithmetic of one row through a network, heads included."""
    sizes = work.sizes
    h, e = sizes.hidden, sizes.embedding
    words = work.words * 2 * (work.towers * h * e + e * sizes.table_rows)
    verdicts = work.verdicts * 2 * (h * h + h)
    return work.towers * encoder_flops(sizes, length) + words + verdicts


def row_flops(works: Iterable[Work], length: int) -> int:
    """Arithmetic of one row in a step: forward once, backward twice where a network is trained."""
    each = ((3 if w.trained else 1) * w.share * forward_flops(w, length) for w in works)
    return round(sum(each))


def works_of(
    kind: str, model: EncoderConfig, generator: GeneratorConfig, length: int, slots: int
) -> tuple[Work, ...]:
    """What the networks do under an objective masking `slots` positions; the kept one is last.

    A copy gate or a baseline, one number for each token, is too small to count.
    """
    kept = Work(sizes=model, verdicts=length)  # whatever detects, judges every token
    if kind in ("mlm", "replace-mlm"):
        kept = Work(sizes=model, words=slots)
    if kind == "all-tokens-mlm":
        kept = Work(sizes=model, words=length)
    if kind == "mlm" or generator.kind != "transformer":  # nothing else computes
        return (kept,)
    same = kind == "two-stage" and (generator.width, generator.depth) == (1, 1)  # in each width
    fill = Work(sizes=model if same else generator_sizes(model, generator), words=slots)
    if kind == "electric":  # two towers read the whole text; together they predict every word
        return replace(fill, words=length, towers=2), kept
    if kind == "two-stage":  # half of the steps each
        frozen = replace(fill, share=0.5, trained=False)
        return replace(fill, share=0.5), frozen, replace(kept, share=0.5)
    return fill, kept
