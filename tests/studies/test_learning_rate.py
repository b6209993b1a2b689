"""`electra study --learning-rates`: each arm keeps the rate with the lowest held-out loss."""

import json
import shutil

import pytest

from electra.errors import DivergedError, UserError
from electra.studies.learning_rate import choose_rates, rates_table, read_rates, with_rates
from electra.studies.paper import find_study
from electra.studies.study import SCALES
from electra.train import checkpoint, pretrain

RATES = ("--arms", "none,all", "--learning-rates", "1e-5,3e-3")


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def started(monkeypatch):
    """The runs that were started, in order."""
    seen = []
    start = pretrain.start

    def starting(config, out, console):
        seen.append(out.name)
        return start(config, out, console)

    monkeypatch.setattr(pretrain, "start", starting)
    return seen


def test_each_arm_keeps_the_rate_with_the_lowest_loss(electra, command, started, tmp_path):
    out = tmp_path / "study"
    words = command("tying", *RATES, score="blimp", budget="1e9flops")
    code, _, err = electra(*words)
    assert code == 0, err
    assert started == ["none-1e-5-0", "none-3e-3-0", "all-1e-5-0", "all-3e-3-0"]
    trials = lines(out / "learning_rates.jsonl")
    for trial in trials:
        folder = out / "runs" / f"{trial['arm']}-{trial['learning_rate']}-0"
        saved = checkpoint.read_state(checkpoint.checkpoints(folder)[-1])
        assert trial["loss"] == saved.held_out["loss"]
        assert trial["settings"]["optim.lr"] == float(trial["learning_rate"])
    for result in lines(out / "results.jsonl"):
        tried = [trial for trial in trials if trial["arm"] == result["arm"]]
        best = min(tried, key=lambda trial: trial["loss"])
        assert result["settings"]["optim.lr"] == float(best["learning_rate"]) == 3e-3
        assert result["held_out"]["loss"] == best["loss"]
    page = (out / "page.md").read_text(encoding="utf-8")
    assert "| arm | learning rate | score |" in page
    assert "| held-out loss | lr 1e-5 | lr 3e-3 |" in page
    assert "the scores had no part in the choice" in page
    # A second seed uses the chosen rates; nothing is tried again, also without the runs.
    shutil.rmtree(out / "runs")
    code, _, err = electra(*words, "--seeds", 2)
    assert code == 0, err
    assert started[4:] == ["none-3e-3-1", "all-3e-3-1"]
    # Nor is it by another study that may copy them.
    other = command("tying", *RATES, "--reuse", out, score="blimp", budget="1e9flops", out="other")
    code, _, err = electra(*other)
    assert (code, len(started)) == (0, 6), err


def test_a_rate_that_diverges_loses(electra, command, started, monkeypatch, tmp_path):
    start = pretrain.start

    def diverging(config, out, console):
        if "3e-3" in out.name:
            raise DivergedError("The run stopped at step 7.")
        return start(config, out, console)

    monkeypatch.setattr(pretrain, "start", diverging)
    code, _, err = electra(*command("tying", *RATES, score="blimp", budget="4e8flops"))
    assert code == 0, err
    assert "stopped at step 7" in err
    assert [t["loss"] for t in lines(tmp_path / "study" / "learning_rates.jsonl")][1::2] == [
        None
    ] * 2
    assert {r["settings"]["optim.lr"] for r in lines(tmp_path / "study" / "results.jsonl")} == {
        1e-5
    }
    assert "diverged" in (tmp_path / "study" / "page.md").read_text(encoding="utf-8")


def test_a_study_whose_every_rate_diverges_is_refused():
    study = with_rates(find_study("tying", SCALES["tiny"]), ["1"])
    losses = {arm.name: {"0.1": float("inf"), "0.2": float("inf")} for arm in study.arms}
    with pytest.raises(UserError, match="diverged with every learning rate"):
        choose_rates(study, losses)


def test_the_table_marks_the_lowest_loss():
    table = rates_table(
        {"ELECTRA": {"5e-4": 14.5, "1e-3": 14.25}, "BERT": {"5e-4": 3.0, "1e-3": 4}}
    )
    assert "| ELECTRA | 14.500 | **14.250** |" in table
    assert "| BERT | **3.000** | 4.000 |" in table


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast,slow", "'fast' is not a learning rate"),
        ("5e-4,-1", "'-1' is not a learning rate"),
        ("5e-4,nan", "'nan' is not a learning rate"),
        ("5e-4", "give two or more, or set optim.lr=5e-4"),
    ],
)
def test_bad_rates_are_refused(text, said):
    with pytest.raises(UserError, match=said):
        read_rates(text)


def test_the_studys_own_rate_is_refused_beside_it(electra, command, tmp_path):
    code, _, err = electra(*command("tying", "optim.lr=1e-3", *RATES, score="blimp"))
    assert code == 2
    assert "sets optim.lr itself: --learning-rates chooses it for each arm" in err
    assert not (tmp_path / "study").exists()
