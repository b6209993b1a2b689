"""Inference with loaded networks: token states, replaced tokens, masked tokens, text scores."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn

from electra.errors import UserError
from electra.hub.electric import is_electric
from electra.hub.folders import load_tokenizer_and_vocab
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Encoder
from electra.text.tokenizer import Vocabulary

BATCH_SIZE = 64
N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedToken:
    """A token and the probability that it was replaced."""

    token: str
    start: int
    end: int
    """Position in the text, in characters."""
    replaced: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedToken:
    """A token for a mask and its probability."""

    token: str
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded(Generic[N]):
    """A network on its device, with its tokenizer."""

    network: N
    folder: Path
    tokenizer: Tokenizer
    vocab: Vocabulary
    device: torch.device
    max_tokens: int
    """Tokens of a row without `[CLS]` and `[SEP]`."""

    def tokenize(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokenize without special tokens."""
        for text in texts:
            check_text(text)
        return self.tokenizer.encode_batch(list(texts), add_special_tokens=False)

    def token_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the ids of tokens; one that is not in the vocabulary is an error."""
        if isinstance(tokens, str):
            raise UserError("Give a list of tokens, not a text.")
        ids: list[int] = []
        for token in tokens:
            number = self.tokenizer.token_to_id(token)
            if number is None:
                raise UserError(f"'{token}' is not a token of the model: give one that is.")
            ids.append(number)
        return ids

    def row(self, ids: Sequence[int]) -> list[int]:
        """Return a row of the model: the tokens between `[CLS]` and `[SEP]`."""
        return [self.vocab.cls, *ids, self.vocab.sep]

    def batches(self, rows: Sequence[list[int]]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield row numbers, padded ids and attention mask; rows of similar length go together."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for begin in range(0, len(order), BATCH_SIZE):
            some = order[begin : begin + BATCH_SIZE]
            width = len(rows[some[-1]])
            padded = [rows[i] + [self.vocab.pad] * (width - len(rows[i])) for i in some]
            ids = torch.tensor(padded, device=self.device)
            ends = torch.tensor([[len(rows[i])] for i in some], device=self.device)
            yield some, ids, torch.arange(width, device=self.device) < ends


def load_network(load: Callable[[Path], N], folder: Path, device: torch.device) -> Loaded[N]:
    """Load a network with one of the `load_*` functions of `electra.hub.folders`."""
    network = load(folder)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    encoder = network if isinstance(network, Encoder) else network.get_submodule("encoder")
    assert isinstance(encoder, Encoder)
    return Loaded(
        network=network.to(device).eval(),
        folder=folder,
        tokenizer=tokenizer,
        vocab=vocab,
        device=device,
        max_tokens=encoder.config.max_positions - 2,
    )


def check_text(text: object) -> None:
    """Refuse what is no text, and lone surrogates, which the tokenizer cannot read."""
    if not isinstance(text, str):
        raise UserError(f"A text must be a string, not {type(text).__name__}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError("The text is not valid UTF-8: write it in UTF-8.") from None


@torch.no_grad()
def token_outputs(model: Loaded[N], texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Run an encoder or discriminator; returns one row per token, `[CLS]` first and `[SEP]` last.

    A text that is longer than the model allows is read in consecutive windows. Each has its own
    `[CLS]` and `[SEP]`, of which the first and the last are kept.
    """
    windows = [
        (number, begin)
        for number, ids in enumerate(texts)
        for begin in range(0, max(1, len(ids)), model.max_tokens)
    ]
    rows = [model.row(texts[number][begin : begin + model.max_tokens]) for number, begin in windows]
    outputs: list[Tensor] = [torch.empty(0)] * len(rows)
    for some, batch, mask in model.batches(rows):
        found = model.network(batch, torch.zeros_like(batch), mask)
        for i, output in zip(some, found, strict=True):
            outputs[i] = output[: len(rows[i])]
    parts: list[list[Tensor]] = [[] for _ in texts]
    for (number, begin), output in zip(windows, outputs, strict=True):
        last = begin + model.max_tokens >= len(texts[number])
        parts[number].append(output[0 if begin == 0 else 1 : None if last else -1])
    return [part[0] if len(part) == 1 else torch.cat(part) for part in parts]


def encode(model: Loaded[Encoder], texts: Sequence[str]) -> list[Tensor]:
    """Return the last hidden states of each text, with `[CLS]` and `[SEP]`: (tokens, hidden)."""
    return token_outputs(model, [encoding.ids for encoding in model.tokenize(texts)])


