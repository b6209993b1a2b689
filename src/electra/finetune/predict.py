"""`electra predict`: apply a fine-tuned model to new texts."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from electra.device import Device, Precision, choose_device, choose_precision
from electra.finetune.infer import infer
from electra.finetune.kinds import make_kind
from electra.finetune.kinds.base import Record, TaskKind, truncation_message
from electra.finetune.task_model import load_task_model
from electra.hub.folders import load_tokenizer_and_vocab
from electra.hub.heads import TaskCard
from electra.model_paths import resolve_model
from electra.models.heads import TaskModel
from electra.tasks.glue import strip_full_stops
from electra.text.tokenizer import Vocabulary

CHUNK = 20_000
"""Examples tokenized at a time, to bound the memory."""

Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """A fine-tuned model on its device, with its tokenizer."""

    network: TaskModel
    kind: TaskKind
    tokenizer: Tokenizer
    vocab: Vocabulary
    device: torch.device
    dtype: torch.dtype

    @property
    def card(self) -> TaskCard:
        return self.kind.card

    @property
    def reads_pairs(self) -> bool:
        """Whether an example has two texts."""
        return self.card.pairs or bool(self.card.columns.get("pair"))

    def predict(
        self, examples: Sequence[Any], warn: Warn = lambda message: None
    ) -> Iterator[Record]:
        """Yield one record per example; `warn` is told at the end how many were truncated."""
        if self.card.without_stops:
            examples = [strip_full_stops(example) for example in examples]
        truncated, first = 0, ""
        for begin in range(0, len(examples), CHUNK):
            chunk = examples[begin : begin + CHUNK]
            features = self.kind.featurize(chunk, self.tokenizer, self.vocab)
            if features.num_truncated:
                first = first or chunk[features.first_truncated].id
                truncated += features.num_truncated
            (outputs,) = infer(
                self.network,
                features,
                self.kind,
                pad_id=self.vocab.pad,
                device=self.device,
                dtype=self.dtype,
            )
            records = self.kind.decode(features, chunk, outputs)
            for example, record in zip(chunk, records, strict=True):
                yield self.kind.finalize(example, record)
        if truncated:
            warn(truncation_message(self.kind, truncated, len(examples), first))


def load_predictor(folder: Path, device: torch.device, dtype: torch.dtype) -> Predictor:
    """Load a fine-tuned model."""
    network, card = load_task_model(folder)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    return Predictor(
        network=network.to(device),
        kind=make_kind(card),
        tokenizer=tokenizer,
        vocab=vocab,
        device=device,
        dtype=dtype,
    )


def predict(
    model: str,
    source: Path,
    device: Device = "auto",
    precision: Precision = "auto",
    warn: Warn = lambda message: None,
) -> Iterator[Record]:
    """Yield one record per example of the file; `warn` is told how many were truncated."""
    folder = resolve_model(model, "discriminator")
    place = choose_device(device, "device")
    predictor = load_predictor(folder, place, choose_precision(precision, place))
    yield from predictor.predict(predictor.kind.read(source), warn)
