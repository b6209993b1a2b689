"""Ask a model: which tokens look replaced, what belongs behind a mask, how likely a text is."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from electra.errors import UserError, require
from electra.hub.energies import has_energies
from electra.hub.folders import load_discriminator, load_generator, load_words

SCORED_AT_ONCE = 64
"""Texts in a batch."""


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


Network = Literal["discriminator", "generator", "encoder"]
FOLDERS: dict[Network, tuple[str, ...]] = {
    "discriminator": ("discriminator",),
    "generator": ("generator", "mlm"),  # a run of masked language modelling has no other
    "encoder": ("discriminator", "mlm"),  # the network that is kept, whatever its head
}


def locate(model: str, network: Network) -> Path:
    """The folder of a network: in a run, in a checkpoint, itself, or fetched from the Hub."""
    path = Path(model)
    if path.is_dir():
        checkpoints = sorted((path / "checkpoints").glob("step-*"))
        place = checkpoints[-1] if checkpoints else path
        for inner in (*FOLDERS[network], "model"):  # a checkpoint, or what fine-tuning wrote
            if (place / inner / "config.json").is_file():
                return place / inner
        others = [name for name in ("discriminator", "generator", "mlm") if (place / name).is_dir()]
        if others:
            raise UserError(
                f"{place} has no {network}, only {' and '.join(others)}: that is what the run's "
                f"objective leaves (objective.kind, generator.kind in {place / 'config.yaml'})."
            )
        if (path / "config.json").is_file():
            return path
        if (path / "config.yaml").is_file():
            raise UserError(f"The run {path} has no checkpoint yet: go on with it by --resume.")
        raise UserError(f"{path} is neither a run nor a checkpoint nor a folder with a model.")
    # A Hub name looks like a path of two parts, but its first part is no folder here.
    if path.exists() or model.count("/") != 1 or path.parent.exists() or model[0] in "./~":
        raise UserError(f"There is no model at '{model}': give a run, a folder or a Hub name.")
    hub = require("huggingface_hub", "hub")
    wanted = ["config.json", "model.safetensors", "tokenizer*.json", "vocab.txt", "task.json"]
    try:
        return Path(hub.snapshot_download(model, allow_patterns=wanted))
    except Exception as error:  # the library has a dozen kinds, each a reason of one line
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"'{model}' is no folder here, and the Hub did not give it: {reason}"
        ) from None


def check_text(text: str) -> None:
    """Refuse what the shell gave in another encoding, which the tokenizer could not read."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError("The text is not valid UTF-8: write it in UTF-8.") from None


@torch.no_grad()
def detect(model: str, text: str) -> list[Verdict]:
    """The probability of being replaced for each token; a long text is read window by window."""
    check_text(text)
    folder = locate(model, "discriminator")
    discriminator = load_discriminator(folder)
    if has_energies(folder):
        raise UserError(
            f"{folder} was trained as Electric: its numbers are energies, not chances of being "
            "replaced, and add up to the score of a sentence."
        )
    tokenizer, vocab = load_words(folder)
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
    check_text(text)
    folder = locate(model, "generator")
    generator = load_generator(folder)
    tokenizer, vocab = load_words(folder)
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


@torch.no_grad()
def score_sentences(model: str, texts: Sequence[str]) -> list[float]:
    """The pseudo-log-likelihood of each text by Electric, in one pass: minus its tokens' energies.

    Sum over t of log p(x_t | the other tokens); the larger, the more likely.
    """
    folder = locate(model, "discriminator")
    discriminator = load_discriminator(folder)
    if not has_energies(folder):
        raise UserError(
            f"{folder} was not trained with objective.kind=electric, so its numbers are no "
            "likelihoods of words."
        )
    tokenizer, vocab = load_words(folder)
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    rows = [[vocab.cls, *e.ids, vocab.sep] for e in encodings]
    longest = discriminator.encoder.config.positions
    for text, row in zip(texts, rows, strict=True):
        if len(row) > longest:
            raise UserError(
                f"A text has {len(row) - 2} tokens and the model takes {longest - 2}: shorten or "
                f"split the one that begins with '{text[:40]}'."
            )
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))  # little padding in a batch
    scores = [0.0] * len(rows)
    for begin in range(0, len(order), SCORED_AT_ONCE):
        some = order[begin : begin + SCORED_AT_ONCE]
        width = max(len(rows[i]) for i in some)
        ids = torch.tensor([rows[i] + [vocab.pad] * (width - len(rows[i])) for i in some])
        ends = torch.tensor([[len(rows[i])] for i in some])
        place = torch.arange(width)
        energies = discriminator(ids, torch.zeros_like(ids), place < ends).double()
        inner = (place > 0) & (place < ends - 1)  # neither [CLS] nor [SEP]
        for i, score in zip(some, (-energies * inner).sum(1).tolist(), strict=True):
            scores[i] = score
    return scores