def detect(model: Loaded[Discriminator], texts: Sequence[str]) -> list[list[DetectedToken]]:
    """Return for each token of each text the probability that it was replaced."""
    encodings = model.tokenize(texts)
    probabilities = _replaced(model, [encoding.ids for encoding in encodings])
    found = []
    for encoding, replaced_probs in zip(encodings, probabilities, strict=True):
        tokens = zip(encoding.tokens, encoding.offsets, replaced_probs, strict=True)
        found.append(
            [
                DetectedToken(token=token, start=start, end=end, replaced=replaced)
                for token, (start, end), replaced in tokens
            ]
        )
    return found


def detect_tokens(
    model: Loaded[Discriminator], texts: Sequence[Sequence[str]]
) -> list[list[float]]:
    """Return the same for texts that are given as tokens of the model's vocabulary."""
    return _replaced(model, [model.token_ids(tokens) for tokens in texts])


def _replaced(model: Loaded[Discriminator], texts: Sequence[Sequence[int]]) -> list[list[float]]:
    if is_electric(model.folder):
        raise UserError(
            f"{model.folder} was trained as Electric: its outputs are energies, not probabilities "
            "of being replaced; use `score`, which sums them over a text."
        )
    if not all(texts):
        raise UserError("The text is empty: give a sentence.")
    return [logits[1:-1].sigmoid().tolist() for logits in token_outputs(model, texts)]


@torch.no_grad()
def fill(
    model: Loaded[Generator], texts: Sequence[str], top: int = 5
) -> list[list[list[PredictedToken]]]:
    """Return for each `[MASK]` of each text the most likely tokens.

    A text that is longer than the model allows is cut to a window around each mask.
    """
    mask_token = str(model.tokenizer.id_to_token(model.vocab.mask))
    for text in texts:
        check_text(text)
    encodings = model.tokenize([text.replace("[MASK]", mask_token) for text in texts])
    rows, positions, owners = [], [], []
    for number, encoding in enumerate(encodings):
        masks = [i for i, token in enumerate(encoding.ids) if token == model.vocab.mask]
        if not masks:
            raise UserError("There is no [MASK] in the text: put one where a token is missing.")
        for mask in masks:
            latest = max(0, len(encoding.ids) - model.max_tokens)
            begin = min(max(0, mask - model.max_tokens // 2), latest)
            rows.append(model.row(encoding.ids[begin : begin + model.max_tokens]))
            positions.append(mask - begin + 1)
            owners.append(number)
    filled: list[list[list[PredictedToken]]] = [[] for _ in encodings]
    predicted: list[list[PredictedToken]] = [[] for _ in rows]
    for some, ids, attention_mask in model.batches(rows):
        places = torch.tensor([[positions[i]] for i in some], device=model.device)
        logits = model.network(ids, torch.zeros_like(ids), attention_mask, places)[:, 0]
        for i, tokens in zip(some, most_likely(model, logits, top), strict=True):
            predicted[i] = tokens
    for owner, tokens in zip(owners, predicted, strict=True):
        filled[owner].append(tokens)
    return filled


def mask_absent(model: Loaded[Generator], logits: Tensor) -> Tensor:
    """Return the logits of the vocabulary, -inf for ids without a token."""
    logits = logits[:, : model.vocab.size]  # the table may have more rows than the vocabulary
    logits[:, list(model.vocab.absent)] = float("-inf")
    return logits


def most_likely(model: Loaded[Generator], logits: Tensor, top: int) -> list[list[PredictedToken]]:
    """Return the `top` tokens of each row of logits; ids without a token are left out."""
    if top < 1:
        raise UserError(f"top={top}: ask for at least one token.")
    vocab = model.vocab
    probs = mask_absent(model, logits).softmax(-1)
    best = probs.topk(min(top, vocab.size - len(vocab.absent)))
    return [
        [
            PredictedToken(token=str(model.tokenizer.id_to_token(i)), probability=p)
            for p, i in zip(probabilities, ids, strict=True)
        ]
        for probabilities, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def score(model: Loaded[Discriminator], texts: Sequence[str]) -> list[float]:
    """Return the pseudo-log-likelihood of each text by an Electric model, in one forward pass.

    It is the sum over the tokens of log p(x_t | the other tokens), up to a constant per token:
    minus the sum of their energies. Higher is more likely.
    """
    if not is_electric(model.folder):
        raise UserError(
            f"{model.folder} was not trained with objective.kind=electric, so its outputs are not "
            "likelihoods: pre-train an Electric model to score texts."
        )
    encodings = model.tokenize(texts)
    for text, encoding in zip(texts, encodings, strict=True):
        if len(encoding.ids) > model.max_tokens:
            raise UserError(
                f"A text has {len(encoding.ids)} tokens and the model takes {model.max_tokens}: "
                f"shorten or split the one that begins with '{text[:40]}'."
            )
    energies = token_outputs(model, [encoding.ids for encoding in encodings])
    return [-energy[1:-1].cpu().double().sum().item() for energy in energies]
