"""Settings without effect are refused where the user named them, else there is a warning."""

import warnings
from dataclasses import replace

import pytest
import torch

from electra.config import override
from electra.errors import UserError
from electra.recipes import RECIPES, recipe
from electra.train.pretrain import start
from electra.train.unused_settings import check_unused, unused_settings

GENERATOR = ("optim.generator_lr=0.001", "optim.generator_eps=1e-08", "optim.clip_by=network")
SAMPLING = ("objective.temperature=2.0", "objective.disallow_correct=True")
WEIGHTS = ("objective.generator_weight=2.0", "objective.discriminator_weight=10.0")


def unused(*settings: str) -> list[str]:
    config = override(recipe("toy"), [setting.lower() for setting in settings])
    return sorted(setting for setting, _ in unused_settings(config))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (("objective.kind=mlm",), (*GENERATOR, *SAMPLING, *WEIGHTS)),
        (("generator.kind=unigram",), GENERATOR),
        (("generator.kind=uniform",), GENERATOR),
        (("objective.kind=replace-mlm",), WEIGHTS[1:]),
        (("objective.kind=all-tokens-mlm", "generator.kind=uniform"), (*GENERATOR, WEIGHTS[1])),
        (("objective.kind=adversarial",), ()),
        (("objective.kind=two-stage", "generator.tie=none", "generator.width=1"), WEIGHTS[:1]),
        ((), ()),
    ],
)
def test_which_settings_have_no_effect(kind, expected):
    assert unused(*kind, *GENERATOR, *SAMPLING, *WEIGHTS) == sorted(expected)
    assert unused(*kind) == []


def test_the_weights_of_other_objectives():
    weights = ("objective.model_weight=2.0", "objective.gate_weight=2.0")
    assert unused(*weights) == sorted(weights)
    assert unused("objective.kind=replace-mlm", *weights) == [weights[1]]
    assert unused("objective.kind=all-tokens-mlm", *weights) == []


def test_the_learning_rate_of_muon_needs_muon():
    assert unused("optim.muon_lr=0.001") == ["optim.muon_lr=0.001"]
    assert unused("optim.kind=muon", "optim.muon_lr=0.001") == []


def test_the_cache_is_for_stores_and_verification_for_folders():
    cache = ("data.cache_dir=/x", "data.cache_gb=2.0")
    assert unused(*cache, "data.verify=off", "data.folder=/shards") == sorted(cache)
    assert unused(*cache, "data.verify=off", "data.folder=s3://x") == ["data.verify=off"]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("kind", ["rtd", "mlm"])
def test_no_recipe_has_such_a_setting(name, kind):
    config = override(recipe(name), [f"objective.kind={kind}"])
    assert not list(unused_settings(config))


def test_refused_where_given_else_a_warning():
    config = override(recipe("toy"), ["objective.kind=mlm", "optim.generator_lr=1e-3"])
    wanted = r"optim.generator_lr=0.001 has no effect, because objective.kind=mlm has no generator"
    with pytest.raises(UserError, match=f"^{wanted}: leave it out.$"):
        check_unused(config, {"objective.kind", "optim.generator_lr"})
    with pytest.warns(UserWarning, match=wanted):
        check_unused(config, {"objective.kind"})


def test_the_command_leaves_nothing_behind(electra, data_folder, tmp_path):
    out = tmp_path / "run"
    settings = ("objective.kind=mlm", "objective.temperature=2", "train.budget=2steps")
    code, _, problems = electra("pretrain", "toy", "--data", data_folder, "--out", out, *settings)
    assert (code, problems.count("\n")) == (2, 1)
    assert "objective.temperature=2.0 has no effect" in problems
    assert not out.exists()


@pytest.mark.parametrize(
    "change",
    [{"optim.clip_by": "network"}, {"optim.generator_lr": "1e-2"}, {"optim.generator_eps": "1"}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("kind", ["objective.kind=mlm", "generator.kind=uniform"])
def test_they_have_no_effect(kind, change, tiny, make_step):
    """The weights after two steps are the same with and without the setting."""
    plain = override(tiny, [kind, "optim.clip=0.01"])
    changed = override(plain, [f"{key}={value}" for key, value in change.items()])
    weights = []
    for config in (plain, changed):
        step, batches = make_step(config)
        for rows in batches[:2]:
            step(rows, 1e-3)
        weights.append(step.objective.state_dict())
    one, two = weights
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_activation_checkpointing_without_fused_kernels_warns(tiny, tmp_path, console):
    config = replace(tiny, train=replace(tiny.train, budget="2steps", device="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert start(config, tmp_path / "plain", console) == 0
    config = override(config, ["train.activation_checkpointing=true"])
    with pytest.warns(UserWarning, match="activation_checkpointing=true has no effect without"):
        assert start(config, tmp_path / "run", console) == 0
