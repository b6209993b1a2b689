"""The learning rate of each arm: the one with the lowest held-out loss after training.

The loss decides and not the score, so that no arm is chosen by what it is compared with.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from electra.errors import DivergedError, UserError
from electra.finetune.results import add_result, read_results
from electra.studies.report import markdown_table
from electra.studies.study import Study
from electra.studies.study_run import (
    StudyRun,
    print_line,
    run_settings,
    train,
    update_settings,
)
from electra.text.shards import Shards
from electra.train import checkpoint
from electra.train.settings import PretrainConfig

TRIALS = "learning_rates.jsonl"
SEED = 0
"""The seed that tries the learning rates; the best run of each arm is its run of this seed."""
Losses = dict[str, dict[str, float]]
"""The held-out loss of each arm with each learning rate; infinite if the run diverged."""


def read_rates(text: str) -> list[str]:
    """Parse `5e-4,1e-3`; nothing means that all arms have the recipe's."""
    rates = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for rate in rates:
        try:
            valid = 0 < float(rate) < 1
        except ValueError:
            valid = False
        if not valid:
            raise UserError(
                f"--learning-rates: '{rate}' is not a learning rate; write for example 5e-4,1e-3."
            )
    if len(rates) == 1:
        raise UserError(
            f"--learning-rates compares several: give two or more, or set optim.lr={rates[0]}."
        )
    return rates


def with_rates(study: Study, rates: Sequence[str]) -> Study:
    """Return the study with every arm at every learning rate."""
    arms = (replace(arm, learning_rate=rate) for arm in study.arms for rate in rates)
    return replace(study, arms=tuple(arms))


def try_learning_rates(
    runs: Sequence[StudyRun], folders: Sequence[Path], shards: Shards, console: Console
) -> Losses | int:
    """Train the runs and return their losses, or an exit code if one was interrupted.

    New ones are recorded in the first of the folders; those that any of them has are not repeated.
    """
    known = [trial for folder in folders for trial in read_results(folder, TRIALS)]
    defaults = run_settings(PretrainConfig())
    for each in known:
        each["settings"] = update_settings(PretrainConfig, each["settings"], defaults)
    losses: Losses = {}
    for number, run in enumerate(runs, 1):
        rate, identity = run.arm.learning_rate, run.identity(shards.digest)
        title = f"learning rate {number} of {len(runs)}: {run.arm.name}, {rate}"
        same = (t for t in known if all(t[key] == value for key, value in identity.items()))
        trial = next(same, None)
        print_line(console, title if trial is None else f"{title}: already done")
        if trial is None:
            try:
                code = train(run, console)
                if code:
                    print_line(console, "Run the same command again to continue the study.")
                    return code
                saved = checkpoint.checkpoints(run.folder)[-1]
                loss = checkpoint.read_state(saved).held_out["loss"]
            except DivergedError as error:
                print_line(console, str(error))
                loss = math.inf
            trial = {"arm": run.arm.name, "learning_rate": rate, "loss": loss, **identity}
            add_result(folders[0], trial, TRIALS)
        loss = math.inf if trial["loss"] is None else trial["loss"]
        losses.setdefault(run.arm.name, {})[rate] = loss
    return losses


def choose_rates(study: Study, losses: Losses) -> Study:
    """Return the study with the best learning rate of each arm."""
    best = {arm: min(tried, key=lambda rate: tried[rate]) for arm, tried in losses.items()}
    for arm, rate in best.items():
        if math.isinf(losses[arm][rate]):
            raise UserError(
                f"The arm '{arm}' of {study.name} diverged with every learning rate: give lower "
                "ones with --learning-rates."
            )
    arms = (replace(arm, learning_rate=best[arm.name]) for arm in study.arms)
    return replace(study, arms=tuple(arms))


def rates_table(losses: Losses) -> str:
    """Return the held-out losses as a table; the lowest of each arm is bold."""
    rates = list(dict.fromkeys(rate for tried in losses.values() for rate in tried))
    rows = []
    for arm, tried in losses.items():
        lowest = min(tried.values())
        cells = [
            "diverged"
            if math.isinf(loss)
            else f"**{loss:.3f}**"
            if loss == lowest
            else f"{loss:.3f}"
            for loss in (tried[rate] for rate in rates)
        ]
        rows.append([arm, *cells])
    return markdown_table(["held-out loss", *(f"lr {rate}" for rate in rates)], rows)
