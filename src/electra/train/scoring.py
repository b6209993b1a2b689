"""Checkpoints scored on your own task in the course of a run.

Fine-tuning builds on this package, so it is passed in as a function (`MakeScorer`).
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from electra.device import random_state, set_random_state
from electra.errors import UserError
from electra.run_dir import GracefulStop
from electra.train import checkpoint
from electra.train.metrics_log import read_metrics
from electra.train.progress_view import clock

if TYPE_CHECKING:
    from electra.train.run import Run
    from electra.train.settings import PretrainConfig

ProgressFn = Callable[[int, int], None]
"""Called with the steps done and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOnConfig:
    """Scores on a task of your own while the run trains."""

    data: str = ""
    """The task's file or folder, on which checkpoints are fine-tuned and scored; `--score-on` sets
    it. Empty: no scores."""
    task: str = ""
    """The task, as in `electra finetune`; `--score-task` sets it. Empty: from the columns."""
    text: str = ""
    """Column of the text or question; empty: by its usual names."""
    pair: str = ""
    """Column of the second text or context; for `choice` the columns of the options."""
    label: str = ""
    """Column of the label or answer."""
    seeds: int = 3
    """Seeds per score; a score is their median."""
    every: int = 1
    """Score every n-th checkpoint; the last one always."""
    finetune_epochs: float = 0.0
    """Passes over the training examples; 0 takes the task's default."""
    finetune_lr: float = 0.0
    """Peak learning rate of fine-tuning; 0 takes the paper's for the model size."""

    def __post_init__(self) -> None:
        for name in ("seeds", "every"):
            if getattr(self, name) < 1:
                raise UserError(f"score_on.{name} must be at least 1.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """A task, read and tokenized, on which checkpoints are scored."""

    name: str
    metric: str
    description: str
    origin: str
    """Identity of data and settings: only scores of the same origin are compared."""
    score: Callable[[Path, ProgressFn], Mapping[str, Any]]
    """Fine-tune a checkpoint; returns `score`, `lowest`, `highest`, `seeds` and `failed`."""


MakeScorer = Callable[["PretrainConfig", Path], Scorer]
"""Called with the configuration and the folder of the tokenizer."""


class ScoringStopped(Exception):
    """A signal arrived while a checkpoint was scored."""


def prepare_scoring(
    config: "PretrainConfig", tokenizer: Path, make_scorer: MakeScorer | None
) -> tuple["PretrainConfig", Scorer | None]:
    """Read the task before anything is trained; returns the configuration with its whole path."""
    settings = config.score_on
    if not settings.data:
        return config, None
    if make_scorer is None:
        raise UserError("score_on.data is for electra pretrain: leave it out here.")
    path = Path(settings.data).expanduser().resolve()  # to resume from anywhere
    if not path.exists():
        raise UserError(
            f"There is no file or folder '{path}' to score on: check --score-on, or turn scores "
            "off with score_on.data="
        )
    config = replace(config, score_on=replace(settings, data=str(path)))
    return config, make_scorer(config, tokenizer)


def score_checkpoint(run: "Run", stop: GracefulStop, *, last: bool = False) -> float:
    """Score the checkpoint of this step if that is due; returns the seconds it took.

    The run's weights and random numbers stay as they are. A failure is a warning. With several
    ranks the first one scores, and the others wait.
    """
    if run.scorer is None:
        return 0.0
    if run.saver is not None:
        run.saver.wait()
    return run.ranks.broadcast(_score(run, stop, last) if run.ranks.first else 0.0)


def _score(run: "Run", stop: GracefulStop, last: bool) -> float:
    scorer, state = run.scorer, run.state
    folder = checkpoint.path_of(run.folder, state.step)
    if scorer is None or stop.signal is not None or not is_due(run, scorer, folder, last):
        return 0.0

    def progress(done: int, total: int) -> None:
        if stop.signal is not None:
            raise ScoringStopped  # the resumed run scores this checkpoint
        status = f"step {state.step:,}, scoring {done:,} of {total:,} steps"
        run.view.update(progress=run.progress, seconds=state.seconds, status=status)

    began = time.perf_counter()
    before = random_state(run.step.device)
    try:
        found = dict(scorer.score(folder, progress))
        log_score(run, scorer, found | {"seconds": round(time.perf_counter() - began, 2)})
    except ScoringStopped:
        pass
    except Exception as error:  # whatever it is, the run is worth more than a score
        reason = str(error).strip() or type(error).__name__
        warning = f"The checkpoint of step {state.step:,} was not scored: {reason}"
        run.metrics_log.write("event", state.step, message=warning)
        run.view.print(f"warning: {warning}", style="yellow")
    finally:
        set_random_state(before)
        if run.step.device.type == "cuda":
            torch.cuda.empty_cache()
    prune_checkpoints(run)
    return time.perf_counter() - began


def is_due(run: "Run", scorer: Scorer, folder: Path, last: bool) -> bool:
    """Whether the schedule has the checkpoint, and it has no such score yet."""
    step = run.state.step
    if not last and step % (run.loop.checkpoint_every * run.score_every):
        return False
    done = {(line["step"], line["origin"]) for line in score_lines(read_metrics(run.folder))}
    return folder.is_dir() and (step, scorer.origin) not in done


def log_score(run: "Run", scorer: Scorer, found: Mapping[str, Any]) -> None:
    """Write a score to `metrics.jsonl` and print it."""
    step = run.state.step
    run.metrics_log.write(
        "score", step, task=scorer.name, metric=scorer.metric, origin=scorer.origin, **found
    )
    best = best_scores(read_metrics(run.folder))[scorer.origin]
    spread = f", {found['lowest']:.4f} to {found['highest']:.4f}" if found["seeds"] > 1 else ""
    failed = f", {found['failed']} learned nothing" if found["failed"] else ""
    place = "the best so far" if best["step"] == step else f"best: step {best['step']:,}"
    run.view.print(
        f"Step {step:,}: {scorer.metric} {found['score']:.4f} on {scorer.name} (seeds: "
        f"{found['seeds']}{spread}{failed}; {place}). Scored in {clock(found['seconds'])}, while "
        "the run's clock stood still."
    )


def score_lines(metrics: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The lines of `metrics.jsonl` with a score."""
    return [line for line in metrics if line["kind"] == "score"]


def best_scores(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The best score of each origin, the last origin last; of equal scores the later one."""
    best: dict[str, Mapping[str, Any]] = {}
    for line in score_lines(metrics):
        before = best.pop(line["origin"], line)
        best[line["origin"]] = max(line, before, key=lambda each: (each["score"], each["step"]))
    return best


def describe_best(metrics: Iterable[Mapping[str, Any]]) -> str:
    """A phrase that names the best checkpoint on the task scored last, or nothing."""
    scores = list(best_scores(metrics).values())
    if not scores:
        return ""
    best = scores[-1]
    return (
        f"best on {best['task']}: step-{best['step']:08d}, {best['metric']} {best['score']:.4f} "
        f"(median of {best['seeds']})"
    )


def prune_checkpoints(run: "Run") -> None:
    """Delete old checkpoints, but none that has the best score on a task."""
    best = best_scores(read_metrics(run.folder)).values()
    checkpoint.prune(
        run.folder,
        run.state,
        keep_last=run.loop.keep_last,
        keep_best=run.loop.keep_best,
        keep={int(line["step"]) for line in best},
    )
