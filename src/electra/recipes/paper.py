"""The three sizes of the paper, each hyperparameter of its table 6.

Where the paper's text and google-research/electra differ, these recipes follow the code, because
it produced the published numbers: see `objective.mask_token_prob`,
`objective.mask_count_rounding` and `optim.schedule`. The one exception is
`objective.mask_sampling`: google-research/electra samples positions with replacement, which its
author calls an oversight.
"""

from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig
from electra.train.data import DataConfig
from electra.train.loop import LoopConfig
from electra.train.settings import PretrainConfig


def small() -> PretrainConfig:
    """4 days on a V100 in the paper; 79.9 GLUE."""
    return PretrainConfig(
        name="paper.small",
        model=EncoderConfig(layers=12, hidden=256, embedding=128),
        generator=GeneratorConfig(width=1 / 4),
        objective=ObjectiveConfig(mask_rate=0.15),
        optim=OptimConfig(lr=5e-4, warmup=10_000),
        data=DataConfig(seq_length=128, batch_size=128),
        train=LoopConfig(budget="1000000steps"),
    )


def base() -> PretrainConfig:
    """4 days on 16 TPUv3 in the paper; 85.1 GLUE."""
    return PretrainConfig(
        name="paper.base",
        model=EncoderConfig(layers=12, hidden=768, embedding=768),
        generator=GeneratorConfig(width=1 / 3),
        objective=ObjectiveConfig(mask_rate=0.15),
        optim=OptimConfig(lr=2e-4, warmup=10_000),
        data=DataConfig(seq_length=512, batch_size=256),
        train=LoopConfig(budget="766000steps"),
    )


def large() -> PretrainConfig:
    """ELECTRA-400K; masks 25 %, because a good generator replaces too few tokens at 15 %."""
    return PretrainConfig(
        name="paper.large",
        model=EncoderConfig(layers=24, hidden=1024, embedding=1024),
        generator=GeneratorConfig(width=1 / 4),
        objective=ObjectiveConfig(mask_rate=0.25),
        optim=OptimConfig(lr=2e-4, warmup=10_000),
        data=DataConfig(seq_length=512, batch_size=2048),
        train=LoopConfig(budget="400000steps"),
    )
