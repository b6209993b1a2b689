"""The losses of the first steps of ELECTRA-Small on an H200, as they were when they were stored.

The sizes are those of `paper.small`, so that the CUDA C++ kernels run. To record the curve on an
H200, after a change that is meant to change the training:

    ELECTRA_RECORD_CURVE=1 pytest tests/train/test_curve_gpu.py

which writes `curve_h200.json` beside this file; the difference belongs into the commit.
"""

import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import torch

from electra.recipes import recipe
from electra.text.prepare import prepare
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import start

pytestmark = pytest.mark.gpu

CURVE = Path(__file__).with_name("curve_h200.json")
NAMES = ("mlm_loss", "detection_loss")
STEPS = 60
EACH, MEAN = 0.12, 0.04
"""Relative tolerances of a step and of the mean over ten steps. Runs are not equal bit for bit:
atomic additions come in any order, and the samples of the generator follow. Two runs of one commit
differed by up to 5.1 % in a step."""


@pytest.fixture
def losses(corpus, tokenizer_folder, with_train, tmp_path, console) -> dict[str, list[float]]:
    """Of each step."""
    shards = tmp_path / "shards"
    prepare([corpus], tokenizer=tokenizer_folder, out=shards, length=128, workers=1, held_out=0.1)
    config = recipe("paper.small")
    data = replace(config.data, folder=str(shards), seq_length=128, batch_size=32)
    config = with_train(
        replace(config, data=data),
        budget=f"{STEPS}steps",
        device="cuda",
        report_every=1,
        validate_every=STEPS,
        checkpoint_every=STEPS,
    )
    assert start(config, tmp_path / "run", console) == 0
    events = read_metrics(tmp_path / "run")
    started = next(line for line in events if line.get("message") == "started")
    assert "fused encoder (CUDA)" in started["kernels"]
    lines = [line for line in events if line["kind"] == "train"]
    return {name: [round(line[name], 5) for line in lines] for name in NAMES}


def test_the_stored_curve(request):
    if "H200" not in torch.cuda.get_device_name():
        pytest.skip("the curve is that of an H200")
    if os.environ.get("ELECTRA_RECORD_CURVE"):
        CURVE.write_text(json.dumps(request.getfixturevalue("losses"), indent=1) + "\n")
        pytest.skip(f"recorded {CURVE.name}")
    if not CURVE.exists():
        pytest.skip(f"{CURVE.name} is not recorded yet")
    found, stored = request.getfixturevalue("losses"), json.loads(CURVE.read_text())
    for name in NAMES:
        assert len(found[name]) == len(stored[name]) == STEPS
        assert found[name] == pytest.approx(stored[name], rel=EACH), name
        for first in range(0, STEPS, 10):
            ten = slice(first, first + 10)
            assert mean(found[name][ten]) == pytest.approx(mean(stored[name][ten]), rel=MEAN), name
