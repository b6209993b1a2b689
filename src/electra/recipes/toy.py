"""A small model that learns real language in a few minutes on two CPU cores."""

from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig
from electra.train.data import DataConfig
from electra.train.loop import LoopConfig
from electra.train.settings import PretrainConfig


def toy() -> PretrainConfig:
    """One layer of width 128 over embeddings of 64, and a generator of half the width."""
    return PretrainConfig(
        name="toy",
        # differs from the paper: with its initialisation or with dropout, a few million tokens are
        # not enough to leave the opening plateau.
        model=EncoderConfig(
            layers=1,
            hidden=128,
            heads=2,
            embedding=64,
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.1,
            init="local",
        ),
        generator=GeneratorConfig(width=1 / 2),
        objective=ObjectiveConfig(mask_rate=0.15),
        # differs from the paper: a short run needs a second moment over 50 steps, not 1000.
        optim=OptimConfig(lr=1.5e-3, warmup=0.1, betas=(0.9, 0.98)),
        data=DataConfig(seq_length=64, batch_size=16),
        train=LoopConfig(
            budget="4000steps",
            report_every=20,
            validate_every=400,
            validate_rows=256,
            checkpoint_every=1000,
        ),
    )
