"""Recipes: each is a function that returns one complete configuration."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from electra.errors import UserError, nearest

if TYPE_CHECKING:
    from electra.train.settings import PretrainConfig


class Recipe(NamedTuple):
    """A function that returns a configuration, and what `electra recipes` says about it."""

    build: "Callable[[], PretrainConfig]"
    summary: str


# The functions import torch only when they are called, so that the command line starts fast.


def _paper_small() -> "PretrainConfig":
    from electra.recipes import paper

    return paper.small()


def _paper_base() -> "PretrainConfig":
    from electra.recipes import paper

    return paper.base()


def _paper_large() -> "PretrainConfig":
    from electra.recipes import paper

    return paper.large()


def _fast_small() -> "PretrainConfig":
    from electra.recipes import fast

    return fast.small()


def _toy() -> "PretrainConfig":
    from electra.recipes import toy

    return toy.toy()


RECIPES = {
    "paper.small": Recipe(
        _paper_small, "ELECTRA-Small of the paper: 14 M parameters, rows of 128, 1 M steps."
    ),
    "paper.base": Recipe(
        _paper_base, "ELECTRA-Base of the paper: 110 M parameters, rows of 512, 766,000 steps."
    ),
    "paper.large": Recipe(
        _paper_large, "ELECTRA-Large of the paper: 335 M parameters, rows of 512, 400,000 steps."
    ),
    "fast.small": Recipe(
        _fast_small,
        "ELECTRA-Small for one GPU and less than an hour: 14 M parameters, rows of 128.",
    ),
    "toy": Recipe(_toy, "A few minutes on a laptop's CPU; what the demo trains."),
}


def recipe(name: str) -> "PretrainConfig":
    """The configuration of a recipe, or of a YAML file."""
    if name.endswith((".yaml", ".yml")):
        from electra.config import from_yaml
        from electra.train.settings import PretrainConfig

        try:
            return from_yaml(PretrainConfig, Path(name).read_bytes(), name)
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}.") from None
    if name not in RECIPES:
        raise UserError(f"There is no recipe '{name}': {nearest(name, list(RECIPES))}")
    return RECIPES[name].build()
