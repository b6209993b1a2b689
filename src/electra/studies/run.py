"""`electra study`: every cell of the grid trained and scored, none of them twice."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from electra import __version__
from electra.config import flatten
from electra.device import choose_device
from electra.errors import UserError
from electra.finetune.results import RESULTS, Result, add_result, check_same, read_results
from electra.finetune.task_run import hardware
from electra.run_dir import check_out_dir, lock_run_dir
from electra.studies.score import Source
from electra.studies.study import Arm, Study, configure, row_costs
from electra.studies.write import write
from electra.text.shards import Shards
from electra.train import checkpoint, pretrain
from electra.train.budget import parse_budget
from electra.train.data import open_data
from electra.train.pretrain import PretrainConfig, flops_per_row, read_run_config

FILLED = ("data.folder", "model.vocab_size")
"""Settings that follow the data, which are known by their digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """An arm with a seed: one run."""

    study: str
    arm: Arm
    seed: int
    config: PretrainConfig
    folder: Path

    @property
    def key(self) -> tuple[str, int]:
        return self.arm.name, self.seed

    def facts(self, data: str) -> dict[str, Any]:
        """What its result depends on."""
        settings = {k: v for k, v in flatten(self.config) if k not in FILLED}
        plain = json.loads(json.dumps(settings))  # as it will be read back
        return {"data_digest": data, "settings": plain}


def grid(
    study: Study, data: Path, out: Path, seeds: Sequence[int], changes: Sequence[str]
) -> list[Cell]:
    """All cells, a whole round of the arms before the next seed."""
    settings = (*changes, f"data.folder={data}")
    return [
        Cell(
            study=study.name,
            arm=arm,
            seed=seed,
            config=configure(study, arm, seed, settings),
            folder=out / "cells" / f"{folder_name(arm.name)}-{seed}",
        )
        for seed in seeds
        for arm in study.arms
    ]


def folder_name(arm: str) -> str:
    """ELECTRA 15 % -> electra-15."""
    return re.sub(r"[^a-z0-9.]+", "-", arm.lower()).strip("-")


def run_study(
    study: Study,
    *,
    data: Path,
    out: Path,
    seeds: Sequence[int],
    changes: Sequence[str],
    sources: Sequence[Source],
    reuse: Sequence[Path] = (),
    command: str,
    console: Console,
) -> int:
    """Train and score what is missing, and write the page after each cell; returns the exit code.

    Everything that can be refused is refused before anything is trained. Cells that a study in a
    folder of `reuse` has done are taken over.
    """
    check_out_dir(out, "study", "cells", RESULTS)
    cells = grid(study, data, out, seeds, changes)
    shards = open_data(cells[0].config.data, cells[0].config.model.max_positions)
    others = [r for folder in reuse for r in results_of(folder)]
    with lock_run_dir(out):
        before = read_results(out)
        check_same(out, before, {"study": study.name})
        done = {(r["arm"], r["seed"]): r for r in before}
        for cell in cells:
            if cell.key in done:
                check_same(out, [done[cell.key]], cell.facts(shards.digest))
            check_run(cell, shards)
        for cell in cells:
            taken = twin(cell, shards, others, sources, done.get(cell.key))
            if taken is not None:
                done[cell.key] = taken
                add_result(out, taken)
        for number, cell in enumerate(cells, 1):
            where = f"cell {number} of {len(cells)}: {cell.arm.name}, seed {cell.seed}"
            found = done.get(cell.key)
            missing = [source for source in sources if not scored(found, source)]
            kept = found is not None and not missing
            if kept:
                say(console, f"{where}: done before, and kept")
            else:
                say(console, where)
                code = train(cell, console)
                if code:
                    say(console, "The study goes on with the same command.")
                    return code
                done[cell.key] = measured(cell, shards, found, missing, console)
                add_result(out, done[cell.key])
            if number == len(cells) or not kept:
                known = [done[c.key] for c in cells if c.key in done]
                whole = [r for r in known if all(scored(r, source) for source in sources)]
                write(
                    study, whole, sources, out, cells=len(cells), command=command, console=console
                )
    return 0


def results_of(folder: Path) -> list[Result]:
    """The cells that another study has done."""
    found = read_results(folder)
    if not found:
        raise UserError(f"--reuse {folder}: no study left its results.jsonl there.")
    return found


def twin(
    cell: Cell,
    shards: Shards,
    others: Sequence[Result],
    sources: Sequence[Source],
    own: Result | None,
) -> Result | None:
    """Where a score is missing: the same run of another study, with all that are asked for.

    It gets the cell's name, and keeps the scores of its `own` result.
    """
    if all(scored(own, source) for source in sources):
        return None
    facts = cell.facts(shards.digest)
    for other in others:
        same = all(other.get(key) == value for key, value in facts.items())
        if same and all(scored(other, source) for source in sources):
            scores = {**(own or {}).get("scores", {}), **other["scores"]}
            return {**other, "study": cell.study, "arm": cell.arm.name, "scores": scores}
    return None


def say(console: Console, text: str) -> None:
    """A line of plain text."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def scored(found: Result | None, source: Source) -> bool:
    """Whether a result has this score, made from the same examples and seeds."""
    score = found["scores"].get(source.name) if found else None
    return score is not None and score["origin"] == source.origin


def check_run(cell: Cell, shards: Shards) -> None:
    """Refuse a run in the cell's folder that has other settings or other data."""
    if not (cell.folder / "config.yaml").is_file():
        return
    try:
        pretrain.check_same(read_run_config(cell.folder), cell.config)
    except UserError as error:
        raise UserError(f"{cell.folder} is of another study. {error}") from None
    saved = checkpoint.checkpoints(cell.folder)
    if saved and checkpoint.read_state(saved[-1]).data_digest != shards.digest:
        raise UserError(f"{cell.folder} was trained on other data: choose another --out.")


def train(cell: Cell, console: Console) -> int:
    """Start the cell's run, or go on with it; a finished one stays as it is."""
    if not (cell.folder / "config.yaml").is_file():
        return pretrain.start(cell.config, cell.folder, console)
    if finished(cell.folder):
        return 0
    return pretrain.resume(cell.folder, console, Path(cell.config.data.folder))


def finished(run: Path) -> bool:
    """Whether a run has spent its budget."""
    saved = checkpoint.checkpoints(run)
    if not saved:
        return False
    config, state = read_run_config(run), checkpoint.read_state(saved[-1])
    spent = state.rows * flops_per_row(config)
    budget = parse_budget(config.train.budget)
    progress = budget.progress(
        steps=state.step, tokens=state.tokens, flops=spent, seconds=state.seconds
    )
    return progress >= 1


def measured(
    cell: Cell,
    shards: Shards,
    before: Result | None,
    missing: Sequence[Source],
    console: Console,
) -> Result:
    """The line of a finished cell: what it cost, and the scores that it has and had."""
    config = read_run_config(cell.folder)
    state = checkpoint.read_state(checkpoint.checkpoints(cell.folder)[-1])
    ours, papers = row_costs(config)
    return {
        "study": cell.study,
        "arm": cell.arm.name,
        "seed": cell.seed,
        **cell.facts(shards.digest),
        "steps": state.step,
        "tokens": state.tokens,
        "flops": state.rows * ours,
        "paper_flops": state.rows * papers,
        "seconds": round(state.seconds, 1),
        "held_out": state.held_out,
        "scores": {
            **(before or {}).get("scores", {}),
            **{s.name: s.ask(cell.folder, console) for s in missing},
        },
        "hardware": hardware(choose_device(config.train.device)),
        "version": __version__,
        "torch": torch.__version__,
    }
