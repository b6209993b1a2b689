"""Scores in the course of a run: when, what is written, and what they leave as it is."""

import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from electra.errors import UserError
from electra.train import checkpoint
from electra.train.metrics_log import read_metrics
from electra.train.pretrain import read_run_config, resume, start
from electra.train.report import panels_of, write_report
from electra.train.scoring import ScoreOnConfig, Scorer, best_scores


@pytest.fixture
def scored(tiny, with_train, tmp_path):
    """A run of 20 steps with checkpoints every 5 that says it wants scores."""
    task = tmp_path / "task.csv"
    task.write_text("text,label\n")
    config = with_train(tiny, checkpoint_every=5, keep_last=9)
    return replace(config, score_on=ScoreOnConfig(data=str(task)))


def scorer_of(score, origin="one"):
    """A function that makes a scorer from a function of the step."""

    def make(config, tokenizer):
        assert (tokenizer / "tokenizer.json").is_file()

        def run(folder, progress):
            value = score(int(folder.name.removeprefix("step-")), progress)
            numbers = {"lowest": value, "highest": value, "seeds": 2, "failed": 0}
            return {"score": value, **numbers}

        return Scorer(
            name="moods", metric="accuracy", description="About.", origin=origin, score=run
        )

    return make


def disturb(step, progress):
    """Score after drawing random numbers, as fine-tuning does."""
    torch.manual_seed(step)
    torch.rand(100)
    progress(1, 1)
    return {5: 0.5, 10: 0.9, 15: 0.9, 20: 0.7}[step]


def scores(run):
    return [(m["step"], m["score"]) for m in read_metrics(run) if m["kind"] == "score"]


def test_the_weights_are_those_of_a_run_without_scores(scored, tmp_path, console):
    assert scored.model.dropout  # whose random numbers are torch's
    assert start(scored, tmp_path / "with", console, make_scorer=scorer_of(disturb)) == 0
    start(replace(scored, score_on=ScoreOnConfig()), tmp_path / "without", console)
    assert scores(tmp_path / "with") == [(5, 0.5), (10, 0.9), (15, 0.9), (20, 0.7)]
    for name in ("model", "optimizer", "random"):
        one, two = (
            load_file(checkpoint.checkpoints(tmp_path / run)[-1] / f"{name}.safetensors")
            for run in ("with", "without")
        )
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one), name


def test_the_best_is_named_and_kept(scored, with_train, tmp_path, console):
    config, run = with_train(scored, keep_last=1, keep_best=False), tmp_path / "run"
    assert start(config, run, console, make_scorer=scorer_of(disturb)) == 0
    assert [c.name for c in checkpoint.checkpoints(run)] == ["step-00000015", "step-00000020"]
    said = console.file.getvalue()
    assert "About." in said
    assert "Step 10: accuracy 0.9000 on moods (seeds: 2, 0.9000 to 0.9000; the best so far)" in said
    assert "Step 20: accuracy 0.7000 on moods" in said
    assert said.count("best: step 15") == 1
    last = said.strip().splitlines()[-1]
    assert last.startswith("Done: 20 steps.")
    best = "best on moods: step-00000015, accuracy 0.9000 (median of 2)"
    assert last.endswith(best)
    _, page = write_report([run], tmp_path / "report")
    assert best in page.read_text()
    assert "Score on your task" in [title for title, _ in panels_of(read_metrics(run))]


def test_some_checkpoints_and_the_last(scored, tmp_path, console):
    config = replace(scored, score_on=replace(scored.score_on, every=3))
    start(config, tmp_path / "run", console, make_scorer=scorer_of(disturb))
    assert [step for step, _ in scores(tmp_path / "run")] == [15, 20]


def test_the_clock_stands_still(scored, tmp_path, console, monkeypatch):
    real, offset = time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: real() + offset[0])

    def slow(step, progress):
        offset[0] += 1000
        return 0.5

    start(scored, tmp_path / "run", console, make_scorer=scorer_of(slow))
    assert checkpoint.read_state(checkpoint.checkpoints(tmp_path / "run")[-1]).seconds < 500
    metrics = read_metrics(tmp_path / "run")
    assert all(m["tokens_per_second"] > 5 * 256 / 500 for m in metrics if m["kind"] == "train")
    assert all(m["seconds"] >= 1000 for m in metrics if m["kind"] == "score")


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), UserError("out of luck")])
def test_a_failure_is_a_warning(scored, tmp_path, console, error):
    def fail(step, progress):
        if step == 10:
            raise error
        return 0.5

    assert start(scored, tmp_path / "run", console, make_scorer=scorer_of(fail)) == 0
    assert [step for step, _ in scores(tmp_path / "run")] == [5, 15, 20]
    warning = "The checkpoint of step 10 was not scored: out of luck"
    assert f"warning: {warning}" in console.file.getvalue()
    assert [m["message"] for m in read_metrics(tmp_path / "run") if m["kind"] == "event"][1:] == [
        warning
    ]


