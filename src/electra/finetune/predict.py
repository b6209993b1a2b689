"""`electra predict`: a fine-tuned model on new text, in batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from electra.device import Device, Precision, choose_device, choose_precision
from electra.errors import UserError
from electra.finetune.infer import infer
from electra.finetune.judge import Record, answers, encode
from electra.hub.folders import load_tokenizer_and_vocab
from electra.hub.heads import TaskCard, load_task_model
from electra.model_paths import resolve_model
from electra.models.heads import TaskModel
from electra.tasks.conll import more_tagged
from electra.tasks.examples import Sentence, Tagged
from electra.tasks.folder import ending
from electra.tasks.glue import GLUE, read_split, without_stop
from electra.tasks.own import read_own
from electra.tasks.spans import to_scheme
from electra.tasks.squad import more_questions
from electra.tasks.squad_files import Columns
from electra.tasks.table import read_text
from electra.text.readers import clean
from electra.text.tokenizer import Vocabulary

CHUNK = 20_000
"""Examples that are held in memory as tokens at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictor:
    """A fine-tuned model on its device, with its tokenizer."""

    network: TaskModel
    card: TaskCard
    tokenizer: Tokenizer
    vocab: Vocabulary
    device: torch.device
    dtype: torch.dtype

    @property
    def reads_pairs(self) -> bool:
        """Whether an example has two texts."""
        return self.card.pairs or bool(self.card.columns.get("pair"))

    def predict(self, examples: Sequence[Any]) -> Iterator[Record]:
        """Yield one record per example."""
        if self.card.without_stops:
            examples = [without_stop(example) for example in examples]
        for begin in range(0, len(examples), CHUNK):
            some = examples[begin : begin + CHUNK]
            features = encode(self.card, some, self.tokenizer, self.vocab)
            (found,) = infer(
                self.network,
                features,
                self.card.kind,  # type: ignore[arg-type]
                pad_id=self.vocab.pad,
                device=self.device,
                dtype=self.dtype,
                beam=self.card.beam,
            )
            records = answers(self.card, features, some, found)
            for example, record in zip(some, records, strict=True):
                yield decided(self.card, example, record)


def load_predictor(folder: Path, device: torch.device, dtype: torch.dtype) -> Predictor:
    """Load a fine-tuned model."""
    network, card = load_task_model(folder)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    return Predictor(
        network=network.to(device),
        card=card,
        tokenizer=tokenizer,
        vocab=vocab,
        device=device,
        dtype=dtype,
    )


def predict(
    model: str, source: Path, device: Device = "auto", precision: Precision = "auto"
) -> Iterator[Record]:
    """Yield one record per text of the file."""
    place = choose_device(device, "device")
    folder = resolve_model(model, "discriminator")
    predictor = load_predictor(folder, place, choose_precision(precision, place))
    yield from predictor.predict(read_examples(source, predictor.card))


def decided(card: TaskCard, example: Any, record: Record) -> Record:
    """The record as a user wants it: words beside tags, and no answer where none is likely."""
    if card.kind == "tag":  # in the scheme of the training file, whatever was learned
        tags = record["tags"]
        if scheme := card.columns.get("scheme"):
            tags = list(to_scheme(tags, scheme))  # type: ignore[arg-type]
        return {"id": record["id"], "words": list(example.words), "tags": tags}
    if card.kind == "qa" and card.maybe_none and record["null"] > card.null_threshold:
        return record | {"answer": ""}
    return record


def read_examples(source: Path, card: TaskCard) -> list[Any]:
    """A file of texts (.txt, one per line), or a table or JSON with the task's columns."""
    if card.kind == "qa":
        return more_questions(source, columns=Columns(**card.columns))
    if ending(source) == ".txt" and not (card.kind == "tag" and in_columns(source, card)):
        return plain_lines(source, card)
    if card.kind == "tag":
        return more_tagged(source, card.columns)
    if card.name in GLUE and not card.columns and ending(source) == ".tsv":
        return read_split(card.name, source, hidden=True)[0]
    columns = card.columns or ({"text": "text", "pair": "pair"} if card.pairs else {"text": "text"})
    return read_own(source, card.kind, columns)  # type: ignore[arg-type]


def in_columns(source: Path, card: TaskCard) -> bool:
    """Whether a file has a word per line, alone or before its tag, and not a sentence per line."""
    lines = [line.split() for line in read_text(source).split("\n") if line.strip()]
    types = {label.partition("-")[2] for label in card.labels} - {""}
    tags = {line[-1] for line in lines if line[0] != "-DOCSTART-"}
    known = all(tag in card.labels or tag.partition("-")[2] in types for tag in tags)
    return len({len(line) for line in lines}) == 1 and (known or len(lines[0]) == 1)


def plain_lines(source: Path, card: TaskCard) -> list[Any]:
    """A text per line; for tags its words stand between spaces."""
    if card.pairs or card.kind == "choice" or card.columns.get("pair"):
        raise UserError(
            f"The model wants two texts, and '{source}' has one per line: give a table (.csv, "
            ".tsv, .jsonl) with the columns of the training file."
        )
    lines = [line.strip() for line in clean(read_text(source)).split("\n")]
    numbered = [(str(n), line) for n, line in enumerate(lines, 1) if line]
    if card.kind == "tag":
        return [Tagged(id=n, words=tuple(line.split())) for n, line in numbered]
    return [Sentence(id=n, text=line) for n, line in numbered]
