"""A toy that learns something in a few minutes on two CPU cores."""

from electra.models.electra import GeneratorConfig
from electra.models.encoder import EncoderConfig
from electra.objectives.rtd import RtdConfig
from electra.optim.schedule import OptimConfig
from electra.train.data import DataConfig
from electra.train.loop import LoopConfig
from electra.train.pretrain import PretrainConfig


def toy() -> PretrainConfig:
    """Two narrow layers; the method is the paper's, the sizes are not."""
    return PretrainConfig(
        name="toy",
        model=EncoderConfig(
            layers=2, hidden=128, embedding=128, dropout=0.0, attention_dropout=0.0, init_std=0.08
        ),
        generator=GeneratorConfig(width=1 / 2),
        objective=RtdConfig(mask_rate=0.15),
        optim=OptimConfig(lr=2e-3, warmup=0.1),
        data=DataConfig(length=64, batch=32),
        train=LoopConfig(
            budget="1500steps",
            report_every=10,
            validate_every=150,
            validate_rows=256,
            checkpoint_every=500,
        ),
    )
