"""`electra probe`: what a checkpoint knows of grammar, without fine-tuning.

BLiMP has pairs of sentences that differ in little, one of them wrong. The discriminator is asked
which has more replaced tokens, the generator which is less likely; so is Electric, by its energies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from electra.finetune.fit import Told
from electra.hub.electric import is_electric
from electra.hub.folders import load_discriminator, load_generator, load_tokenizer_and_vocab
from electra.model_paths import resolve_model
from electra.models.electra import Discriminator, Generator
from electra.tasks.blimp import Pair
from electra.text.tokenizer import Vocabulary

Network = Literal["discriminator", "generator"]
TOKENS = 32768
"""About so many are computed at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """How often a network prefers the right sentence, within one phenomenon."""

    phenomenon: str
    accuracy: float
    pairs: int


def probe(
    model: str,
    pairs: Sequence[Pair],
    network: Network,
    console: Console,
    device: Device = "auto",
) -> list[Probed]:
    """Accuracy per phenomenon; equal scores count half."""
    folder = resolve_model(model, network)
    tokenizer, vocab = load_tokenizer_and_vocab(folder)
    place = choose_device(device)
    texts = [text for pair in pairs for text in (pair.good, pair.bad)]
    encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    rows = [np.array([vocab.cls, *e.ids, vocab.sep], dtype=np.int64) for e in encoded]
    asked: Discriminator | Generator
    asked = load_discriminator(folder) if network == "discriminator" else load_generator(folder)
    longest = asked.encoder.config.max_positions
    if any(len(row) > longest for row in rows):
        raise UserError(f"A sentence is longer than the {longest} tokens that the model takes.")
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task(network, total=None)

        def told(done: int, total: int) -> None:
            bar.update(shown, completed=done, total=total)

        energies = network == "discriminator" and is_electric(folder)
        scores = score_rows(asked.to(place).eval(), rows, vocab, place, told, energies)
    good, bad = scores[::2], scores[1::2]
    right = np.where(good == bad, 0.5, good > bad)
    found = []
    for name in sorted({pair.phenomenon for pair in pairs}):
        here = right[[pair.phenomenon == name for pair in pairs]]
        found.append(Probed(phenomenon=name, accuracy=float(here.mean()), pairs=len(here)))
    return found


@torch.no_grad()
def score_rows(
    network: Discriminator | Generator,
    rows: Sequence[npt.NDArray[np.int64]],
    vocab: Vocabulary,
    device: torch.device,
    told: Told,
    energies: bool = False,
) -> npt.NDArray[np.float64]:
    """How much a network believes each sentence: a sum of logarithms over its tokens."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    # The generator reads a sentence once for every token, with that one hidden.
    work = lengths if isinstance(network, Discriminator) else lengths * lengths
    found = np.zeros(len(rows))
    done = 0
    dtype = choose_precision("auto", device)
    for _, index in eval_batches(work, TOKENS):
        length = int(lengths[index].max())
        ids = np.full((len(index), length), vocab.pad, dtype=np.int64)
        for place, row in zip(ids, index, strict=True):
            place[: lengths[row]] = rows[row]
        total = torch.from_numpy(lengths[index]).to(device)
        batch = torch.from_numpy(ids).to(device)
        with autocast(device, dtype):
            if isinstance(network, Discriminator):
                scores = originality(network, batch, total, energies)
            else:
                scores = likelihood(network, batch, total, vocab)
        found[index] = scores.cpu().numpy()
        done += len(index)
        told(done, len(rows))
    return found


def originality(network: Discriminator, ids: Tensor, total: Tensor, energies: bool) -> Tensor:
    """Log probability that no token between [CLS] and [SEP] was replaced; or minus the energies."""
    place = torch.arange(ids.shape[1], device=ids.device)
    logits = network(ids, torch.zeros_like(ids), place < total[:, None]).float()
    inner = (place > 0) & (place < total[:, None] - 1)
    logs = -logits if energies else F.logsigmoid(-logits)
    return (logs * inner).sum(1)


def likelihood(network: Generator, ids: Tensor, total: Tensor, vocab: Vocabulary) -> Tensor:
    """Pseudo log likelihood: each token predicted from all the others."""
    rows, length = ids.shape
    place = torch.arange(length, device=ids.device)
    inner = (place > 0) & (place < total[:, None] - 1)
    which, hidden = inner.nonzero(as_tuple=True)
    sums = torch.zeros(rows, device=ids.device)
    for begin in range(0, len(which), 512):  # the logits are as wide as the vocabulary
        row, spot = which[begin : begin + 512], hidden[begin : begin + 512]
        masked = ids[row].scatter(1, spot[:, None], vocab.mask)
        attention_mask = place < total[row][:, None]
        logits = network(masked, torch.zeros_like(masked), attention_mask, spot[:, None])[
            :, 0
        ].float()
        chosen = ids[row].gather(1, spot[:, None])
        sums.index_add_(0, row, logits.log_softmax(-1).gather(1, chosen)[:, 0])
    return sums
