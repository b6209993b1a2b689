"""What a model card learns from a checkpoint."""

import shlex

import pytest

from electra.config import override
from electra.recipes import recipe
from electra.release.run_facts import derive_command, read_run, setting_text
from electra.train import checkpoint
from electra.train.pretrain import flops_per_row
from electra.train.run_config import read_run_config


def test_the_facts_of_a_checkpoint(finished):
    last = checkpoint.checkpoints(finished)[-1]
    facts, state = read_run(last), checkpoint.read_state(last)
    assert (facts.steps, facts.tokens, facts.longest) == (20, 20 * 8 * 32, 32)
    assert facts.flops == 20 * 8 * flops_per_row(read_run_config(finished))
    assert facts.minutes == pytest.approx(state.seconds / 60)
    assert facts.validation == state.held_out
    assert facts.settings["data.batch_size"] == 8
    assert facts.base_model == ""


def test_other_folders_have_none(finished, model_folder):
    assert read_run(finished) is None  # a run, not a checkpoint
    assert read_run(model_folder) is None


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (0.5, "0.5"), ((0.9, 0.98), "0.9,0.98"), ("auto", "auto")]
)
def test_values_as_the_command_line_takes_them(value, text):
    assert setting_text(value) == text


def test_the_derived_command_gives_the_configuration_back():

    config = override(
        recipe("paper.small"),
        ["optim.lr=8e-4", "data.document_mask=true", "optim.betas=0.9,0.98", "train.budget=25min"],
    )
    words = shlex.split(derive_command(config))
    assert words[:3] == ["electra", "pretrain", "paper.small"]
    assert words[words.index("--budget") + 1] == "25min"
    settings = [word for word in words[3:] if "=" in word]
    assert override(recipe("paper.small"), [*settings, "train.budget=25min"]) == config
    assert len(settings) == 3


def test_no_command_is_derived_for_a_recipe_of_someone_else(tiny):
    assert derive_command(tiny) == ""
