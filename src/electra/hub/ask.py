"""Ask a model: which tokens look replaced, and what belongs behind a mask."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from electra.errors import UserError, require
from electra.hub.folders import load_discriminator, load_generator
from electra.text.tokenizer import load_tokenizer, load_vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The discriminator's opinion of one token."""

    token: str
    start: int
    end: int
    """Place in the text, in characters."""
    replaced: float
    """Probability that it was replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One word that the generator would put behind a mask."""

    token: str
    probability: float


def locate(model: str, network: Literal["discriminator", "generator"]) -> Path:
    """The folder of a network: in a run, in a checkpoint, itself, or fetched from the Hub."""
    path = Path(model)
    if path.is_dir():
        checkpoints = sorted((path / "checkpoints").glob("step-*"))
        if checkpoints:
            return checkpoints[-1] / network
        for inner in (network, "model"):  # a checkpoint, or what fine-tuning wrote
            if (path / inner / "config.json").is_file():
                return path / inner
        if (path / "config.json").is_file():
            return path
        if (path / "config.yaml").is_file():
            raise UserError(f"The run {path} has no checkpoint yet: go on with it by --resume.")
        raise UserError(f"{path} is neither a run nor a checkpoint nor a folder with a model.")
    # A Hub name looks like a path of two parts, but its first part is no folder here.
    if path.exists() or model.count("/") != 1 or path.parent.exists() or model[0] in "./~":
        raise UserError(f"There is no model at '{model}': give a run, a folder or a Hub name.")
    hub = require("huggingface_hub", "hub")
    wanted = ["config.json", "model.safetensors", "tokenizer*.json", "vocab.txt"]
    try:
        return Path(hub.snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the library has a dozen kinds, each a reason of one line
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"'{model}' is no folder here, and the Hub did not give it: {reason}"
        ) from None


@torch.no_grad()
def detect(model: str, text: str) -> list[Verdict]:
    """The probability of being replaced for each token; a long text is read window by window."""
    folder = locate(model, "discriminator")
    tokenizer, discriminator = load_tokenizer(folder), load_discriminator(folder)
    vocab = load_vocabulary(folder)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    room = discriminator.encoder.config.positions - 2
    verdicts = []
    for begin in range(0, len(encoding.ids), room):
        window = slice(begin, begin + room)
        ids = torch.tensor([[vocab.cls, *encoding.ids[window], vocab.sep]])
        chances = discriminator(ids, torch.zeros_like(ids)).sigmoid()[0, 1:-1].tolist()
        pieces = zip(encoding.tokens[window], encoding.offsets[window], chances, strict=True)
        verdicts += [
            Verdict(token=token, start=start, end=end, replaced=chance)
            for token, (start, end), chance in pieces
        ]
    if not verdicts:
        raise UserError("The text is empty: give a sentence to look at.")
    return verdicts


@torch.no_grad()
def fill(model: str, text: str, top: int = 5) -> list[list[Guess]]:
    """The generator's best words for each [MASK] of a text."""
    folder = locate(model, "generator")
    tokenizer, generator = load_tokenizer(folder), load_generator(folder)
    vocab = load_vocabulary(folder)
    text = text.replace("[MASK]", str(tokenizer.id_to_token(vocab.mask)))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids = torch.tensor([[vocab.cls, *encoding.ids, vocab.sep]])
    if ids.shape[1] > generator.encoder.config.positions:
        raise UserError(
            f"The text has {ids.shape[1] - 2} tokens and the model takes "
            f"{generator.encoder.config.positions - 2}: shorten it around the mask."
        )
    places = (ids[0] == vocab.mask).nonzero().T  # (1, masks)
    if not places.numel():
        raise UserError("There is no [MASK] in the text: put one where a word is to be guessed.")
    logits = generator(ids, torch.zeros_like(ids), None, places)[0]
    logits = logits[:, : vocab.size]  # a table may be longer than its vocabulary
    logits[:, list(vocab.absent)] = float("-inf")
    best = logits.softmax(-1).topk(min(top, vocab.size - len(vocab.absent)))
    return [
        [
            Guess(token=str(tokenizer.id_to_token(i)), probability=p)
            for p, i in zip(ps, ks, strict=True)
        ]
        for ps, ks in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
