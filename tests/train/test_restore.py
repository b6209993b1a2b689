"""The state that a run begins with."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from electra.errors import UserError
from electra.text.prepare import prepare
from electra.text.shards import Shards
from electra.train import checkpoint
from electra.train.restore import load_latest, share_state


@pytest.fixture
def shards(data_folder):
    return {32: Shards.open(data_folder)}


def test_without_a_checkpoint_a_run_is_new(make_step, tiny, shards, tmp_path):
    step, _ = make_step(tiny)
    before = {name: p.clone() for name, p in step.objective.named_parameters()}
    state = load_latest(tmp_path, step, shards)
    assert (state.step, state.rows, state.tokens) == (0, 0, 0)
    assert all(torch.equal(p, before[name]) for name, p in step.objective.named_parameters())


def test_the_latest_checkpoint_counts(make_step, tiny, shards, copied):
    step, _ = make_step(tiny)
    half = copied / "checkpoints" / ".step-00000030.partial"
    half.mkdir()
    state = load_latest(copied, step, shards)
    assert state.step == 20
    assert not half.exists()  # a killed process left it
    stored = checkpoint.load_file(checkpoint.checkpoints(copied)[-1] / "model.safetensors")
    assert all(torch.equal(p, stored[name]) for name, p in step.objective.named_parameters())
    shutil.rmtree(checkpoint.checkpoints(copied)[-1])
    assert load_latest(copied, step, shards).step == 10


def test_other_data_is_refused(make_step, tiny, corpus, tokenizer_folder, finished, tmp_path):
    other = tmp_path / "other"
    prepare([corpus], tokenizer=tokenizer_folder, out=other, length=32, workers=1, held_out=0.2)
    step, _ = make_step(tiny)
    with pytest.raises(UserError, match=r"is not the data that .* was started with"):
        load_latest(finished, step, {32: Shards.open(other)})


def test_a_unigram_generator_counts_the_training_text(make_step, tiny, shards, tmp_path):
    step, _ = make_step(replace(tiny, generator=replace(tiny.generator, kind="unigram")))
    load_latest(tmp_path, step, shards)
    data, found = shards[32], step.objective.generator
    rows = data.gather("train", np.arange(data.rows("train")))
    counts = np.zeros(len(step.objective.maskable))
    for row in rows:
        for token in row[: row[-1]]:
            counts[token] += 1
    ordinary = found.ordinary.numpy()
    seen = ordinary & (counts > 0)
    unseen = 0.01 * (ordinary & (counts == 0)).sum()
    probabilities = found.logits.exp().numpy()
    np.testing.assert_allclose(
        probabilities[seen], counts[seen] / (counts[seen].sum() + unseen), rtol=1e-5
    )


def test_one_rank_shares_nothing(make_step, tiny, shards, finished):
    step, _ = make_step(tiny)
    state = load_latest(finished, step, shards)
    assert share_state(finished, step, state, shards, seed=0) is state
