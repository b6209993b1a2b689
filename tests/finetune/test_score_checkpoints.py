"""Checkpoints scored on a real task give what `electra finetune` gives for the same settings."""

import statistics
from dataclasses import replace

import pytest
import torch

from electra.errors import UserError
from electra.finetune.run import finetune
from electra.finetune.score_checkpoints import make_scorer
from electra.finetune.settings import FinetuneConfig
from electra.tasks.load import load_task
from electra.train import checkpoint
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import read_run_config, start
from electra.train.scoring import ScoreOnConfig


def quiet(config, tokenizer):
    return make_scorer(config, tokenizer, warn=lambda warnings: None)


def test_the_scores_are_those_of_finetune(finished, reviews, tmp_path, console):
    config = read_run_config(finished)
    settings = ScoreOnConfig(data=str(reviews), finetune_epochs=1, finetune_lr=1e-3, seeds=2)
    scorer = quiet(replace(config, score_on=settings), finished / "tokenizer")
    assert scorer.metric == "accuracy"
    assert "(classify, 240 examples, 2 seeds) and scored on 60 others" in scorer.description
    last, seen = checkpoint.checkpoints(finished)[-1], []
    found = scorer.score(last, lambda done, total: seen.append((done, total)))
    results = finetune(
        str(last),
        load_task("classify", reviews),
        tmp_path / "out",
        [0, 1],
        FinetuneConfig(epochs=1, lr=1e-3, device="cpu"),
        console,
    )
    expected = [result["score"] for result in results]
    assert found["score"] == statistics.median(expected)
    assert (found["lowest"], found["highest"]) == (min(expected), max(expected))
    assert found["failed"] == sum(result["failed"] for result in results)
    assert seen[-1] == (14, 14)  # two seeds of seven steps
    other = quiet(
        replace(config, score_on=replace(settings, finetune_lr=2e-3)), finished / "tokenizer"
    )
    again = quiet(replace(config, score_on=settings), finished / "tokenizer")
    assert other.origin != scorer.origin == again.origin


def test_a_run_with_scores(tiny, reviews, tmp_path, console):
    settings = ScoreOnConfig(data=str(reviews), finetune_epochs=0.5, seeds=1)
    assert start(replace(tiny, score_on=settings), tmp_path / "a", console, make_scorer=quiet) == 0
    lines = [m for m in read_metrics(tmp_path / "a") if m["kind"] == "score"]
    assert [m["step"] for m in lines] == [10, 20]
    assert all(0 <= m["score"] <= 1 and m["seeds"] == 1 for m in lines)
    start(tiny, tmp_path / "b", console)
    one, two = (
        checkpoint.checkpoints(tmp_path / run)[-1] / "model.safetensors" for run in ("a", "b")
    )
    assert one.read_bytes() == two.read_bytes()


def test_a_masked_language_model_is_scored(tiny, reviews, tmp_path, console):
    config = replace(tiny, objective=replace(tiny.objective, kind="mlm"))
    config = replace(
        config, score_on=ScoreOnConfig(data=str(reviews), finetune_epochs=0.2, seeds=1)
    )
    assert start(config, tmp_path / "run", console, make_scorer=quiet) == 0
    assert sum(m["kind"] == "score" for m in read_metrics(tmp_path / "run")) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label": "labl"}, "Name the right one with score_on.label"),
        ({"task": "clasify"}, "did you mean 'classify'"),
        ({"task": "regress"}, "regress needs one in every row"),
        ({"finetune_epochs": 0.001}, "less than one step"),
        ({"finetune_epochs": -1.0}, "epochs must be a finite number"),
    ],
)
def test_what_is_wrong_shows_at_the_start(finished, reviews, settings, message):
    config = replace(
        read_run_config(finished), score_on=ScoreOnConfig(data=str(reviews), **settings)
    )
    with pytest.raises(UserError, match=message):
        quiet(config, finished / "tokenizer")


def test_fine_tuning_that_diverges_has_no_score(finished, reviews, monkeypatch):
    config = replace(
        read_run_config(finished),
        score_on=ScoreOnConfig(data=str(reviews), finetune_epochs=0.2, seeds=1),
    )
    scorer = quiet(config, finished / "tokenizer")
    monkeypatch.setattr(
        "electra.finetune.task_run.finite_seeds", lambda model: torch.tensor([False])
    )
    with pytest.raises(UserError, match="Fine-tuning diverged"):
        scorer.score(checkpoint.checkpoints(finished)[-1], lambda done, total: None)
