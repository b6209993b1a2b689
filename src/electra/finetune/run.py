"""`electra finetune`: scores, predictions and the model of the best seed, for one task."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from electra.config import to_dict
from electra.device import choose_device
from electra.errors import UserError
from electra.files import file_sha256
from electra.finetune.fit import ProgressFn
from electra.finetune.kinds import KINDS
from electra.finetune.kinds.base import truncation_message
from electra.finetune.results import RESULTS, Result, check_same, digest, read_results
from electra.finetune.settings import FinetuneConfig
from electra.finetune.task_run import PretrainedEncoder, TaskRun
from electra.hub.folders import load_encoder, load_tokenizer_and_vocab
from electra.model_paths import resolve_model
from electra.models.encoder import EncoderConfig
from electra.run_dir import check_out_dir, lock_run_dir
from electra.tasks.examples import Task

HARDWARE_SETTINGS = ("parallel_seeds", "device", "precision")
"""Settings that change where and how fast, not what is learned; their results may be mixed."""


def load_pretrained(model: str) -> PretrainedEncoder:
    """The encoder of a run, a checkpoint, a model folder (also a fine-tuned one) or a Hub name."""
    folder = resolve_model(model, "encoder")
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    encoder = load_encoder(folder)
    return PretrainedEncoder(folder=folder, encoder=encoder, tokenizer=tokenizer, vocab=vocab)


def resolve_settings(config: FinetuneConfig, model: EncoderConfig, task: Task) -> FinetuneConfig:
    """Replace every 0 by the default for the model size and the task."""
    large, base = model.hidden >= 1024, 512 <= model.hidden < 1024
    max_length = min(config.max_length or task.max_length, model.max_positions)
    return replace(
        config,
        lr=config.lr or (5e-5 if large else 1e-4 if base else 3e-4),
        layer_decay=config.layer_decay or (0.9 if large else 0.8),
        epochs=config.epochs or default_epochs(task, config.batch_size),
        dropout=KINDS[task.kind].head_dropout(config.head, config.dropout),
        max_length=max_length,
        # windows must overlap
        doc_stride=min(config.doc_stride, max(1, max_length // 2)),
    )


def default_epochs(task: Task, batch_size: int) -> float:
    """The task's number of epochs, or as many as its fewest steps need."""
    if not task.min_steps:
        return task.epochs
    examples = len(task.splits["train"])
    steps_per_epoch = examples // min(batch_size, examples)
    return max(task.epochs, math.ceil(task.min_steps / steps_per_epoch))


def finetune(
    model: str,
    task: Task,
    out: Path,
    seeds: Sequence[int],
    config: FinetuneConfig,
    console: Console,
    *,
    warn_truncation: bool = True,
) -> list[Result]:
    """Train the seeds that have no result yet; returns the results of all requested seeds."""
    check_out_dir(out, "results of fine-tuning", RESULTS, "predictions")  # a `model` is replaced
    pretrained = load_pretrained(model)
    config = resolve_settings(config, pretrained.encoder.config, task)
    origin = {
        "task": task.name,
        "model_sha256": file_sha256(pretrained.folder / "model.safetensors"),
        "data_digest": digest(task),
        "settings": {k: v for k, v in to_dict(config).items() if k not in HARDWARE_SETTINGS},
    }
    todo = unfinished(out, origin, seeds)
    if len(todo) < len(seeds):
        kept = ", ".join(str(s) for s in seeds if s not in todo)
        console.print(f"{task.name}: already done: seed {kept}", highlight=False, markup=False)
    if todo:
        # Tokenize first: errors in the data show before anything is written.
        device = choose_device(config.device, "device")
        run = TaskRun.prepare(pretrained, task, config, device, origin | {"model": model})
        if warn_truncation:
            warn_truncated(run, console)
        with lock_run_dir(out):
            # Another process may have finished some of them.
            train_groups(run, unfinished(out, origin, todo), out, console)
    results = [r for r in read_results(out) if r["seed"] in set(seeds)]
    check_diverged(results, config, out)
    return results


def unfinished(out: Path, origin: Mapping[str, Any], seeds: Sequence[int]) -> list[int]:
    """The seeds without a result; refuses results of another model, task or configuration."""
    results = read_results(out)
    check_same(out, results, origin, FinetuneConfig.RENAMED_KEYS)
    done = {result["seed"] for result in results}
    return [seed for seed in seeds if seed not in done]


def train_groups(run: TaskRun, seeds: Sequence[int], out: Path, console: Console) -> None:
    """Train the seeds in groups of `parallel_seeds`."""
    groups = seed_groups(run, seeds)
    with show_progress(console, run.task.name, len(groups)) as progress:
        for group in groups:
            try:
                run.train(group, out, progress)
            except torch.OutOfMemoryError:
                raise UserError(out_of_memory(len(group), run.config.batch_size)) from None


def seed_groups(run: TaskRun, seeds: Sequence[int]) -> list[Sequence[int]]:
    """Split the seeds into those that are trained at the same time."""
    size = run.config.parallel_seeds or (len(seeds) if run.device.type == "cuda" else 1)
    return [seeds[i : i + size] for i in range(0, len(seeds), size)] if seeds else []


def check_diverged(results: Sequence[Result], config: FinetuneConfig, out: Path) -> None:
    """Refuse to report anything if training diverged for every seed."""
    if results and all(result.get("diverged") for result in results):
        raise UserError(
            f"Training diverged for every seed: the weights are NaN or infinite, and {out} has no "
            f"model. Set a lower lr (it was {config.lr:g}) and choose another --out."
        )


def warn_truncated(run: TaskRun, console: Console) -> None:
    """Print how many examples were truncated."""
    for split, features in run.features.items():
        if features.num_truncated:
            examples = run.task.splits[split]
            first = examples[features.first_truncated].id
            message = truncation_message(run.kind, features.num_truncated, len(examples), first)
            console.print(f"{run.task.name}, {split}: {message}", highlight=False, markup=False)


def out_of_memory(parallel_seeds: int, batch_size: int) -> str:
    """What to do about too little device memory."""
    if parallel_seeds > 1:
        return (
            f"{parallel_seeds} seeds at the same time do not fit in the memory of this device: set "
            f"parallel_seeds={parallel_seeds // 2}; the results stay the same."
        )
    return (
        f"A batch of {batch_size} does not fit in the memory of this device: set a smaller "
        "batch_size."
    )


@contextmanager
def show_progress(console: Console, name: str, groups: int) -> Iterator[ProgressFn]:
    """A progress bar over the steps of all groups of seeds."""
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

        def progress(done: int, total: int) -> None:
            if done <= state["last"]:  # the next group began, perhaps at its only report
                state["before"] += total
            state["last"] = done
            bar.update(shown, completed=state["before"] + done, total=total * groups)

        yield progress
