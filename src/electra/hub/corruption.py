"""Corrupt a text as in pre-training: mask some tokens, let the generator sample others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from electra.errors import UserError
from electra.hub.inference import Loaded, PredictedToken, mask_absent, most_likely
from electra.models.electra import Generator

MASKS, SAMPLES = 0, 1
"""Which random numbers: for the masked positions, for the sampled tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorruptedToken:
    """A token of a corrupted text."""

    token: str
    original: str
    masked: bool
    proposals: tuple[PredictedToken, ...] = ()
    """The generator's most likely tokens with the probabilities that it samples from; of a masked
    token."""

    @property
    def replaced(self) -> bool:
        """Whether it differs from the original token: the generator may sample the same."""
        return self.token != self.original


def corrupt(
    model: Loaded[Generator],
    text: str,
    *,
    mask_rate: float = 0.15,
    temperature: float = 1.0,
    seed: int = 0,
    top: int = 5,
) -> list[CorruptedToken]:
    """Mask a share of a text's tokens, at least one, and sample from the generator for each mask.

    The same seed gives the same masks and samples. A text that is longer than the model allows is
    read in consecutive windows.
    """
    if not 0 < mask_rate <= 1:
        raise UserError(f"mask_rate={mask_rate}: give a share above 0 and at most 1.")
    if not temperature > 0:
        raise UserError(f"temperature={temperature}: give a number above 0.")
    (encoding,) = model.tokenize([text])
    candidates = [i for i, t in enumerate(encoding.ids) if t not in model.vocab.special]
    if not candidates:
        raise UserError("The text is empty: give a sentence.")
    count = min(len(candidates), max(1, round(mask_rate * len(encoding.ids))))
    masks = sorted(_random(seed, MASKS).choice(candidates, count, replace=False).tolist())
    logits = _logits_at(model, encoding.ids, masks) / temperature
    tokens = [CorruptedToken(token=t, original=t, masked=False) for t in encoding.tokens]
    proposals = most_likely(model, logits, top)
    for position, sampled, best in zip(masks, _sample(logits, seed), proposals, strict=True):
        tokens[position] = CorruptedToken(
            token=str(model.tokenizer.id_to_token(sampled)),
            original=encoding.tokens[position],
            masked=True,
            proposals=tuple(best),
        )
    return tokens


def propose(
    model: Loaded[Generator], tokens: Sequence[str], position: int, top: int = 5
) -> list[PredictedToken]:
    """Return the generator's most likely tokens for one position of a text, given as tokens."""
    ids = model.token_ids(tokens)
    if not 0 <= position < len(ids):
        raise UserError(f"position={position}: the text has the tokens 0 to {len(ids) - 1}.")
    return most_likely(model, _logits_at(model, ids, [position]), top)[0]


@torch.no_grad()
def _logits_at(model: Loaded[Generator], ids: list[int], masks: list[int]) -> Tensor:
    """Return the generator's logits at the masked positions, (masks, vocabulary), in fp32."""
    found = []
    for begin in range(0, len(ids), model.max_tokens):
        here = [i for i in masks if begin <= i < begin + model.max_tokens]
        if not here:
            continue
        window = range(begin, min(begin + model.max_tokens, len(ids)))
        row = model.row([model.vocab.mask if i in here else ids[i] for i in window])
        batch = torch.tensor([row], device=model.device)
        places = torch.tensor([[i - begin + 1 for i in here]], device=model.device)
        found.append(model.network(batch, torch.zeros_like(batch), None, places)[0])
    return mask_absent(model, torch.cat(found).float().cpu())


def _sample(logits: Tensor, seed: int) -> list[int]:
    """Sample one id per row of logits."""
    cdf = logits.double().softmax(-1).cumsum(-1)
    random = torch.from_numpy(_random(seed, SAMPLES).random((len(cdf), 1)))
    random = random * (1 - 2**-40) * cdf[:, -1:]  # stays below the last entry after rounding
    # `right`: the first entry above the number, so that an id without probability is never taken
    return torch.searchsorted(cdf, random, right=True)[:, 0].tolist()


def _random(seed: int, purpose: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, purpose]))