def test_a_bad_task_shows_before_anything_is_written(scored, tmp_path, console):
    def make(config, tokenizer):
        raise UserError("bad file")

    with pytest.raises(UserError, match="bad file"):
        start(scored, tmp_path / "run", console, make_scorer=make)
    absent = replace(scored, score_on=ScoreOnConfig(data=str(tmp_path / "absent.csv")))
    with pytest.raises(UserError, match=r"no file or folder '.*absent.csv' to score on"):
        start(absent, tmp_path / "run", console, make_scorer=make)
    with pytest.raises(UserError, match="for electra pretrain"):
        start(scored, tmp_path / "run", console)
    assert not (tmp_path / "run").exists()


def test_a_signal_ends_the_scoring_and_resume_does_it_again(scored, tmp_path, console):
    run = tmp_path / "run"

    def stopped(step, progress):
        if step == 10:
            signal.raise_signal(signal.SIGINT)
        progress(1, 2)
        return 0.5

    assert start(scored, run, console, make_scorer=scorer_of(stopped)) == 128 + signal.SIGINT
    assert [c.name for c in checkpoint.checkpoints(run)] == ["step-00000005", "step-00000010"]
    assert scores(run) == [(5, 0.5)]
    assert resume(run, console, make_scorer=scorer_of(disturb)) == 0
    assert scores(run) == [(5, 0.5), (10, 0.9), (15, 0.9), (20, 0.7)]


def test_no_checkpoint_is_scored_twice(scored, tmp_path, console):
    run = tmp_path / "run"
    start(scored, run, console, make_scorer=scorer_of(disturb))
    before = scores(run)
    for later in checkpoint.checkpoints(run)[2:]:
        shutil.rmtree(later)
    seen = []

    def again(step, progress):
        seen.append(step)
        return disturb(step, progress)

    assert resume(run, console, make_scorer=scorer_of(again)) == 0
    assert seen == [15, 20]
    assert scores(run) == before
    assert resume(run, console, make_scorer=scorer_of(again)) == 0
    assert seen == [15, 20]


def test_the_task_is_stored_and_may_change_on_resume(scored, tmp_path, console):
    run, seen = tmp_path / "run", []
    start(scored, run, console, make_scorer=scorer_of(disturb))

    def make(config, tokenizer):
        seen.append(config.score_on)
        return scorer_of(disturb, origin="two")(config, tokenizer)

    assert resume(run, console, changes=["score_on.seeds=5"], make_scorer=make) == 0
    assert seen == [replace(scored.score_on, seeds=5)]
    assert scores(run)[4:] == [(20, 0.7)]  # the last one, on the new task
    assert read_run_config(run).score_on.seeds == 5
    assert {o: m["step"] for o, m in best_scores(read_metrics(run)).items()} == {
        "one": 15,
        "two": 20,
    }
    assert resume(run, console, changes=["score_on.data="]) == 0


def test_no_score_of_a_checkpoint_off_the_schedule(scored, tmp_path, console):
    run = tmp_path / "run"

    def stop_later(step, progress):
        return 0.5

    start(scored, run, console, make_scorer=scorer_of(stop_later))
    for later in checkpoint.checkpoints(run)[1:]:
        shutil.rmtree(later)
    changes = ["train.checkpoint_every=7"]
    assert resume(run, console, changes=changes, make_scorer=scorer_of(stop_later, "two")) == 0
    new = [m["step"] for m in read_metrics(run) if m["kind"] == "score" and m["origin"] == "two"]
    assert new == [7, 14, 20]


@pytest.mark.parametrize("name", ["seeds", "every"])
def test_settings_in_range(name):
    with pytest.raises(UserError, match=f"score_on.{name} must be at least 1"):
        ScoreOnConfig(**{name: 0})
