"""FLOPs of a training step, as the hardware does them; budgets and utilisation use this count.

Counts matrix products only, a multiply-add as two operations. What fused attention recomputes in
its backward pass is not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from electra.models.electra import GeneratorConfig, generator_sizes
from electra.models.encoder import EncoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one network computes for each row of a step."""

    sizes: EncoderConfig
    """Its encoder."""
    towers: int = 1
    """Encoders of this size on the same embeddings; the prediction head reads all of them."""
    mlm_positions: int = 0
    """Positions with a prediction over the whole vocabulary."""
    rtd_positions: int = 0
    """Positions with one logit, as the discriminator's."""
    trained: bool = True
    """Whether there is a backward pass; a frozen network runs forward only."""
    step_fraction: float = 1.0
    """The fraction of the run's steps that it takes part in."""


def encoder_flops(config: EncoderConfig, length: int) -> int:
    """Return the forward FLOPs of one row through an encoder."""
    h, inner = config.hidden, config.feed_forward_width
    per_token = config.layers * 2 * (4 * h * h + 2 * h * inner + 2 * length * h)
    if config.embedding != h:
        per_token += 2 * config.embedding * h
    return length * per_token


def forward_flops(work: Workload, length: int) -> int:
    """Return the forward FLOPs of one row through a network, heads included."""
    sizes = work.sizes
    h, e = sizes.hidden, sizes.embedding
    mlm_head = work.mlm_positions * 2 * (work.towers * h * e + e * sizes.table_rows)
    rtd_head = work.rtd_positions * 2 * (h * h + h)
    return work.towers * encoder_flops(sizes, length) + mlm_head + rtd_head


def row_flops(works: Iterable[Workload], length: int) -> int:
    """Return the FLOPs of one row in a step; a backward pass costs two forward passes."""
    each = ((3 if w.trained else 1) * w.step_fraction * forward_flops(w, length) for w in works)
    return round(sum(each))


def workloads_of(
    kind: str,
    model: EncoderConfig,
    generator: GeneratorConfig,
    length: int,
    slots: int,
    generator_first: float = 0.0,
) -> tuple[Workload, ...]:
    """Return the networks' workloads when `slots` positions are masked; the kept one is last.

    A copy gate or a baseline, with one number per token, is too small to count.
    """
    kept = Workload(sizes=model, rtd_positions=length)
    if kind in ("mlm", "replace-mlm"):
        kept = Workload(sizes=model, mlm_positions=slots)
    if kind == "all-tokens-mlm":
        kept = Workload(sizes=model, mlm_positions=length)
    if kind == "mlm" or generator.kind != "transformer":  # no other network computes
        return (kept,)
    same = kind == "two-stage" and (generator.width, generator.depth) == (1, 1)
    sizes = model if same else generator_sizes(model, generator)
    mlm = Workload(sizes=sizes, mlm_positions=slots)
    if kind == "electric":  # two towers predict every token
        return replace(mlm, mlm_positions=length, towers=2), kept
    if kind == "two-stage":  # half of the steps each
        frozen = replace(mlm, step_fraction=0.5, trained=False)
        return replace(mlm, step_fraction=0.5), frozen, replace(kept, step_fraction=0.5)
    return mlm, replace(kept, step_fraction=1 - generator_first)
