"""`electra probe`: measure grammatical knowledge with BLiMP, without fine-tuning.

BLiMP has minimal pairs: two sentences that differ in one point, one of them ungrammatical. A
network should give the grammatical one the higher score: the log probability that no token was
replaced (discriminator), the pseudo log likelihood (generator), a weighted sum of these two
(combined), or minus the energy (Electric).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from electra.device import Device, autocast, choose_device, choose_precision
from electra.errors import UserError
from electra.finetune.batches import eval_batches
from electra.finetune.fit import ProgressFn
from electra.hub.electric import is_electric
from electra.hub.folders import load_discriminator, load_generator, load_tokenizer_and_vocab
from electra.model_paths import resolve_model
from electra.models.electra import Discriminator, Generator
from electra.tasks.blimp import Pair
from electra.tasks.table import shorten
from electra.text.shards import TOKENIZER, Shards
from electra.text.tokenizer import Vocabulary, load_tokenizer
from electra.train.validation import token_counts

Network = Literal["discriminator", "generator"]
TOKENS = 32768
"""Approximate number of tokens per batch."""
REPLACED_LOGIT = math.log(0.08 / 0.92)
"""The logit of a token being replaced in pre-training: 15 % are masked, about half are guessed."""
GENERATOR_WEIGHT = 0.1
"""The weight of the generator's score in the combined one; docs/probe.md says how it was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhenomenonAccuracy:
    """How often a network prefers the grammatical sentence, for one phenomenon."""

    phenomenon: str
    accuracy: float
    pairs: int


