"""The six studies: what each arm is, and that all arms of a study cost the same."""

from dataclasses import replace

import pytest

from electra.config import flatten
from electra.errors import UserError
from electra.models.electra import generator_sizes
from electra.models.flops import row_flops, workloads_of
from electra.models.paper_flops import ELECTRA_SMALL
from electra.objectives.corrupt import max_masked
from electra.objectives.kinds import build
from electra.objectives.objective import VocabInfo
from electra.recipes import recipe
from electra.studies.paper import STUDIES, find_study
from electra.studies.study import (
    SCALES,
    arm_config,
    row_costs,
)
from electra.studies.study_run import folder_name
from electra.train.budget import parse_budget

VOCABULARY = {"tiny": 4000, "small": 30522, "paper": 30522}
EVERY = [(name, scale) for name in STUDIES for scale in SCALES]


def configs(name, scale, seed=0):
    study = find_study(name, SCALES[scale])
    found = {}
    for arm in study.arms:
        config = arm_config(study, arm, seed)
        model = replace(config.model, vocab_size=VOCABULARY[scale])
        found[arm.name] = (arm, replace(config, model=model))
    return study, found


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_each_arm_is_a_different_run(name, scale):
    study, found = configs(name, scale)
    assert study.name == name
    assert len(found) == len(study.arms) >= 3
    folders = {folder_name(arm) for arm in found}
    assert len(folders) == len(found)
    assert not any(set(folder) & set(" %/") for folder in folders)
    settings = [dict(flatten(config)) for _, config in found.values()]
    assert len({str(s) for s in settings}) == len(settings)
    for config in settings:  # nothing differs but what the study is about
        ours = ("objective.", "generator.", "model.hidden", "model.heads", "model.embedding")
        for key, value in config.items():
            if not key.startswith((*ours, "train.budget")):
                assert value == settings[0][key], key
    for _, config in found.values():
        generator_sizes(config.model, config.generator)


@pytest.mark.parametrize("name", STUDIES)
def test_the_networks_of_each_arm_can_be_built(name):
    _, found = configs(name, "tiny")
    for _, config in found.values():
        model = replace(config.model, vocab_size=64)
        ids = VocabInfo(mask_id=4, special_ids=(0, 2, 3, 4))
        assert build(config.objective, model, config.generator, ids).networks()


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_all_arms_cost_the_same(name, scale):
    study, found = configs(name, scale)
    for arm, config in found.values():
        length = config.data.seq_length
        slots = max_masked(length, config.objective.mask_rate, config.objective.mask_count_rounding)
        kind = config.objective.kind
        row = row_flops(workloads_of(kind, config.model, config.generator, length, slots), length)
        assert row_costs(config)[0] == row
        step = row * config.data.batch_size
        steps = parse_budget(config.train.budget).steps(tokens_per_step=1, flops_per_step=step)
        wanted = study.budget * arm.budget_fraction
        assert wanted * (1 - 1e-5) <= steps * step < wanted + step
        if steps > 100:
            assert steps * step == pytest.approx(wanted, rel=0.01)
        assert steps > (20 if scale == "tiny" else 1000)
        if scale != "tiny" or name in ("objectives", "tying", "training-algorithms"):
            assert steps > 100


def test_the_scores_are_those_that_the_paper_prints():
    def printed(name):
        study = find_study(name, SCALES["small"])
        return {arm.name: arm.paper_score for arm in study.arms if arm.paper_score is not None}

    assert printed("objectives") == {
        "ELECTRA": 85.0,
        "All-Tokens MLM": 84.3,
        "Replace MLM": 82.4,
        "ELECTRA 15 %": 82.4,
        "BERT": 82.2,
    }
    assert printed("tying") == {"none": 83.6, "embeddings": 84.3, "all": 84.4}
    assert printed("efficiency") == {
        "ELECTRA 6.25 %": 74.1,
        "ELECTRA 12.5 %": 76.0,
        "ELECTRA 25 %": 77.7,
        "ELECTRA 50 %": 79.0,
        "ELECTRA 100 %": 79.9,
        "BERT 100 %": 75.1,
    }
    for name in ("generator-size", "training-algorithms", "hidden-size"):
        assert printed(name) == {}  # figures only


