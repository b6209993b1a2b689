"""The models of the page: their names, abilities and checkpoints."""

import shutil

import pytest

from electra.errors import UserError
from electra.play.models import default_model, find_abilities, open_models


def test_a_run_and_its_checkpoints(finished):
    found = open_models([str(finished)], "cpu")
    assert list(found) == ["finished", "finished, step 10"]
    assert found["finished"].detects
    assert found["finished"].proposes
    assert not found["finished"].scores
    older = found["finished, step 10"]
    assert older.model.folder.name == "step-00000010"
    assert older.detects


def test_a_discriminator_alone(model_folder):
    (choice,) = open_models([str(model_folder)], "cpu").values()
    assert choice.detects
    assert not choice.proposes


def test_a_fine_tuned_model(tuned):
    (choice,) = open_models([str(tuned)], "cpu").values()
    assert choice.task == "classify"
    assert not choice.detects


def test_equal_names_stay_apart(model_folder, tmp_path):
    other = tmp_path / model_folder.name
    shutil.copytree(model_folder, other)
    names = [str(model_folder), str(other), str(other)]
    assert list(open_models(names, "cpu")) == [
        model_folder.name,
        str(other),
        f"{other} (2)",
    ]


def test_an_installed_model_is_the_default(installed):
    installed("a-tiny-model")  # the first by name, also where a released model is installed
    assert default_model() == "a-tiny-model"
    assert open_models([], "cpu")["a-tiny-model"].detects


def test_without_any_model(monkeypatch):
    monkeypatch.setattr("electra.play.models.installed_models", dict)
    with pytest.raises(UserError, match=r"No model is installed: name one, as in  electra play"):
        open_models([])


def test_a_model_that_can_do_nothing(monkeypatch):
    class Broken:
        task = None

        def detect(self, text):
            raise UserError("no discriminator here")

        fill = score = detect

    with pytest.raises(UserError, match="no discriminator here"):
        find_abilities(Broken())
