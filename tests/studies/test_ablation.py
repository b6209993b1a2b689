"""An ablation: the recipe, and changes to it that are tried one by one."""

import json

import pytest

from electra.errors import UserError
from electra.studies.ablation import ablation, parse_arm
from electra.studies.paper import find_study
from electra.studies.study import SCALES, Arm, arm_config, check_overrides, set_budget

TINY = SCALES["tiny"]


@pytest.mark.parametrize(
    ("text", "name", "overrides"),
    [
        ("wide: model.hidden=192", "wide", ["model.hidden=192"]),
        (
            " no  dropout :model.dropout=0  optim.lr=1",
            "no dropout",
            ["model.dropout=0", "optim.lr=1"],
        ),
        ("optim.lr=1e-3", "optim.lr=1e-3", ["optim.lr=1e-3"]),
        ("two: parts: optim.betas='[0.9, 0.98]'", "two: parts", ["optim.betas=[0.9, 0.98]"]),
    ],
)
def test_an_arm_has_a_name_and_settings(text, name, overrides):
    assert parse_arm(text) == Arm(name=name, overrides=tuple(overrides))


@pytest.mark.parametrize("text", ["", "wide:", "wide", "wide: model.hidden", "wide: =3", "x: a='b"])
def test_what_is_not_an_arm(text):
    with pytest.raises(UserError, match="is not an arm: write a name and its settings"):
        parse_arm(text)


def test_the_recipe_is_the_first_arm():
    study = find_study("ablation", TINY, ["wide: model.hidden=192"])
    plain, wide = (arm_config(study, arm, 0, ["optim.lr=0.01"]) for arm in study.arms)
    assert [arm.name for arm in study.arms] == ["recipe", "wide"]
    assert (plain.model.hidden, wide.model.hidden) == (128, 192)
    assert plain.optim.lr == wide.optim.lr == 0.01


def test_an_arm_may_change_a_setting_of_all_arms():
    study = ablation(TINY, ["optim.lr=0.02"])
    check_overrides(study, ["optim.lr=0.01"])
    rates = [arm_config(study, arm, 0, ["optim.lr=0.01"]).optim.lr for arm in study.arms]
    assert rates == [0.01, 0.02]


@pytest.mark.parametrize("budget", ["8min", "30steps", "1e9flops"])
def test_the_budget_may_be_a_time(budget):
    study = set_budget(ablation(TINY, ["optim.lr=0.02"]), budget)
    assert [arm_config(study, arm, 0).train.budget for arm in study.arms] == [budget] * 2


def test_arms_that_are_refused():
    with pytest.raises(UserError, match="at least one change"):
        find_study("ablation", TINY)
    with pytest.raises(UserError, match="Two arms are called 'recipe'"):
        ablation(TINY, ["Recipe: optim.lr=1"])
    with pytest.raises(UserError, match="Two arms are called 'wd'"):  # they would share a folder
        ablation(TINY, ["+wd: optim.weight_decay=0.1", "-wd: optim.weight_decay=0"])
    with pytest.raises(UserError, match=r"--arm adds an arm to the study ablation; those of tying"):
        find_study("tying", TINY, ["optim.lr=1"])
    study = ablation(TINY, ["optim.lrr=1"])
    with pytest.raises(UserError, match=r"'optim.lrr=1' of ablation is refused: .*optim.lr"):
        arm_config(study, study.arms[1], 0)


def test_an_ablation_from_the_command_line(electra, command, tmp_path):
    arms = ("--arm", "two layers: model.layers=2")
    code, out, err = electra(*command("ablation", *arms, budget="12steps", score="blimp"))
    assert code == 0, err
    assert "minus recipe" in out
    page = (tmp_path / "study" / "page.md").read_text()
    assert "| two layers | `model.layers=2` |" in page
    assert "Every arm trains for 12steps" in page
    assert "in the paper" not in page
    lines = (tmp_path / "study" / "results.jsonl").read_text().splitlines()
    found = {result["arm"]: result for result in map(json.loads, lines)}
    assert {arm: found[arm]["settings"]["model.layers"] for arm in found} == {
        "recipe": 1,
        "two layers": 2,
    }
    assert found["recipe"]["flops"] < found["two layers"]["flops"]
