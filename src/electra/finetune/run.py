"""`electra finetune`: a model and a task in; scores, predictions and the best seed's model out."""

import copy
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from electra import __version__
from electra.config import to_dict
from electra.errors import UserError
from electra.finetune.fit import Progress as Told
from electra.finetune.fit import fit, steps
from electra.finetune.infer import infer
from electra.finetune.judge import (
    Record,
    answers,
    encode,
    failed,
    labelled,
    may_be_none,
    score,
)
from electra.finetune.results import (
    Result,
    add_result,
    check_same,
    digest,
    read_results,
    to_json,
)
from electra.finetune.settings import FinetuneConfig, resolve
from electra.finetune.stack import unstack_
from electra.hub.ask import locate
from electra.hub.folders import load_encoder
from electra.hub.heads import TaskCard, save_task_model
from electra.models.encoder import Encoder
from electra.models.heads import DeepTextHead, TaskModel, TextHead, build_head
from electra.tasks.examples import Features, Task
from electra.text.files import file_sha256, write_whole
from electra.text.tokenizer import (
    Vocabulary,
    load_tokenizer,
    load_vocabulary,
    save_tokenizer,
    special_names,
)
from electra.train.device import choose_device, choose_precision
from electra.train.folder import run_folder

FREE = ("at_once", "device", "precision")
"""Settings that say where and how fast, not what: results with others may stand side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where fine-tuning begins: an encoder with its tokenizer."""

    folder: Path
    encoder: Encoder
    tokenizer: Tokenizer
    vocab: Vocabulary


def open_model(model: str) -> Start:
    """The encoder of a run, of a checkpoint, of a folder (fine-tuned ones too) or of a Hub name."""
    folder = locate(model, "encoder")
    return Start(
        folder=folder,
        encoder=load_encoder(folder),
        tokenizer=load_tokenizer(folder),
        vocab=load_vocabulary(folder),
    )


def finetune(
    model: str,
    task: Task,
    out: Path,
    seeds: Sequence[int],
    config: FinetuneConfig,
    console: Console,
) -> list[Result]:
    """Train the seeds that are not done yet; returns the results of all that were asked for."""
    if out.exists() and not out.is_dir():
        raise UserError(f"'{out}' is a file: choose another --out.")
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
        console.print(f"{task.name}: done before, and kept: seed {kept}", highlight=False)
    if todo:
        # What is wrong with the data shows here, before anything is written.
        device = choose_device(config.device, "device")
        trial = Trial.begin(start, task, config, device, same | {"model": model})
        tell_cuts(trial, console)
        with run_folder(out):
            # Another process may have been faster.
            train_groups(trial, unfinished(out, same, todo), out, console)
    return [r for r in read_results(out) if r["seed"] in set(seeds)]


def unfinished(out: Path, same: Mapping[str, Any], seeds: Sequence[int]) -> list[int]:
    """The seeds that have no result yet; results of something else are refused."""
    done = read_results(out)
    check_same(out, done, same)
    return [seed for seed in seeds if seed not in {r["seed"] for r in done}]


