"""The line that a run begins with, and the sizes in it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from electra.train.distributed import Ranks
from electra.train.headline import headline, parameter_counts
from electra.train.phases import Phase


@pytest.fixture
def objective() -> nn.Module:
    """A generator of 1.1 and a discriminator of 0.9 million numbers, of which they share 0.5."""
    table = nn.Embedding(1000, 500)
    return nn.ModuleDict(
        {
            "generator": nn.ModuleList([table, nn.Linear(1000, 600, bias=False)]),
            "frequencies": nn.Identity(),
            "discriminator": nn.ModuleList([table, nn.Linear(1000, 400, bias=False)]),
        }
    )


def test_shared_parameters_count_in_each_network(objective):
    assert parameter_counts(objective) == {"generator": 1_100_000, "discriminator": 900_000}


@pytest.fixture
def say(objective):
    """The line of a run with these phases: `say(phase, phase, step=5, size=2)`."""

    def line(*phases: Phase, step: int = 0, size: int = 1) -> str:
        run = SimpleNamespace(
            objective=objective,
            state=SimpleNamespace(step=step),
            step=SimpleNamespace(dtype=torch.bfloat16, device=torch.device("cuda", 1)),
            ranks=Ranks(size=size),
            loop=SimpleNamespace(budget="25min"),
            phases=phases,
        )
        return headline(run, SimpleNamespace(tokens=1_234_567))

    return line


SIZES = (
    "parameters of the generator 1.1 M, discriminator 0.9 M; 1.2 M tokens of text, "
    "budget 25min{phases}."
)


def test_a_new_run(say):
    one = Phase(begin=0.0, seq_length=128, batch_size=64)
    assert say(one) == "Starting at step 0 on cuda in bfloat16: " + SIZES.format(phases="")


def test_a_resumed_run_of_several_processes_and_phases(say):
    phases = (
        Phase(begin=0.0, seq_length=128, batch_size=64),
        Phase(begin=0.9, seq_length=512, batch_size=16, dropout=False),
    )
    steps = "; a step has 64 rows of 128 tokens, from 90% 16 rows of 512 tokens without dropout"
    assert say(*phases, step=1200, size=8) == (
        "Resuming at step 1,200 on 8 processes on cuda in bfloat16: " + SIZES.format(phases=steps)
    )
