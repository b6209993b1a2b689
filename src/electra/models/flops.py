"""Arithmetic of a training step, counted by hand: what 'share of the hardware's peak' divides."""

from electra.models.electra import GeneratorConfig, generator_sizes
from electra.models.encoder import EncoderConfig


def encoder_flops(config: EncoderConfig, length: int) -> int:
    """Forward multiply-adds x 2 of one row through an encoder, matrix products alone."""
    h, inner = config.hidden, config.feed_forward_width
    per_token = config.layers * 2 * (4 * h * h + 2 * h * inner + 2 * length * h)
    if config.embedding != h:
        per_token += 2 * config.embedding * h
    return length * per_token


def step_flops(model: EncoderConfig, generator: GeneratorConfig, length: int, slots: int) -> int:
    """Training arithmetic of one row: forward once, backward twice, both networks and heads."""
    small = generator_sizes(model, generator)
    head = slots * 2 * (small.hidden * small.embedding + small.embedding * model.table_rows)
    detector = length * 2 * (model.hidden * model.hidden + model.hidden)
    forward = encoder_flops(model, length) + encoder_flops(small, length) + head + detector
    return 3 * forward
