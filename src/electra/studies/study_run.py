"""The runs of a study: one arm with one seed each, in a folder of its own."""

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from electra.config import flatten, update_renamed_flat
from electra.errors import UserError
from electra.studies.study import Arm, Study, arm_config
from electra.text.shards import Shards
from electra.train import checkpoint, pretrain, run_config
from electra.train.budget import parse_budget
from electra.train.pretrain import flops_per_row
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig

RUNS, OLD_RUNS = "runs", "cells"
"""The folder of the runs in a study's `--out`, and its name in studies of earlier versions."""
DATA_SETTINGS = ("data.folder", "model.vocab_size")
"""Settings that follow from the data, which a digest identifies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRun:
    """The run of one arm with one seed."""

    study: str
    arm: Arm
    seed: int
    config: PretrainConfig
    folder: Path

    @property
    def key(self) -> tuple[str, int]:
        return self.arm.name, self.seed

    def identity(self, data_digest: str) -> dict[str, Any]:
        """Return what the result of this run depends on."""
        return {"data_digest": data_digest, "settings": run_settings(self.config)}


def run_settings(config: PretrainConfig) -> dict[str, Any]:
    """Return the settings of a run as they are stored in `results.jsonl`."""
    settings = {k: v for k, v in flatten(config) if k not in DATA_SETTINGS}
    return dict(json.loads(json.dumps(settings)))  # tuples become lists, as when read back


def update_settings(
    kind: type, settings: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Rename old settings without a warning: the user did not write them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return {**defaults, **update_renamed_flat(kind, settings)}


def plan_runs(
    study: Study, data: Path, out: Path, seeds: Sequence[int], overrides: Sequence[str]
) -> list[StudyRun]:
    """Return all runs of a study, every arm of one seed before the next seed."""
    settings = (*overrides, f"data.folder={data}")
    runs = out / (OLD_RUNS if (out / OLD_RUNS).is_dir() else RUNS)
    return [
        StudyRun(
            study=study.name,
            arm=arm,
            seed=seed,
            config=arm_config(study, arm, seed, settings),
            folder=runs / folder_name(f"{arm.name} {arm.learning_rate} {seed}"),
        )
        for seed in seeds
        for arm in study.arms
    ]


def folder_name(arm: str) -> str:
    """`ELECTRA 15 %` -> `electra-15`; letters of any script stay."""
    return re.sub(r"(?:[^\w.]|_)+", "-", arm.lower()).strip("-")


def check_run(run: StudyRun, shards: Shards) -> None:
    """Refuse a run folder with other settings or other data."""
    if not (run.folder / "config.yaml").is_file():
        return
    try:
        run_config.check_same(read_run_config(run.folder), run.config)
    except UserError as error:
        raise UserError(f"{run.folder} belongs to another study. {error}") from None
    saved = checkpoint.checkpoints(run.folder)
    if saved and checkpoint.read_state(saved[-1]).data_digest != shards.digest:
        raise UserError(f"{run.folder} was trained on other data: choose another --out.")


def train(run: StudyRun, console: Console) -> int:
    """Start or continue a run; a finished one is left as it is."""
    if not (run.folder / "config.yaml").is_file():
        return pretrain.start(run.config, run.folder, console)
    if is_finished(run.folder):
        return 0
    return pretrain.resume(run.folder, console, Path(run.config.data.folder))


def is_finished(folder: Path) -> bool:
    """Return whether a run has used its budget."""
    saved = checkpoint.checkpoints(folder)
    if not saved:
        return False
    config, state = read_run_config(folder), checkpoint.read_state(saved[-1])
    flops = state.rows * flops_per_row(config)
    budget = parse_budget(config.train.budget)
    progress = budget.progress(
        steps=state.step, tokens=state.tokens, flops=flops, seconds=state.seconds
    )
    return progress >= 1


def print_line(console: Console, text: str) -> None:
    """Print a line of plain text."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
