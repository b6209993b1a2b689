"""Ask a model: which tokens look replaced, what belongs behind a mask, how likely a text is."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from electra.errors import UserError
from electra.hub.electric import is_electric
from electra.hub.folders import load_discriminator, load_generator, load_tokenizer_and_vocab
from electra.model_paths import resolve_model

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
    folder = resolve_model(model, "discriminator")
    discriminator = load_discriminator(folder)
    if is_electric(folder):
        raise UserError(
            f"{folder} was trained as Electric: its numbers are energies, not chances of being "
            "replaced, and add up to the score of a sentence."
        )
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    encoding = tokenizer.encode(text, add_special_tokens=False)
    room = discriminator.encoder.config.max_positions - 2
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
    folder = resolve_model(model, "generator")
    generator = load_generator(folder)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    text = text.replace("[MASK]", str(tokenizer.id_to_token(vocab.mask)))
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids = torch.tensor([[vocab.cls, *encoding.ids, vocab.sep]])
    if ids.shape[1] > generator.encoder.config.max_positions:
        raise UserError(
            f"The text has {ids.shape[1] - 2} tokens and the model takes "
            f"{generator.encoder.config.max_positions - 2}: shorten it around the mask."
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
    folder = resolve_model(model, "discriminator")
    discriminator = load_discriminator(folder)
    if not is_electric(folder):
        raise UserError(
            f"{folder} was not trained with objective.kind=electric, so its numbers are no "
            "likelihoods of words."
        )
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    rows = [[vocab.cls, *e.ids, vocab.sep] for e in encodings]
    longest = discriminator.encoder.config.max_positions
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
