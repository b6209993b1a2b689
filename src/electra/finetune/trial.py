"""A task made ready, and its seeds trained, judged and kept."""

import copy
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from electra import __version__
from electra.device import choose_precision
from electra.errors import UserError
from electra.files import write_atomic
from electra.finetune.fit import Told, fit, steps
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
from electra.finetune.results import Result, add_result, rank, read_results
from electra.finetune.settings import FinetuneConfig
from electra.finetune.stack import unstack_
from electra.hub.heads import TaskCard, new_model, save_task_model
from electra.jsonl import to_json
from electra.models.encoder import Encoder
from electra.models.heads import DeepTextHead, TaskModel, TextHead
from electra.tasks.examples import Features, Task
from electra.text.tokenizer import Vocabulary, save_tokenizer, special_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where fine-tuning begins: an encoder with its tokenizer."""

    folder: Path
    encoder: Encoder
    tokenizer: Tokenizer
    vocab: Vocabulary


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
            values = np.asarray(features["train"].labels)
            scale = (float(values.min()), float(values.max()))
            if scale[0] == scale[1]:
                raise UserError(f"All values to learn are {scale[0]}: there is nothing to learn.")
            values = (values - scale[0]) / (scale[1] - scale[0])
            features["train"] = replace(features["train"], labels=values.astype(np.float32))
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
        return new_model(self.card, copy.deepcopy(self.start.encoder))

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
            write_atomic(folder / f"{split}.jsonl", text.encode())
        best = max([*read_results(out), result], key=rank)  # the first of equals
        if best is result or not (out / "model").is_dir():
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
            max_length=self.start.encoder.config.max_positions,
            names=special_names(self.start.folder),
        )
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)


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
        without_stops=task.without_stops,
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


def hardware(device: torch.device) -> str:
    """The device by name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} {device.type}, {torch.get_num_threads()} threads"