def train_groups(trial: "Trial", seeds: Sequence[int], out: Path, console: Console) -> None:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A task made ready: its rows are the same for all seeds."""

    start: Start
    task: Task
    config: FinetuneConfig
    card: TaskCard
    features: Mapping[str, Features]
    device: torch.device
    dtype: torch.dtype
    facts: Mapping[str, Any]
    scale: tuple[float, float]
    """Lowest and highest value of a regression's training labels, learned as 0 and 1."""

    @classmethod
    def begin(
        cls,
        start: Start,
        task: Task,
        config: FinetuneConfig,
        device: torch.device,
        facts: Mapping[str, Any],
    ) -> "Trial":
        card = make_card(task, config)
        features = {
            split: encode(
                card,
                examples,
                start.tokenizer,
                start.vocab,
                training=split == "train",
                swap=split == "train" and task.swap,
            )
            for split, examples in task.splits.items()
        }
        scale = (0.0, 1.0)
        if task.kind == "regress":
            values = np.asarray(features["train"].target)
            scale = (float(values.min()), float(values.max()))
            if scale[0] == scale[1]:
                raise UserError(f"All values to learn are {scale[0]}: there is nothing to learn.")
            values = (values - scale[0]) / (scale[1] - scale[0])
            features["train"] = replace(features["train"], target=values.astype(np.float32))
        steps(features["train"], config)  # enough for one
        return cls(
            start=start,
            task=task,
            config=config,
            card=card,
            features=features,
            device=device,
            dtype=choose_precision(config.precision, device),
            facts=facts,
            scale=scale,
        )

    def network(self, seed: int) -> TaskModel:
        """The encoder with a head that this seed initialises."""
        torch.manual_seed(seed)
        encoder = copy.deepcopy(self.start.encoder)
        card = self.card
        head = build_head(
            card.kind,
            encoder,
            card.outputs,
            head=card.head,
            pool=card.pool,
            dropout=card.dropout,
        )
        return TaskModel(encoder, head)

    def run(self, seeds: Sequence[int], out: Path, told: Told) -> None:
        """Train these seeds together, and write down what came of each."""
        began = time.monotonic()
        pad = self.start.vocab.pad
        whole = fit(
            [self.network(seed) for seed in seeds],
            self.features["train"],
            self.task.kind,
            self.config,
            seeds,
            pad_id=pad,
            device=self.device,
            dtype=self.dtype,
            progress=told,
        )
        unscale_(whole, self.scale)
        trained = time.monotonic() - began
        found = {
            split: infer(
                whole,
                features,
                self.task.kind,
                pad_id=pad,
                device=self.device,
                dtype=self.dtype,
                seeds=len(seeds),
                beam=self.config.beam,
            )
            for split, features in self.features.items()
            if split != "train"
        }
        for place, seed in enumerate(seeds):
            records = {
                split: answers(
                    self.card, self.features[split], self.task.splits[split], arrays[place]
                )
                for split, arrays in found.items()
            }
            seconds = (time.monotonic() - began) / len(seeds)
            result = self.judged(seed, records) | {
                "seconds": round(seconds, 2),
                "training_seconds": round(trained / len(seeds), 2),
                "together": len(seeds),
            }
            self.keep(out, seed, whole, place, records, result)

    def judged(self, seed: int, records: Mapping[str, list[Record]]) -> Result:
        """The result line of a seed: metrics of dev by their names, of other splits with theirs."""
        metrics: dict[str, float] = {}
        for split, examples in self.task.splits.items():
            if split != "train" and labelled(self.task.kind, examples):
                prefix = "" if split == "dev" else f"{split}_"
                scores = score(self.task, self.card, examples, records[split])
                metrics |= {f"{prefix}{name}": value for name, value in scores.items()}
        return {
            **self.facts,
            "seed": seed,
            "metric": self.task.metric,
            "score": metrics[self.task.metric],
            **metrics,
            "failed": failed(self.task, records["dev"], metrics),
            "hardware": hardware(self.device),
            "version": __version__,
        }

    def keep(
        self,
        out: Path,
        seed: int,
        whole: TaskModel,
        place: int,
        records: Mapping[str, list[Record]],
        result: Result,
    ) -> None:
        """Predictions, the model if it is the best so far, and last the line that says 'done'."""
        for split, lines in records.items():
            folder = out / "predictions" / f"seed-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            text = "".join(to_json(line) + "\n" for line in lines)
            write_whole(folder / f"{split}.jsonl", text.encode())
        if not (out / "model").is_dir() or all(better(result, r) for r in read_results(out)):
            network = self.network(seed)
            unstack_(network, whole, place)
            card = replace(self.card, null_threshold=result.get("best_f1_threshold", 0.0))
            self.save(network, card, out / "model")
        add_result(out, result)

    def save(self, network: TaskModel, card: TaskCard, folder: Path) -> None:
        """Put a model folder in the place of the one before, whole or not at all."""
        new = folder.with_name(".model.tmp")
        shutil.rmtree(new, ignore_errors=True)
        save_task_model(network, new, card, self.start.vocab.pad)
        save_tokenizer(
            self.start.tokenizer,
            new,
            max_length=self.start.encoder.config.positions,
            names=special_names(self.start.folder),
        )
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


def better(one: Result, other: Result) -> bool:
    """Whether a seed's model is to be kept rather than another's: one that learned, if any did."""
    return (not one["failed"], one["score"]) > (not other["failed"], other["score"])


def make_card(task: Task, config: FinetuneConfig) -> TaskCard:
    """What is written beside a model of this task."""
    some = task.splits["train"][:1]
    return TaskCard(
        name=task.name,
        kind=task.kind,
        labels=list(task.labels),
        metric=task.metric,
        head=config.head,
        pool=config.pool,
        dropout=config.dropout,
        length=config.length,
        columns=dict(task.columns),
        pairs=task.kind == "choice" or any(e.pair for e in some if hasattr(e, "pair")),
        maybe_none=may_be_none(task),
        stride=config.stride,
        longest_question=config.longest_question,
        longest_answer=config.longest_answer,
        beam=config.beam,
    )


@torch.no_grad()
def unscale_(model: TaskModel, scale: tuple[float, float]) -> None:
    """Let the last layer of a regression speak in the units of the labels."""
    low, high = scale
    if scale != (0.0, 1.0) and isinstance(model.head, TextHead | DeepTextHead):
        model.head.output.weight.mul_(high - low)
        model.head.output.bias.mul_(high - low).add_(low)


def tell_cuts(trial: Trial, console: Console) -> None:
    """Say how many examples lost tokens because they are too long."""
    for split, features in trial.features.items():
        if features.cut:
            console.print(
                f"{trial.task.name}: {features.cut:,} of {len(trial.task.splits[split]):,} "
                f"examples of {split} are longer than {trial.config.length} tokens and were cut.",
                highlight=False,
            )


def out_of_memory(together: int, batch: int) -> str:
    """What to do about too little memory on the device."""
    if together > 1:
        return (
            f"{together} seeds at once do not fit the memory of this device: set at_once="
            f"{together // 2}; the results are the same."
        )
    return f"A batch of {batch} does not fit the memory of this device: set a smaller batch."


def hardware(device: torch.device) -> str:
    """The device by name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {torch.get_num_threads()} threads"


@contextmanager
def show_progress(console: Console, name: str, groups: int) -> Iterator[Told]:
    """A bar over the steps of all groups of seeds."""
    columns = (
        TextColumn("{task.description}"),
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