@pytest.mark.parametrize("scale", SCALES)
def test_what_the_arms_are(scale):
    _, found = configs("objectives", scale)
    kinds = [config.objective.kind for _, config in found.values()]
    assert kinds == ["rtd", "all-tokens-mlm", "replace-mlm", "rtd-masked", "mlm"]
    bert = found["BERT"][1].objective
    assert (bert.mask_rate, bert.mask_token_prob, bert.random_token_prob) == (0.15, 0.8, 0.1)
    _, found = configs("tying", scale)
    assert {config.generator.width for _, config in found.values()} == {1}
    ties = [config.generator.tie for _, config in found.values()]
    assert ties == ["none", "embeddings", "all", "gdes"]
    _, found = configs("training-algorithms", scale)
    kinds = [config.objective.kind for _, config in found.values()]
    assert kinds == ["rtd", "two-stage", "adversarial", "mlm"]
    assert found["two-stage"][1].objective.init_from_generator
    _, found = configs("generator-size", scale)
    assert found["unigram"][1].generator.kind == "unigram"
    widths = [c.generator.width for arm, c in found.values() if arm.name != "unigram"]
    assert widths == [0.125, 0.25, 0.5, 0.75, 1]
    _, found = configs("hidden-size", scale)
    sizes = {"ELECTRA": [], "BERT": []}
    for arm, config in found.values():
        assert (config.objective.kind == "mlm") == (arm.series == "BERT")
        assert config.model.hidden == int(arm.x_label) == 64 * config.model.heads
        sizes[arm.series].append(config.model.hidden)
        # The recipe's own width, which is the hidden one in models of the base size
        recipes = recipe(SCALES[scale].recipe).model.embedding
        assert config.model.embedding == (int(arm.x_label) if scale == "paper" else recipes)
    assert sizes["ELECTRA"] == sizes["BERT"] == sorted(sizes["BERT"])


def test_the_budget_fractions_of_efficiency():
    study, found = configs("efficiency", "paper")
    for line in ("ELECTRA", "BERT"):
        shares = [arm.budget_fraction for arm, _ in found.values() if arm.series == line]
        assert shares == [0.0625, 0.125, 0.25, 0.5, 1]
    for arm, config in found.values():
        budget = parse_budget(config.train.budget)
        assert (budget.unit, budget.amount) == (
            "flops",
            pytest.approx(arm.budget_fraction * study.budget),
        )


def test_the_scale_paper_has_the_length_of_the_paper():
    def steps(name, arm):
        _, found = configs(name, "paper")
        config = found[arm][1]
        row = row_costs(config)[0]
        budget = parse_budget(config.train.budget)
        return budget.amount / (row * config.data.batch_size), row_costs(config)[1], config

    found, row, config = steps("efficiency", "ELECTRA 100 %")
    assert found == pytest.approx(1_000_000, rel=1e-3)
    assert (config.model.hidden, config.data.seq_length) == (256, 128)
    assert found * config.data.batch_size * row == pytest.approx(ELECTRA_SMALL.train, rel=0.09)
    # The paper has 1.45 M here: its rules charge ELECTRA for the lookups of two networks.
    assert steps("efficiency", "BERT 100 %")[0] == pytest.approx(1.08e6, rel=0.01)
    assert steps("objectives", "ELECTRA")[0] == pytest.approx(766_000, rel=1e-3)
    assert steps("objectives", "ELECTRA")[2].model.hidden == 768
    for name, arm in (("tying", "none"), ("training-algorithms", "joint")):
        assert steps(name, arm)[0] == pytest.approx(500_000, rel=1e-3)


def test_a_misspelt_study_is_refused():
    with pytest.raises(UserError, match="did you mean 'objectives'"):
        find_study("objective", SCALES["tiny"])
