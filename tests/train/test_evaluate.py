"""Evaluation of a finished run: the metrics of its last validation."""

import pytest

from electra.errors import UserError
from electra.text.prepare import prepare
from electra.train import checkpoint
from electra.train.evaluate import evaluate, last_checkpoint
from electra.train.metrics_log import read_metrics


def test_it_repeats_the_last_validation(finished, data_folder):
    last = [line for line in read_metrics(finished) if line["kind"] == "held_out"][-1]
    found_at, metrics = evaluate(finished, data_folder, rows=16)
    assert found_at == checkpoint.checkpoints(finished)[-1]
    for name in ("loss", "mlm_loss", "detection_loss", "auc"):
        assert metrics[name] == pytest.approx(last[name], rel=1e-5), name


def test_a_checkpoint_of_its_own(finished, data_folder):
    first, last = (checkpoint.checkpoints(finished)[i] for i in (0, -1))
    assert last_checkpoint(first) == first != last
    one, two = (evaluate(each, data_folder, rows=16)[1]["loss"] for each in (first, last))
    assert one != two


def test_shards_of_several_other_lengths(finished, corpus, tokenizer_folder, tmp_path):
    for n in (16, 24):
        options = {"length": n, "workers": 1, "held_out": 0.1}
        prepare([corpus], tokenizer=tokenizer_folder, out=tmp_path / str(n), **options)
    found, shorter = (evaluate(finished, p, rows=16)[1] for p in (tmp_path, tmp_path / "16"))
    assert found == shorter


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(UserError, match="neither a run with a checkpoint nor a checkpoint"):
        last_checkpoint(tmp_path)
    with pytest.raises(UserError, match="is missing"):
        last_checkpoint(tmp_path / "run")
