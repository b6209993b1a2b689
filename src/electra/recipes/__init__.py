"""Recipes: each a function that returns one complete configuration."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from electra.errors import UserError, nearest

if TYPE_CHECKING:
    from electra.train.settings import PretrainConfig

RECIPES = {
    "paper.small": "ELECTRA-Small of the paper: 14 M parameters, rows of 128, 1 M steps.",
    "paper.base": "ELECTRA-Base of the paper: 110 M parameters, rows of 512, 766,000 steps.",
    "paper.large": "ELECTRA-Large of the paper: 335 M parameters, rows of 512, 400,000 steps.",
    "toy": "A few minutes on a laptop's CPU; what the demo trains.",
}
"""`paper.small` is the function `small` in paper.py, `toy` the function `toy` in toy.py."""


def recipe(name: str) -> "PretrainConfig":
    """The recipe of that name, or the configuration in a YAML file."""
    if name.endswith((".yaml", ".yml")):
        from electra.config import from_yaml
        from electra.train.settings import PretrainConfig

        try:
            return from_yaml(PretrainConfig, Path(name).read_bytes(), name)
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}.") from None
    if name not in RECIPES:
        raise UserError(f"There is no recipe '{name}': {nearest(name, list(RECIPES))}")
    module, _, function = name.partition(".")
    build = getattr(importlib.import_module(f"electra.recipes.{module}"), function or module)
    config: PretrainConfig = build()
    return config
