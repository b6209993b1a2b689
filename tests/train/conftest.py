"""A training step without a run."""

import shutil
from dataclasses import replace

import pytest
import torch

from electra.text.tokenizer import load_vocabulary
from electra.train.data import open_data, rows_at
from electra.train.pretrain import build_objective, build_step
from electra.train.settings import PretrainConfig
from electra.train.step import Step


@pytest.fixture
def make_step():
    """Build the step of a configuration, and the rows of its first five batches."""

    def build(config: PretrainConfig) -> tuple[Step, tuple[torch.Tensor, ...]]:
        shards = open_data(config.data, config.model.max_positions)
        vocab = load_vocabulary(shards.tokenizer)
        config = replace(config, model=replace(config.model, vocab_size=vocab.size))
        torch.manual_seed(config.train.seed)
        step = build_step(config, build_objective(config, vocab).train())
        rows = torch.from_numpy(rows_at(shards, 0, 5 * config.data.batch_size, config.train.seed))
        return step, rows.split(config.data.batch_size)

    return build


@pytest.fixture
def copied(finished, tmp_path):
    """A finished run that may be edited."""
    return shutil.copytree(finished, tmp_path / "my run")
