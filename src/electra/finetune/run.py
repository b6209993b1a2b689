"""`electra finetune`: a model and a task in; scores, predictions and the best seed's model out."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from electra.config import to_dict
from electra.device import choose_device
from electra.errors import UserError
from electra.files import file_sha256
from electra.finetune.fit import Told
from electra.finetune.results import RESULTS, Result, check_same, digest, read_results
from electra.finetune.settings import FinetuneConfig, resolve
from electra.finetune.trial import Start, Trial
from electra.hub.folders import load_encoder, load_tokenizer_and_vocab
from electra.model_paths import resolve_model
from electra.run_dir import check_out_dir, lock_run_dir
from electra.tasks.examples import Task

FREE = ("at_once", "device", "precision")
"""Settings that say where and how fast, not what: results with others may stand side by side."""


def open_model(model: str) -> Start:
    """The encoder of a run, of a checkpoint, of a folder (fine-tuned ones too) or of a Hub name."""
    folder = resolve_model(model, "encoder")
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    return Start(folder=folder, encoder=load_encoder(folder), tokenizer=tokenizer, vocab=vocab)


def finetune(
    model: str,
    task: Task,
    out: Path,
    seeds: Sequence[int],
    config: FinetuneConfig,
    console: Console,
) -> list[Result]:
    """Train the seeds that are not done yet; returns the results of all that were asked for."""
    file = next((path for path in (out, *out.parents) if path.is_file()), None)
    if file:
        raise UserError(f"'{file}' is a file, and --out must be a folder: choose another.")
    check_out_dir(out, "results of fine-tuning", RESULTS, "predictions")  # a `model` is replaced
    start = open_model(model)
    config = resolve(config, start.encoder.config, task)
    same = {
        "task": task.name,
        "model_sha256": file_sha256(start.folder / "model.safetensors"),
        "data_digest": digest(task),
        "settings": {k: v for k, v in to_dict(config).items() if k not in FREE},
    }
    todo = unfinished(out, same, seeds)
    if len(todo) < len(seeds):
        kept = ", ".join(str(s) for s in seeds if s not in todo)
        console.print(
            f"{task.name}: done before, and kept: seed {kept}", highlight=False, markup=False
        )
    if todo:
        # What is wrong with the data shows here, before anything is written.
        device = choose_device(config.device, "device")
        trial = Trial.begin(start, task, config, device, same | {"model": model})
        tell_cuts(trial, console)
        with lock_run_dir(out):
            # Another process may have been faster.
            train_groups(trial, unfinished(out, same, todo), out, console)
    return [r for r in read_results(out) if r["seed"] in set(seeds)]


def unfinished(out: Path, same: Mapping[str, Any], seeds: Sequence[int]) -> list[int]:
    """The seeds that have no result yet; results of something else are refused."""
    done = read_results(out)
    check_same(out, done, same)
    return [seed for seed in seeds if seed not in {r["seed"] for r in done}]


def train_groups(trial: Trial, seeds: Sequence[int], out: Path, console: Console) -> None:
    """Train as many seeds together as is wanted."""
    config = trial.config
    at_once = config.at_once or (len(seeds) if trial.device.type == "cuda" else 1)
    groups = [seeds[i : i + at_once] for i in range(0, len(seeds), at_once)]
    with show_progress(console, trial.task.name, len(groups)) as told:
        for group in groups:
            try:
                trial.run(group, out, told)
            except torch.OutOfMemoryError:
                raise UserError(out_of_memory(len(group), config.batch)) from None


def tell_cuts(trial: Trial, console: Console) -> None:
    """Say how many examples lost tokens because they are too long."""
    for split, features in trial.features.items():
        if features.num_truncated:
            console.print(
                f"{trial.task.name}: {features.num_truncated:,} of "
                f"{len(trial.task.splits[split]):,} examples of {split} are longer than "
                f"{trial.config.length} tokens and were cut, "
                f"the first is '{trial.task.splits[split][features.first_truncated].id}'.",
                highlight=False,
                markup=False,
            )


def out_of_memory(together: int, batch: int) -> str:
    """What to do about too little memory on the device."""
    if together > 1:
        return (
            f"{together} seeds at once do not fit the memory of this device: set at_once="
            f"{together // 2}; the results are the same."
        )
    return f"A batch of {batch} does not fit the memory of this device: set a smaller batch."


@contextmanager
def show_progress(console: Console, name: str, groups: int) -> Iterator[Told]:
    """A bar over the steps of all groups of seeds."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        shown = bar.add_task(name, total=None)
        state = {"before": 0, "last": 0}

        def told(done: int, total: int) -> None:
            if done < state["last"]:  # the next group began
                state["before"] += total
            state["last"] = done
            bar.update(shown, completed=state["before"] + done, total=total * groups)

        yield told
