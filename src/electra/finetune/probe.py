"""`electra probe`: measure grammatical knowledge with BLiMP, without fine-tuning.

BLiMP has minimal pairs: two sentences that differ in one point, one of them ungrammatical. A
network should give the grammatical one the higher score: the log probability that no token was
replaced (discriminator), the pseudo log likelihood (generator) or minus the energy (Electric).
"""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PhenomenonAccuracy:
    """How often a network prefers the grammatical sentence, for one phenomenon."""

    phenomenon: str
    accuracy: float
    pairs: int


def probe(
    model: str,
    pairs: Sequence[Pair],
    network: Network,
    console: Console,
    device: Device = "auto",
) -> list[PhenomenonAccuracy]:
    """The accuracy for each phenomenon; a tie counts half."""
    folder = resolve_model(model, network)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    torch_device = choose_device(device)
    texts = sentences(pairs)
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    rows = [np.array([vocab.cls, *e.ids, vocab.sep], dtype=np.int64) for e in encoded]
    scorer: Discriminator | Generator
    scorer = load_discriminator(folder) if network == "discriminator" else load_generator(folder)
    max_length = scorer.encoder.config.max_positions
    too_long = next((n for n, row in enumerate(rows) if len(row) > max_length), None)
    if too_long is not None:
        raise UserError(
            f"A sentence is longer than the {max_length} tokens that the model takes: shorten or "
            f"remove '{shorten(texts[too_long])}'."
        )
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task(network, total=None)

        def progress(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        energies = network == "discriminator" and is_electric(folder)
        scores = score_rows(
            scorer.to(torch_device).eval(), rows, vocab, torch_device, progress, energies
        )
    return accuracies(pairs, scores)


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
    network: Discriminator | Generator,
    rows: Sequence[npt.NDArray[np.int64]],
    vocab: Vocabulary,
    device: torch.device,
    progress: ProgressFn,
    energies: bool = False,
) -> npt.NDArray[np.float64]:
    """The score of each sentence: a sum of log probabilities over its tokens."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    # The generator reads a sentence once per token, with that token masked.
    work = lengths if isinstance(network, Discriminator) else lengths * lengths
    found = np.zeros(len(rows))
    done = 0
    dtype = choose_precision("auto", device)
    for _, index in eval_batches(work, TOKENS):
        length = int(lengths[index].max())
        ids = np.full((len(index), length), vocab.pad, dtype=np.int64)
        for padded, row in zip(ids, index, strict=True):
            padded[: lengths[row]] = rows[row]
        total = torch.from_numpy(lengths[index]).to(device)
        batch = torch.from_numpy(ids).to(device)
        with autocast(device, dtype):
            if isinstance(network, Discriminator):
                scores = original_log_prob(network, batch, total, energies)
            else:
                scores = pseudo_log_likelihood(network, batch, total, vocab)
        found[index] = scores.cpu().numpy()
        done += len(index)
        progress(done, len(rows))
    return found


def original_log_prob(network: Discriminator, ids: Tensor, total: Tensor, energies: bool) -> Tensor:
    """Log probability that no token was replaced, or minus the energies; [CLS], [SEP] excluded."""
    position = torch.arange(ids.shape[1], device=ids.device)
    logits = network(ids, torch.zeros_like(ids), position < total[:, None]).float()
    inner = (position > 0) & (position < total[:, None] - 1)
    logs = -logits if energies else F.logsigmoid(-logits)
    return (logs * inner).sum(1)


def pseudo_log_likelihood(
    network: Generator, ids: Tensor, total: Tensor, vocab: Vocabulary
) -> Tensor:
    """The log probabilities of each token, predicted from all others, summed."""
    rows, length = ids.shape
    position = torch.arange(length, device=ids.device)
    inner = (position > 0) & (position < total[:, None] - 1)
    row_of, position_of = inner.nonzero(as_tuple=True)
    sums = torch.zeros(rows, device=ids.device)
    for begin in range(0, len(row_of), 512):  # bounds the memory of the logits
        row, masked_at = row_of[begin : begin + 512], position_of[begin : begin + 512]
        masked = ids[row].scatter(1, masked_at[:, None], vocab.mask)
        attention_mask = position < total[row][:, None]
        logits = network(masked, torch.zeros_like(masked), attention_mask, masked_at[:, None])[
            :, 0
        ].float()
        target = ids[row].gather(1, masked_at[:, None])
        sums.index_add_(0, row, logits.log_softmax(-1).gather(1, target)[:, 0])
    return sums
