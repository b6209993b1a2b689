"""The paper's ELECTRA-Small for one GPU and less than an hour."""

from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.settings import ObjectiveConfig
from electra.optim.adam import OptimConfig
from electra.train.data import DataConfig
from electra.train.loop import LoopConfig
from electra.train.settings import PretrainConfig


def small() -> PretrainConfig:
    """75.0 on five GLUE tasks after 20 minutes on one H200; see benchmarks/log.md."""
    return PretrainConfig(
        name="fast.small",
        # differs from the paper: attention starts on neighbouring tokens. From the paper's
        # initialisation the generator does not use the context for its first 52,000 steps.
        model=EncoderConfig(layers=12, hidden=256, embedding=128, init="local"),
        generator=GeneratorConfig(width=1 / 4),
        objective=ObjectiveConfig(mask_rate=0.15),
        # differs from the paper: twice the batch size, for which a GPU takes less than twice the
        # time, with a higher learning rate and a shorter warmup.
        optim=OptimConfig(lr=8e-4, warmup=3000),
        data=DataConfig(seq_length=128, batch_size=256),
        train=LoopConfig(budget="25min"),
    )
