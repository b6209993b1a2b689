"""`electra study`: train and score every run of a study, none of them twice."""

from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console

from electra import __version__
from electra.device import choose_device, device_name
from electra.errors import UserError
from electra.finetune.results import RESULTS, Result, add_result, check_same, read_results
from electra.finetune.settings import FinetuneConfig
from electra.run_dir import PROCESS, check_out_dir, lock_run_dir
from electra.studies.learning_rate import (
    SEED,
    TRIALS,
    choose_rates,
    rates_table,
    try_learning_rates,
    with_rates,
)
from electra.studies.report import write_report
from electra.studies.score import Scorer, score_settings
from electra.studies.study import Study, row_costs
from electra.studies.study_run import (
    OLD_RUNS,
    RUNS,
    StudyRun,
    check_run,
    plan_runs,
    print_line,
    run_settings,
    train,
    update_settings,
)
from electra.text.shards import Shards
from electra.train import checkpoint
from electra.train.data import open_data
from electra.train.health import plateau_ends
from electra.train.metrics_log import read_metrics
from electra.train.run_config import read_run_config
from electra.train.settings import PretrainConfig


def update_result(result: Result) -> Result:
    """Return a stored result with today's names of the settings.

    Settings that did not exist yet get their defaults.
    """
    if "settings" not in result or "scores" not in result:  # not of a study
        return result
    scores = {}
    for name, score in result["scores"].items():
        origin = score.get("origin", {})
        if "settings" in origin:
            defaults = score_settings(FinetuneConfig())
            origin = origin | {
                "settings": update_settings(FinetuneConfig, origin["settings"], defaults)
            }
        scores[name] = score | {"origin": origin}
    settings = update_settings(PretrainConfig, result["settings"], run_settings(PretrainConfig()))
    return result | {"settings": settings, "scores": scores}


def run_study(
    study: Study,
    *,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    overrides: Sequence[str],
    scorers: Sequence[Scorer],
    reuse: Sequence[Path] = (),
    rates: Sequence[str] = (),
    command: str,
    console: Console,
) -> int:
    """Train and score what is missing, write the page after each run, return the exit code.

    Settings and data are checked before any training. Runs that a study in a folder of `reuse` has
    finished are copied from there. With `rates`, each arm gets the best of these learning rates.
    """
    # A folder `runs` alone may be the user's own.
    interrupted = [RUNS] if (out / PROCESS).is_file() else []
    check_out_dir(out, "study", OLD_RUNS, RESULTS, TRIALS, *interrupted)
    runs = plan_runs(study, data, out, seeds, overrides)
    shards = open_data(runs[0].config.data, runs[0].config.model.max_positions)
    others = [result for folder in reuse for result in read_other_results(folder)]
    rate_losses = ""
    with lock_run_dir(out):
        if rates:
            losses = try_learning_rates(
                plan_runs(with_rates(study, rates), data, out, [SEED], overrides),
                (out, *reuse),
                shards,
                console,
            )
            if isinstance(losses, int):
                return losses
            study, rate_losses = choose_rates(study, losses), rates_table(losses)
            runs = plan_runs(study, data, out, seeds, overrides)
        done = previous_results(study, runs, shards, out)
        for run in runs:
            found = find_reusable(run, shards, others, scorers, done.get(run.key))
            if found is not None:
                done[run.key] = found
                add_result(out, found)
        for number, run in enumerate(runs, 1):
            title = f"run {number} of {len(runs)}: {run.arm.name}, seed {run.seed}"
            result = done.get(run.key)
            missing = [scorer for scorer in scorers if not has_score(result, scorer)]
            complete = result is not None and not missing
            if complete:
                print_line(console, f"{title}: already done")
            else:
                print_line(console, title)
                code = train(run, console)
                if code:
                    print_line(console, "Run the same command again to continue the study.")
                    return code
                done[run.key] = score_run(run, shards, result, missing, console)
                add_result(out, done[run.key])
            if number == len(runs) or not complete:
                known = [done[r.key] for r in runs if r.key in done]
                whole = [r for r in known if all(has_score(r, scorer) for scorer in scorers)]
                write_report(
                    study,
                    whole,
                    scorers,
                    out,
                    runs=len(runs),
                    rate_losses=rate_losses,
                    command=command,
                    console=console,
                )
    return 0


def previous_results(
    study: Study, runs: Sequence[StudyRun], shards: Shards, out: Path
) -> dict[tuple[str, int], Result]:
    """Return the results in `out` by arm and seed; those of other settings or data are refused."""
    before = update_results(out)
    check_same(out, before, {"study": study.name})
    done = {(result["arm"], result["seed"]): result for result in before}
    for run in runs:
        if run.key in done:
            check_same(out, [done[run.key]], run.identity(shards.digest))
        check_run(run, shards)
    return done


def read_other_results(folder: Path) -> list[Result]:
    """Return the results of another study."""
    found = update_results(folder)
    if not found:
        raise UserError(f"--reuse {folder}: it has no results.jsonl; give the --out of a study.")
    return found


def update_results(folder: Path) -> list[Result]:
    """Return the results in a folder with today's names; those of a study must be whole."""
    found = read_results(folder)
    try:
        return [update_result(result) for result in found]
    except (AttributeError, TypeError, ValueError):
        path = folder / RESULTS
        raise UserError(f"{path} is damaged: delete its broken line, or the folder.") from None


def find_reusable(
    run: StudyRun,
    shards: Shards,
    others: Sequence[Result],
    scorers: Sequence[Scorer],
    own: Result | None,
) -> Result | None:
    """Return an equal run of another study that has all scores, if this one lacks some.

    It gets the names of this study and arm, and keeps the scores of the `own` result.
    """
    if all(has_score(own, scorer) for scorer in scorers):
        return None
    identity = run.identity(shards.digest)
    for other in others:
        same = all(other.get(key) == value for key, value in identity.items())
        if same and all(has_score(other, scorer) for scorer in scorers):
            scores = {**(own or {}).get("scores", {}), **other["scores"]}
            return {**other, "study": run.study, "arm": run.arm.name, "scores": scores}
    return None


def has_score(result: Result | None, scorer: Scorer) -> bool:
    """Return whether a result has this score, from the same examples, seeds and settings."""
    score = result["scores"].get(scorer.name) if result else None
    return score is not None and score["origin"] == scorer.origin


def score_run(
    run: StudyRun,
    shards: Shards,
    before: Result | None,
    missing: Sequence[Scorer],
    console: Console,
) -> Result:
    """Compute the missing scores of a trained run and return its line for `results.jsonl`."""
    config = read_run_config(run.folder)
    state = checkpoint.read_state(checkpoint.checkpoints(run.folder)[-1])
    hardware_flops, paper_flops = row_costs(config)
    return {
        "study": run.study,
        "arm": run.arm.name,
        "seed": run.seed,
        **run.identity(shards.digest),
        "steps": state.step,
        "tokens": state.tokens,
        "flops": state.rows * hardware_flops,
        "paper_flops": state.rows * paper_flops,
        "seconds": round(state.seconds, 1),
        "held_out": state.held_out,
        "plateau_ends": plateau_ends(read_metrics(run.folder)),
        "scores": {
            **(before or {}).get("scores", {}),
            **{scorer.name: scorer.score(run.folder, console) for scorer in missing},
        },
        "hardware": device_name(choose_device(config.train.device)),
        "version": __version__,
        "torch": torch.__version__,
    }
