"""Score checkpoints on a task while a run trains: the function that `electra pretrain` gets."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from electra.config import to_dict
from electra.device import choose_device
from electra.errors import UserError
from electra.finetune.results import digest, summary
from electra.finetune.run import (
    HARDWARE_SETTINGS,
    load_pretrained,
    out_of_memory,
    resolve_settings,
    seed_groups,
)
from electra.finetune.settings import FinetuneConfig
from electra.finetune.task_run import PretrainedEncoder, TaskRun
from electra.jsonl import to_json
from electra.models.encoder import Encoder
from electra.tasks.examples import Task
from electra.tasks.infer_task import infer_task
from electra.tasks.load import load_task
from electra.text.tokenizer import load_tokenizer, load_vocabulary
from electra.train.scoring import ProgressFn, ScoreOnConfig, Scorer
from electra.train.settings import PretrainConfig


def make_scorer(
    config: PretrainConfig, tokenizer: Path, warn: Callable[[Sequence[str]], None]
) -> Scorer:
    """Read and tokenize the task of a run, which shows what is wrong with it before it trains."""
    settings = config.score_on
    kind, task = load_scored_task(settings)
    warn(task.warnings)
    tuning = FinetuneConfig(
        lr=settings.finetune_lr,
        epochs=settings.finetune_epochs,
        device=config.train.device,
        precision=config.train.precision,
    )
    tuning = resolve_settings(tuning, config.model, task)
    with torch.device("meta"):  # only its sizes; each checkpoint brings the weights
        encoder = Encoder(config.model)
    start = PretrainedEncoder(
        folder=tokenizer,
        encoder=encoder,
        tokenizer=load_tokenizer(tokenizer),
        vocab=load_vocabulary(tokenizer),
    )
    device = choose_device(config.train.device)
    run = TaskRun.prepare(start, task, tuning, device, {"task": task.name})

    def score(checkpoint: Path, progress: ProgressFn) -> dict[str, Any]:
        now = replace(run, pretrained=load_pretrained(str(checkpoint)))
        return score_task(now, range(settings.seeds), progress)

    every = "each checkpoint" if settings.every == 1 else f"one in {settings.every} checkpoints"
    train, dev = (f"{len(task.splits[split]):,}" for split in ("train", "dev"))
    return Scorer(
        name=task.name,
        metric=task.metric,
        description=(
            f"Scores: {every} is fine-tuned on {task.name} ({kind}, {train} examples, "
            f"{settings.seeds} seeds) and scored on {dev} others by {task.metric}. The run's clock "
            "stands still meanwhile."
        ),
        origin=identity(task, tuning, settings.seeds),
        score=score,
    )


def load_scored_task(settings: ScoreOnConfig) -> tuple[str, Task]:
    """The kind of the task and its examples, without test sets, which no choice should rest on."""
    data = Path(settings.data)
    kind = settings.task or infer_task(data, settings.label or None)
    named = {key: getattr(settings, key) or None for key in ("text", "pair", "label")}
    try:
        task = load_task(kind, data, **named)
    except UserError as error:  # options that are settings here
        text = str(error)
        for key in named:
            text = text.replace(f"--{key}", f"score_on.{key}")
        raise UserError(text) from None
    return kind, replace(task, splits={name: task.splits[name] for name in ("train", "dev")})


def score_task(run: TaskRun, seeds: Sequence[int], progress: ProgressFn) -> dict[str, Any]:
    """Fine-tune with each seed; returns the median, the range and the number of failed seeds."""
    groups = seed_groups(run, seeds)
    results = []
    for number, group in enumerate(groups):

        def report(done: int, total: int, before: int = number) -> None:
            progress(before * total + done, len(groups) * total)

        try:
            results += [trained.result for trained in run.fit_seeds(group, report)]
        except torch.OutOfMemoryError:
            raise UserError(out_of_memory(len(group), run.config.batch_size)) from None
    found = summary(results)
    if not math.isfinite(found["median"]) or all(result["diverged"] for result in results):
        raise UserError(
            f"Fine-tuning diverged (lr was {run.config.lr:g}; see score_on.finetune_lr)."
        )
    return {
        "score": found["median"],
        "lowest": found["lowest"],
        "highest": found["highest"],
        "seeds": found["seeds"],
        "failed": len(found["failed"]),
    }


def identity(task: Task, config: FinetuneConfig, seeds: int) -> str:
    """A hash of what a score depends on, except for the checkpoint."""
    settings = {k: v for k, v in to_dict(config).items() if k not in HARDWARE_SETTINGS}
    text = to_json({"task": task.name, "data": digest(task), "seeds": seeds, **settings})
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
