"""`electra predict`: a fine-tuned model on new text, in batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra.device import Device, Precision, choose_device, choose_precision
from electra.finetune.infer import infer
from electra.finetune.judge import Record, answers, encode
from electra.hub.folders import load_tokenizer_and_vocab
from electra.hub.heads import TaskCard, load_task_model
from electra.model_paths import resolve_model
from electra.tasks.glue import strip_full_stops
from electra.tasks.predict_inputs import read_inputs
from electra.tasks.tag_schemes import to_scheme

CHUNK = 20_000
"""Examples that are held in memory as tokens at a time."""


def predict(
    model: str, source: Path, device: Device = "auto", precision: Precision = "auto"
) -> Iterator[Record]:
    """One record per text of the file."""
    folder = resolve_model(model, "discriminator")
    network, card = load_task_model(folder)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    examples = read_inputs(
        source,
        name=card.name,
        kind=card.kind,  # type: ignore[arg-type]
        columns=card.columns,
        labels=card.labels,
        pairs=card.pairs,
    )
    if card.without_stops:
        examples = [strip_full_stops(example) for example in examples]
    place = choose_device(device, "device")
    network.to(place)
    for begin in range(0, len(examples), CHUNK):
        some = examples[begin : begin + CHUNK]
        features = encode(card, some, tokenizer, vocab)
        (found,) = infer(
            network,
            features,
            card.kind,  # type: ignore[arg-type]
            pad_id=vocab.pad,
            device=place,
            dtype=choose_precision(precision, place),
            beam=card.beam,
        )
        for example, record in zip(some, answers(card, features, some, found), strict=True):
            yield decided(card, example, record)


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
