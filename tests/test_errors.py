"""Errors for users: missing libraries and misspelt names."""

import json

import pytest

from electra.errors import UserError, nearest, require


def test_a_library_that_is_there_is_imported():
    assert require("json", "none") is json


def test_a_missing_library_names_its_extra():
    with pytest.raises(UserError, match=r"library 'no_such_library'.*'electra\[plot\]'") as caught:
        require("no_such_library.pyplot", "plot")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("optim.rl", "did you mean 'optim.lr'?"),
        ("train.lr", "did you mean 'optim.lr'?"),  # the last part is right
        ("learning_rate", "did you mean 'optim.lr'?"),  # its initials
        ("xyz", "there are: data.folder, model.layers, optim.lr."),
    ],
)
def test_the_nearest_name(name, hint):
    assert nearest(name, ["optim.lr", "model.layers", "data.folder"]) == hint
