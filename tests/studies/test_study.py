"""Arms and their configurations, budgets, and what a study refuses."""

import pytest

from electra.config import flatten
from electra.errors import UserError
from electra.studies.paper import find_study
from electra.studies.study import (
    SCALES,
    arm_config,
    check_overrides,
    find_scale,
    parse_flops_budget,
    set_budget,
)


def test_a_seed_changes_nothing_else():
    study = find_study("tying", SCALES["tiny"])
    one, two = (dict(flatten(arm_config(study, study.arms[0], seed))) for seed in (0, 5))
    assert {key for key in one if one[key] != two[key]} == {"train.seed"}
    assert (one["train.seed"], two["train.seed"]) == (0, 5)


def test_settings_for_all_arms():
    study = find_study("objectives", SCALES["tiny"])
    for arm in study.arms:
        config = arm_config(study, arm, 0, ["optim.lr=0.002", "generator.width=0.25"])
        assert (config.optim.lr, config.generator.width) == (0.002, 0.25)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("objective.kind=mlm", "its arms differ in it"),
        ("objective.mask_token_prob=1", "its arms differ in it"),
        ("train.budget=5steps", "--budget"),
        ("train.seed=3", "--seeds"),
        ("data.folder=x", "--data"),
    ],
)
def test_settings_that_the_study_controls_are_refused(change, said):
    with pytest.raises(UserError, match=said) as refused:
        check_overrides(find_study("objectives", SCALES["tiny"]), [change])
    assert change.partition("=")[0] in str(refused.value)


@pytest.mark.parametrize("text", ["100steps", "1e9tokens", "2h"])
def test_a_budget_is_in_flops(text):
    with pytest.raises(UserError, match="equal FLOPs"):
        parse_flops_budget(text)
    assert parse_flops_budget("5e16flops") == 5e16


def test_an_arm_with_conflicting_settings_is_refused():
    study = find_study("training-algorithms", SCALES["tiny"])
    two_stage = next(arm for arm in study.arms if arm.name == "two-stage")
    with pytest.raises(
        UserError, match=r"'two-stage' of training-algorithms is refused: .*unigram"
    ):
        arm_config(study, two_stage, 0, ["generator.kind=unigram"])


def test_a_setting_under_its_old_name_is_refused_too():
    study = find_study("tying", SCALES["tiny"])
    with pytest.raises(UserError, match=r"sets generator\.tie itself"):
        check_overrides(study, ["generator.share=none"])


def test_a_misspelt_scale_is_refused():
    with pytest.raises(UserError, match="did you mean 'small'"):
        find_scale("smal")


def test_several_budgets_give_each_curve_an_arm_for_each():
    study = set_budget(find_study("efficiency", SCALES["tiny"]), "2e10flops, 6e10flops,1min")
    names = [arm.name for arm in study.arms]
    assert names[:3] == ["ELECTRA 2e10flops", "ELECTRA 6e10flops", "ELECTRA 1min"]
    assert names[3:] == [name.replace("ELECTRA", "BERT") for name in names[:3]]
    budgets = [arm_config(study, arm, 0).train.budget for arm in study.arms]
    assert budgets == 2 * ["2e10flops", "6e10flops", "1min"]
    kinds = [arm_config(study, arm, 0).objective.kind for arm in study.arms]
    assert kinds == 3 * ["rtd"] + 3 * ["mlm"]


def test_one_budget_for_arms_that_are_compared_at_equal_compute():
    with pytest.raises(UserError, match="compared at one budget; give one, such as 1e9flops"):
        set_budget(find_study("tying", SCALES["tiny"]), "1e9flops,2e9flops")
    with pytest.raises(UserError, match="not a budget"):
        set_budget(find_study("efficiency", SCALES["tiny"]), "1e9flops,soon")
    assert set_budget(find_study("tying", SCALES["tiny"]), "1e9flops").budget == 1e9
