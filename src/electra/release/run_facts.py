"""What a checkpoint knows about its run, for the model card."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.config import flatten, from_yaml
from electra.recipes import RECIPES, recipe
from electra.train.checkpoint import read_state
from electra.train.pretrain import flops_per_row
from electra.train.settings import PretrainConfig

NOT_OF_THE_RECIPE = ("name", "data.folder", "model.vocab_size", "train.budget")
"""Settings that the derived command leaves out, or names as an option."""
OF_THIS_MACHINE = ("init_from.", "score_on.")
"""Groups of settings that hold paths; `--init-from` stands for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a checkpoint knows about its run."""

    settings: Mapping[str, Any]
    """By `group.key`."""
    command: str
    steps: int
    tokens: int
    longest: int
    """The longest rows so far, in tokens; `data.seq_length` may be a schedule."""
    flops: int
    minutes: float
    validation: Mapping[str, float]
    base_model: str
    """The Hub name of the model that the run started from, if it has one."""


def read_run(folder: Path) -> RunFacts | None:
    """What a checkpoint knows about its run; None for other folders."""
    if not ((folder / "config.yaml").is_file() and (folder / "state.json").is_file()):
        return None
    path = folder / "config.yaml"
    config = from_yaml(PretrainConfig, path.read_bytes(), str(path))
    state = read_state(folder)
    return RunFacts(
        settings=dict(flatten(config)),
        command=derive_command(config),
        steps=state.step,
        tokens=state.tokens,
        longest=max(state.rows_of_length, default=config.data.lengths[0]),
        flops=sum(flops_per_row(config, n) * rows for n, rows in state.rows_of_length.items()),
        minutes=state.seconds / 60,
        validation=state.held_out,
        base_model=origin if (origin := origin_name(config)).count("/") == 1 else "",
    )


def origin_name(config: PretrainConfig) -> str:
    """The name of the model that a run started from; empty for a folder, whose path is whole."""
    model = config.init_from.model
    return "" if Path(model).is_absolute() else model


def derive_command(config: PretrainConfig) -> str:
    """A command with the settings of a run; empty if its recipe is not one of ours."""
    if config.name not in RECIPES:
        return ""
    usual = dict(flatten(recipe(config.name)))
    changed = [
        f"{key}={setting_text(value)}"
        for key, value in flatten(config)
        if key not in NOT_OF_THE_RECIPE
        and not key.startswith(OF_THIS_MACHINE)
        and value != usual[key]
    ]
    options = ["--data", "shards", "--out", "run", "--budget", config.train.budget]
    if config.init_from.model:
        options += ["--init-from", origin_name(config) or "MODEL"]
    return shlex.join(["electra", "pretrain", config.name, *options, *changed])


def setting_text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ",".join(map(setting_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
