"""`electra predict`: apply a fine-tuned model to new texts."""

from collections.abc import Callable, Iterator
from pathlib import Path

from electra.device import Device, Precision, choose_device, choose_precision
from electra.finetune.infer import infer
from electra.finetune.kinds import make_kind
from electra.finetune.kinds.base import Record, truncation_message
from electra.finetune.task_model import load_task_model
from electra.hub.folders import load_tokenizer_and_vocab
from electra.model_paths import resolve_model
from electra.tasks.glue import without_stop

CHUNK = 20_000
"""Examples tokenized at a time, to bound the memory."""


def predict(
    model: str,
    source: Path,
    device: Device = "auto",
    precision: Precision = "auto",
    warn: Callable[[str], None] = lambda message: None,
) -> Iterator[Record]:
    """One record per example of the file; `warn` hears at the end how many were truncated."""
    folder = resolve_model(model, "discriminator")
    network, card = load_task_model(folder)
    kind = make_kind(card)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    examples = kind.read(source)
    if card.without_stops:
        examples = [without_stop(example) for example in examples]
    place = choose_device(device, "device")
    network.to(place)
    truncated, first = 0, ""
    for begin in range(0, len(examples), CHUNK):
        chunk = examples[begin : begin + CHUNK]
        features = kind.featurize(chunk, tokenizer, vocab)
        if features.cut:
            first = first or chunk[features.first_cut].id
            truncated += features.cut
        (outputs,) = infer(
            network,
            features,
            kind,
            pad_id=vocab.pad,
            device=place,
            dtype=choose_precision(precision, place),
        )
        records = kind.decode(features, chunk, outputs)
        for example, record in zip(chunk, records, strict=True):
            yield kind.finalize(example, record)
    if truncated:
        warn(truncation_message(kind, truncated, len(examples), first))
