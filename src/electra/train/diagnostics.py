"""Cheap measurements that show the opening plateau, and that compare runs.

On the plateau a generator copies visible tokens and guesses the most frequent one elsewhere, the
states of all tokens are nearly parallel, and attention is spread evenly over the row. The
corruption of `fixed_corruption` depends on the text alone, so `fixed_auc` compares discriminators
of different runs and generators.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.device import autocast
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Attention, Encoder
from electra.objectives.batch import Batch
from electra.objectives.objective import Objective

ROWS = 128
"""Held-out rows that the diagnostics read."""
ATTENTION_ROWS = 16
"""Held-out rows of which the attention probabilities are computed."""
REPLACED_SHARE = 0.15
"""Share of the tokens that `fixed_corruption` replaces."""


def accuracy_floor(objective: Objective, label_counts: Tensor) -> float | None:
    """Accuracy of copying visible tokens and guessing the most frequent token elsewhere.

    `label_counts` (vocabulary,) counts the masked tokens. None if no network predicts tokens.
    """
    hidden_share = objective.hidden_share()
    total = label_counts.sum().item()
    if hidden_share is None or not total:
        return None
    return 1 - hidden_share + hidden_share * label_counts.max().item() / total


@torch.no_grad()
def run_diagnostics(
    objective: Objective, rows: Tensor, micro_batch: int, dtype: torch.dtype
) -> tuple[dict[str, float], tuple[Tensor, Tensor] | None]:
    """Return the state cosine and the local attention of each network, and scores and labels of the
    fixed corruption."""
    device, rows = objective.maskable.device, rows[:ROWS]
    networks = {
        name: network
        for name, network in objective.named_children()
        if isinstance(network, Generator | Discriminator) and isinstance(network.encoder, Encoder)
    }
    cosines: dict[str, list[Tensor]] = {name: [] for name in networks}
    detections = []
    for part, corrupted in zip(
        rows.split(micro_batch),
        fixed_corruption(rows, objective.maskable.cpu()).split(micro_batch),
        strict=True,
    ):
        batch = objective.unpack(part.to(device))
        for name, network in networks.items():
            ids = batch.ids
            with autocast(device, dtype):
                if isinstance(network, Discriminator):
                    ids = corrupted.to(device)
                    scores = network(ids, batch.segments, batch.doc_ids).float()
                    attention_mask = batch.attention_mask
                    is_replaced = (ids != batch.ids)[attention_mask]
                    detections.append((scores[attention_mask], is_replaced))
                states = network.encoder(ids, batch.segments, batch.doc_ids)
            cosines[name].append(mean_cosine(states.float(), batch))
    metrics = {f"{name}_state_cosine": torch.cat(c).mean().item() for name, c in cosines.items()}
    if len(rows):
        batch = objective.unpack(rows[:ATTENTION_ROWS].to(device))
        with autocast(device, dtype):
            for name, network in networks.items():
                metrics[f"{name}_local_attention"] = local_attention(network.encoder, batch).item()
    if not detections:
        return metrics, None
    scores, replaced = map(torch.cat, zip(*detections, strict=True))
    return metrics, (scores, replaced)


def mean_cosine(states: Tensor, batch: Batch) -> Tensor:
    """Return the mean cosine of all pairs of token states in each row, (batch,)."""
    units = F.normalize(states, dim=-1) * batch.attention_mask[..., None]
    n = batch.attention_mask.sum(1)
    pairs = (n * (n - 1)).clamp_min(1)
    return (units.sum(1).square().sum(-1) - n) / pairs  # |sum|^2 is n + all pairs, twice


def local_attention(encoder: Encoder, batch: Batch) -> Tensor:
    """Return the share of the attention that goes to the token itself and its two neighbours.

    The mean over tokens, heads and layers. The plain modules run: fused ones keep no probabilities.
    """
    shares: list[Tensor] = []
    attention_mask = batch.attention_mask[:, None]  # (batch, 1, length)

    def measure(_: nn.Module, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None]) -> None:
        q, k, _v, mask = inputs
        scores = (q.float() @ k.float().mT) * q.shape[-1] ** -0.5  # (batch, heads, length, length)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        near = scores.softmax(-1).triu(-1).tril(1).sum(-1)
        total = attention_mask.sum() * q.shape[1]
        shares.append((near * attention_mask).sum() / total)

    hooks = [
        module.register_forward_pre_hook(measure)
        for module in encoder.modules()
        if isinstance(module, Attention)
    ]
    try:
        type(encoder).forward(encoder, batch.ids, batch.segments, batch.doc_ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(shares).mean()


def fixed_corruption(rows: Tensor, maskable: Tensor) -> Tensor:
    """Return the ids of `rows` with random tokens of the text in some places, always the same."""
    ids, total = rows[:, :-2].long(), rows[:, -1:]
    candidates = (torch.arange(ids.shape[1]) < total) & maskable[ids]
    if not candidates.any():
        return ids
    generator = torch.Generator().manual_seed(0)  # on the CPU: the same on every device
    tokens = ids[candidates]
    sampled = tokens[torch.randint(len(tokens), ids.shape, generator=generator)]
    chosen = candidates & (torch.rand(ids.shape, generator=generator) < REPLACED_SHARE)
    return torch.where(chosen, sampled, ids)  # (batch, length)
