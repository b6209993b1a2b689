"""Several seeds of one network as a single network, so that a GPU trains them all at once.

The seeds ride in the batch: rows 0 to B-1 belong to the first seed, the next B to the second. Only
the leaves (linear layers, norms, tables, dropout, attention) know of it; the description of the
network in `electra.models` is used as it is. A small network is bound by the launches of its
kernels, and those are the same number for five seeds as for one.

What a seed computes does not depend on its company: each draws its own random numbers.
"""

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.models.dropout import attend
from electra.models.encoder import Attention, Embeddings

M = TypeVar("M", bound=nn.Module)


class Noise:
    """Random bytes for dropout, a stream of its own for each seed.

    One draw fills the bytes of a whole step; the places that drop take theirs one after another.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds = list(seeds)
        self.streams = [torch.Generator(device) for _ in seeds]
        self.restart()
        self.bytes = torch.zeros(len(seeds), 0, dtype=torch.uint8, device=device)
        self.used = 0

    def restart(self) -> None:
        """Begin each stream anew."""
        for stream, seed in zip(self.streams, self.seeds, strict=True):
            stream.manual_seed(seed)

    def draw(self, count: int) -> None:
        """Fill the first `count` bytes of each seed."""
        words = -(-count // 8)
        if not words:  # no dropout anywhere
            return
        if self.bytes.shape[1] < 8 * words:
            self.bytes = self.bytes.new_zeros(len(self.streams), 8 * words)
        for row, stream in zip(self.bytes, self.streams, strict=True):
            row[: 8 * words].view(torch.int64).random_(-(2**63), None, generator=stream)

    def take(self, count: int) -> Tensor:
        """The next `count` bytes of each seed; those not drawn are zero, which a trial may use."""
        begin, self.used = self.used, self.used + count
        if self.used > self.bytes.shape[1]:
            return self.bytes.new_zeros(len(self.streams), count)
        return self.bytes[:, begin : self.used]  # (seeds, count)


class StackedDropout(nn.Module):
    """Dropout with each seed's own random bytes."""

    def __init__(self, p: float, noise: Noise) -> None:
        super().__init__()
        # differs from the paper: a byte decides, so the rate is rounded to a multiple of 1/256.
        self.threshold = min(round(256 * p), 255)
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.threshold:
            return x
        flat = x.reshape(len(self.noise.streams), -1)
        keep = self.noise.take(flat.shape[1]) >= self.threshold
        return (flat * keep).mul_(256 / (256 - self.threshold)).view(x.shape)


class StackedLinear(nn.Module):
    """A linear layer for each seed."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = stacked([layer.weight for layer in layers])  # (seeds, out, in)
        self.bias = stacked([layer.bias for layer in layers])  # (seeds, out)

    def forward(self, x: Tensor) -> Tensor:
        seeds, outputs, inputs = self.weight.shape
        if seeds == 1:
            return F.linear(x, self.weight[0], self.bias[0])
        flat = x.reshape(seeds, -1, inputs)
        y = torch.baddbmm(self.bias[:, None], flat, self.weight.transpose(1, 2))
        return y.view(*x.shape[:-1], outputs)


class StackedNorm(nn.Module):
    """A LayerNorm for each seed."""

    def __init__(self, layers: Sequence[nn.LayerNorm]) -> None:
        super().__init__()
        self.weight = stacked([layer.weight for layer in layers])  # (seeds, width)
        self.bias = stacked([layer.bias for layer in layers])
        self.eps = layers[0].eps

    def forward(self, x: Tensor) -> Tensor:
        seeds, width = self.weight.shape
        if seeds == 1:
            return F.layer_norm(x, (width,), self.weight[0], self.bias[0], self.eps)
        y = F.layer_norm(x, (width,), eps=self.eps).view(seeds, -1, width)
        return torch.addcmul(self.bias[:, None], y, self.weight[:, None]).view(x.shape)


class StackedTable(nn.Module):
    """An embedding table for each seed."""

    def __init__(self, tables: Sequence[nn.Embedding]) -> None:
        super().__init__()
        self.weight = stacked([table.weight for table in tables])  # (seeds, rows, width)


class StackedEmbeddings(nn.Module):
    """The embedding block for each seed."""

    def __init__(self, blocks: Sequence[Embeddings], noise: Noise) -> None:
        super().__init__()
        self.token = StackedTable([block.token for block in blocks])
        self.position = StackedTable([block.position for block in blocks])
        self.segment = StackedTable([block.segment for block in blocks])
        self.norm = StackedNorm([block.norm for block in blocks])
        self.dropout = StackedDropout(blocks[0].dropout.p, noise)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        seeds, rows, width = self.token.weight.shape
        length = ids.shape[1]
        first = torch.arange(seeds, device=ids.device)[:, None] * rows
        places = (ids.view(seeds, -1) + first).flatten()
        # index_select, because its gradient can be captured in a CUDA graph
        tokens = self.token.weight.flatten(0, 1).index_select(0, places)
        zero, one = self.segment.weight[:, None, None].unbind(3)  # each (seeds, 1, 1, width)
        second = segments.view(seeds, -1, length, 1).bool()
        x = tokens.view(seeds, -1, length, width) + torch.where(second, one, zero)
        x = x + self.position.weight[:, None, :length]
        return self.dropout(self.norm(x.flatten(0, 1)))  # (seeds x batch, length, width)


class StackedAttention(nn.Module):
    """Attention whose dropout draws each seed's own random numbers."""

    def __init__(self, dropout: float, noise: Noise) -> None:
        super().__init__()
        self.dropout = StackedDropout(dropout, noise)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if not self.training or not self.dropout.threshold:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return attend(q, k, v, mask, self.dropout)


def stack(networks: Sequence[M], noise: Noise) -> M:
    """One network that computes what each of these would; they must be of the same build."""
    whole = copy.deepcopy(networks[0])
    _replace(whole, networks, noise)
    return whole


def _replace(target: nn.Module, sources: Sequence[nn.Module], noise: Noise) -> None:
    for name, child in target.named_children():
        twins = [getattr(source, name) for source in sources]
        new: nn.Module | None = None
        if isinstance(child, Embeddings):
            new = StackedEmbeddings(twins, noise)
        elif isinstance(child, nn.Linear):
            new = StackedLinear(twins)
        elif isinstance(child, nn.LayerNorm):
            new = StackedNorm(twins)
        elif isinstance(child, nn.Dropout):
            new = StackedDropout(child.p, noise)
        elif isinstance(child, Attention):
            new = StackedAttention(child.dropout, noise)
        if new is None:
            _replace(child, twins, noise)
        else:
            setattr(target, name, new)


def unstack_(network: nn.Module, whole: nn.Module, seed: int) -> None:
    """Copy one seed's weights into a network of the plain build."""
    network.load_state_dict({name: t[seed] for name, t in whole.state_dict().items()})


def stacked(parameters: Sequence[Tensor]) -> nn.Parameter:
    """One parameter with the seeds as its first axis."""
    return nn.Parameter(torch.stack([p.detach() for p in parameters]))