def probe(
    model: str,
    pairs: Sequence[Pair],
    networks: Sequence[Network],
    console: Console,
    device: Device = "auto",
) -> dict[str, list[PhenomenonAccuracy]]:
    """The accuracy of each score for each phenomenon; a tie counts half.

    The discriminator and the generator of one model also give the score `combined`.
    """
    folders = [resolve_model(model, network) for network in networks]
    tokenizer, vocab = load_tokenizer_and_vocab(folders[0])
    torch_device = choose_device(device)
    texts = sentences(pairs)
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    rows = [np.array([vocab.cls, *e.ids, vocab.sep], dtype=np.int64) for e in encoded]
    loaded: list[Discriminator | Generator] = []
    for network, folder in zip(networks, folders, strict=True):
        load = load_discriminator if network == "discriminator" else load_generator
        loaded.append(load(folder).to(torch_device).eval())
    max_length = min(each.encoder.config.max_positions for each in loaded)
    too_long = next((n for n, row in enumerate(rows) if len(row) > max_length), None)
    if too_long is not None:
        raise UserError(
            f"A sentence is longer than the {max_length} tokens that the model takes: shorten or "
            f"remove '{shorten(texts[too_long])}'."
        )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task(" and ".join(networks), total=None)

        def progress(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        energies = any(map(is_electric, folders))
        scores = score_rows(loaded, rows, vocab, torch_device, progress, energies)
    return {name: accuracies(pairs, each) for name, each in scores.items()}


def probe_baselines(pairs: Sequence[Pair], shards: Path) -> dict[str, list[PhenomenonAccuracy]]:
    """The accuracy of scores that know nothing of word order.

    `frequency` sums the log frequencies of the tokens in the training split of prepared shards,
    `length` counts the tokens: what a network has to beat.
    """
    opened = Shards.open(shards)
    tokenizer = load_tokenizer(opened.folder / TOKENIZER)
    counts = token_counts(opened, opened.vocabulary_size) + 1
    log_frequency = np.log(counts / counts.sum())
    encoded = tokenizer.encode_batch_fast(sentences(pairs), add_special_tokens=False)
    # Sorted: the same tokens in another order are a tie, to the last bit.
    by_frequency = np.array([log_frequency[np.sort(e.ids)].sum() for e in encoded])
    by_length = np.array([-float(len(e.ids)) for e in encoded])
    return {
        "frequency": accuracies(pairs, by_frequency),
        "length": accuracies(pairs, by_length),
    }


def sentences(pairs: Sequence[Pair]) -> list[str]:
    """The sentences of all pairs, each grammatical one before its partner."""
    return [text for pair in pairs for text in (pair.good, pair.bad)]


def accuracies(pairs: Sequence[Pair], scores: npt.NDArray[np.float64]) -> list[PhenomenonAccuracy]:
    """The accuracy for each phenomenon from the scores of `sentences(pairs)`; a tie counts half."""
    good, bad = scores[::2], scores[1::2]
    right = np.where(good == bad, 0.5, good > bad)
    found = []
    for name in sorted({pair.phenomenon for pair in pairs}):
        here = right[[pair.phenomenon == name for pair in pairs]]
        found.append(
            PhenomenonAccuracy(phenomenon=name, accuracy=float(here.mean()), pairs=len(here))
        )
    return found


@torch.no_grad()
def score_rows(
    networks: Sequence[Discriminator | Generator],
    rows: Sequence[npt.NDArray[np.int64]],
    vocab: Vocabulary,
    device: torch.device,
    progress: ProgressFn,
    energies: bool = False,
) -> dict[str, npt.NDArray[np.float64]]:
    """The scores of each sentence by the networks and, if there are two, by both together.

    A score is a sum over the tokens.
    """
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    # The generator reads a sentence once per token, with that token masked.
    slow = any(isinstance(network, Generator) for network in networks)
    found: dict[str, npt.NDArray[np.float64]] = {}
    done = 0
    dtype = choose_precision("auto", device)
    for _, index in eval_batches(lengths * lengths if slow else lengths, TOKENS):
        length = int(lengths[index].max())
        ids = np.full((len(index), length), vocab.pad, dtype=np.int64)
        for padded, row in zip(ids, index, strict=True):
            padded[: lengths[row]] = rows[row]
        total = torch.from_numpy(lengths[index]).to(device)
        batch = torch.from_numpy(ids).to(device)
        with autocast(device, dtype):
            scores = token_scores(networks, batch, total, vocab, energies=energies)
        position = torch.arange(length, device=device)
        inner = (position > 0) & (position < total[:, None] - 1)  # neither [CLS] nor [SEP]
        for name, each in scores.items():
            sums = found.setdefault(name, np.zeros(len(rows)))
            sums[index] = (each * inner).sum(1).cpu().numpy()
        done += len(index)
        progress(done, len(rows))
    return found


def token_scores(
    networks: Sequence[Discriminator | Generator],
    ids: Tensor,
    total: Tensor,
    vocab: Vocabulary,
    *,
    energies: bool,
) -> dict[str, Tensor]:
    """The score of each token by each network and by both together, (rows, length) each."""
    scores = {}
    for network in networks:
        if isinstance(network, Generator):
            scores["generator"] = masked_log_probs(network, ids, total, vocab)
            continue
        logits = replaced_logits(network, ids, total)
        scores["discriminator"] = -logits if energies else original_log_probs(logits)
    if len(scores) == 2 and not energies:
        scores["combined"] = scores["discriminator"] + GENERATOR_WEIGHT * scores["generator"]
    return scores


def original_log_probs(logits: Tensor) -> Tensor:
    """The log probability that a token is original, if one half of all tokens were replaced.

    In pre-training few tokens are replaced, so that the discriminator needs much evidence before it
    says so. Subtracting the logit of that share leaves what the sentence itself says.
    """
    return F.logsigmoid(REPLACED_LOGIT - logits)


def replaced_logits(network: Discriminator, ids: Tensor, total: Tensor) -> Tensor:
    """The logit of each token being replaced, or its energy."""
    position = torch.arange(ids.shape[1], device=ids.device)
    return network(ids, torch.zeros_like(ids), position < total[:, None]).float()


def masked_log_probs(network: Generator, ids: Tensor, total: Tensor, vocab: Vocabulary) -> Tensor:
    """The log probability of each token, predicted from all others; 0 for [CLS] and [SEP]."""
    position = torch.arange(ids.shape[1], device=ids.device)
    inner = (position > 0) & (position < total[:, None] - 1)
    row_of, position_of = inner.nonzero(as_tuple=True)
    found = torch.zeros(ids.shape, device=ids.device)
    for begin in range(0, len(row_of), 512):  # bounds the memory of the logits
        row, masked_at = row_of[begin : begin + 512], position_of[begin : begin + 512]
        masked = ids[row].scatter(1, masked_at[:, None], vocab.mask)
        attention_mask = position < total[row][:, None]
        logits = network(masked, torch.zeros_like(masked), attention_mask, masked_at[:, None])[
            :, 0
        ].float()
        target = ids[row].gather(1, masked_at[:, None])
        found[row, masked_at] = logits.log_softmax(-1).gather(1, target)[:, 0]
    return found
