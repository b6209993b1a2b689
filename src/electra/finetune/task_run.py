"""One task, ready to train: tokenized once, then trained, scored and saved seed by seed."""

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from electra import __version__
from electra.device import choose_precision, device_name
from electra.files import make_folder, new_folder, remove_temporary, write_atomic
from electra.finetune.fit import ProgressFn, count_steps, fit
from electra.finetune.infer import infer
from electra.finetune.kinds import KINDS, make_kind
from electra.finetune.kinds.base import Record, Scale, TaskKind
from electra.finetune.results import Result, add_result, rank, read_results
from electra.finetune.settings import FinetuneConfig
from electra.finetune.stack import finite_seeds, unstack_
from electra.finetune.task_model import new_task_model, save_task_model
from electra.hub.heads import TaskCard
from electra.jsonl import to_json
from electra.models.encoder import Encoder
from electra.models.heads import TaskModel
from electra.tasks.examples import Features, Task
from electra.text.tokenizer import Vocabulary, save_tokenizer, special_names


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedEncoder:
    """The encoder that fine-tuning starts from, with its tokenizer."""

    folder: Path
    encoder: Encoder
    tokenizer: Tokenizer
    vocab: Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSeed:
    """What training one seed gives."""

    stacked: TaskModel
    """The networks of all seeds that were trained together."""
    place: int
    """Which of them it is."""
    records: Mapping[str, list[Record]]
    """Predictions by split."""
    result: Result


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRun:
    """A tokenized task; all seeds share its rows."""

    pretrained: PretrainedEncoder
    task: Task
    kind: TaskKind
    config: FinetuneConfig
    features: Mapping[str, Features]
    device: torch.device
    dtype: torch.dtype
    origin: Mapping[str, Any]
    """Fields of every result: the task, the model, the data and the settings."""
    scale: Scale

    @classmethod
    def prepare(
        cls,
        pretrained: PretrainedEncoder,
        task: Task,
        config: FinetuneConfig,
        device: torch.device,
        origin: Mapping[str, Any],
    ) -> "TaskRun":
        """Tokenize all splits and check that there is something to train on."""
        kind = make_kind(make_card(task, config))
        kit = pretrained.tokenizer, pretrained.vocab
        features = {
            split: kind.featurize_train(task, *kit)
            if split == "train"
            else kind.featurize(examples, *kit)
            for split, examples in task.splits.items()
        }
        features["train"], scale = kind.normalize_targets(features["train"])
        count_steps(features["train"], config)  # refuses less than one step
        return cls(
            pretrained=pretrained,
            task=task,
            kind=kind,
            config=config,
            features=features,
            device=device,
            dtype=choose_precision(config.precision, device),
            origin=origin,
            scale=scale,
        )

    def build_model(self, seed: int) -> TaskModel:
        """The pre-trained encoder with a head that this seed initializes."""
        torch.manual_seed(seed)
        return new_task_model(self.kind.card, copy.deepcopy(self.pretrained.encoder))

    def train(self, seeds: Sequence[int], out: Path, progress: ProgressFn) -> None:
        """Train these seeds at the same time and write what each of them gives."""
        for trained in self.fit_seeds(seeds, progress):
            self.save(out, trained)

    def fit_seeds(self, seeds: Sequence[int], progress: ProgressFn) -> Iterator[TrainedSeed]:
        """Train these seeds at the same time and score each of them."""
        began = time.monotonic()
        pad_id = self.pretrained.vocab.pad
        stacked = fit(
            [self.build_model(seed) for seed in seeds],
            self.features["train"],
            self.kind,
            self.config,
            seeds,
            pad_id=pad_id,
            device=self.device,
            dtype=self.dtype,
            progress=progress,
        )
        self.kind.denormalize_(stacked.head, self.scale)
        trained = time.monotonic() - began
        outputs = {
            split: infer(
                stacked,
                features,
                self.kind,
                pad_id=pad_id,
                device=self.device,
                dtype=self.dtype,
                seeds=len(seeds),
            )
            for split, features in self.features.items()
            if split != "train"
        }
        finite = finite_seeds(stacked)
        for place, seed in enumerate(seeds):
            own = {split: arrays[place] for split, arrays in outputs.items()}
            records = {
                split: self.kind.decode(self.features[split], self.task.splits[split], arrays)
                for split, arrays in own.items()
            }
            diverged = not finite[place] or any(map(self.kind.diverged, own.values()))
            seconds = (time.monotonic() - began) / len(seeds)
            result = self.score(seed, records, diverged) | {
                "seconds": round(seconds, 2),
                "training_seconds": round(trained / len(seeds), 2),
                "together": len(seeds),
            }
            yield TrainedSeed(stacked=stacked, place=place, records=records, result=result)

    def score(self, seed: int, records: Mapping[str, list[Record]], diverged: bool) -> Result:
        """The result of a seed; metrics of splits other than dev have the split in front."""
        metrics: dict[str, float] = {}
        for split, examples in self.task.splits.items():
            if split != "train" and all(map(self.kind.is_labelled, examples)):
                prefix = "" if split == "dev" else f"{split}_"
                scores = self.kind.score(self.task, examples, records[split])
                metrics |= {f"{prefix}{name}": value for name, value in scores.items()}
        return {
            **self.origin,
            "seed": seed,
            "metric": self.task.metric,
            "score": metrics[self.task.metric],
            **metrics,
            "failed": diverged or self.kind.failed(self.task, records["dev"], metrics),
            "diverged": diverged,
            "hardware": device_name(self.device),
            "version": __version__,
        }

    def save(self, out: Path, trained: TrainedSeed) -> None:
        """Write the predictions, the model if it is the best so far, and last the result."""
        result, seed = trained.result, trained.result["seed"]
        folder = out / "predictions" / f"seed-{seed}"
        make_folder(folder)
        remove_temporary(folder)
        for split, lines in trained.records.items():
            text = "".join(to_json(line) + "\n" for line in lines)
            write_atomic(folder / f"{split}.jsonl", text.encode())
        best = max([*read_results(out), result], key=rank)  # the first of equals
        if not result["diverged"] and (best is result or not (out / "model").is_dir()):
            network = self.build_model(seed)
            unstack_(network, trained.stacked, trained.place)
            threshold = result.get("best_f1_threshold", 0.0)
            card = replace(self.kind.card, null_threshold=threshold)
            self.save_model(network, card, out / "model")
        add_result(out, result)

    def save_model(self, network: TaskModel, card: TaskCard, folder: Path) -> None:
        """Replace the model folder, completely or not at all."""
        with new_folder(folder) as staging:
            save_task_model(network, staging, card, self.pretrained.vocab.pad)
            save_tokenizer(
                self.pretrained.tokenizer,
                staging,
                max_length=self.pretrained.encoder.config.max_positions,
                names=special_names(self.pretrained.folder),
            )


def make_card(task: Task, config: FinetuneConfig) -> TaskCard:
    """The card of a model for this task."""
    return TaskCard(
        name=task.name,
        kind=task.kind,
        labels=list(task.labels),
        metric=task.metric,
        head=config.head,
        pool=config.pool,
        dropout=config.dropout,
        max_length=config.max_length,
        columns=dict(task.columns),
        without_stops=task.without_stops,
        doc_stride=config.doc_stride,
        max_question_length=config.max_question_length,
        max_answer_length=config.max_answer_length,
        beam_size=config.beam_size,
        **KINDS[task.kind].card_fields(task),
    )
