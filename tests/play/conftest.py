"""A pre-trained and a fine-tuned model for the page."""

import io

import pytest
from rich.console import Console

from electra.api import load
from electra.finetune.run import finetune
from electra.finetune.settings import FinetuneConfig
from electra.play.models import find_abilities
from electra.tasks.load import load_task


@pytest.fixture(scope="session")
def choice(finished):
    """The finished run and what it can do."""
    return find_abilities(load(finished, "cpu"))


@pytest.fixture(scope="session")
def model(choice):
    return choice.model


@pytest.fixture(scope="session")
def tuned(finished, reviews, tmp_path_factory):
    """The folder of a model that was fine-tuned for one epoch."""
    out = tmp_path_factory.mktemp("play") / "tuned"
    config = FinetuneConfig(epochs=1, max_length=16, device="cpu")
    console = Console(file=io.StringIO(), width=200)
    finetune(str(finished), load_task("classify", reviews), out, [0], config, console)
    return out
