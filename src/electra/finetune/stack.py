"""Several seeds of one network stacked into a single network, so that a GPU trains all at once.

The batches of the seeds are concatenated: rows 0 to B-1 belong to the first seed, the next B to the
second. Only the leaves (linear layers, norms, embeddings, dropout, attention) are replaced; the
modules of `electra.models` around them run unchanged. A small network is bound by kernel launches,
and five seeds need as many launches as one.

The result of a seed does not depend on the other seeds: each has its own random numbers.
"""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from electra.errors import UserError
from electra.models.dropout import attend
from electra.models.encoder import Attention, Embeddings

M = TypeVar("M", bound=nn.Module)
EMBEDDING_PARTS: dict[str, type[nn.Module]] = {
    "token": nn.Embedding,
    "position": nn.Embedding,
    "segment": nn.Embedding,
    "norm": nn.LayerNorm,
    "dropout": nn.Dropout,
}
STACKABLE = (Embeddings, nn.Linear, nn.LayerNorm, nn.Dropout, Attention)
"""Modules with a stacked form; subclasses are refused, because they may compute something else."""


class DropoutRng:
    """Random bytes for dropout, with an independent stream for each seed.

    `draw` fills the bytes of a whole step; the dropout layers take them one after another.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        self.seeds = list(seeds)
        self.generators = [torch.Generator(device) for _ in seeds]
        self.restart()
        self.bytes = torch.zeros(len(seeds), 0, dtype=torch.uint8, device=device)
        self.used = 0

    def restart(self) -> None:
        """Reset each stream to its beginning."""
        for generator, seed in zip(self.generators, self.seeds, strict=True):
            generator.manual_seed(seed)

    def draw(self, count: int) -> None:
        """Fill the first `count` bytes of each seed."""
        words = -(-count // 8)
        if not words:  # no dropout anywhere
            return
        if self.bytes.shape[1] < 8 * words:
            self.bytes = self.bytes.new_zeros(len(self.seeds), 8 * words)
        for row, generator in zip(self.bytes, self.generators, strict=True):
            row[: 8 * words].view(torch.int64).random_(-(2**63), None, generator=generator)

    def take(self, count: int) -> Tensor:
        """The next `count` bytes of each seed; zeros where none were drawn, to measure a step."""
        begin, self.used = self.used, self.used + count
        if self.used > self.bytes.shape[1]:
            return self.bytes.new_zeros(len(self.seeds), count)
        return self.bytes[:, begin : self.used]  # (seeds, count)


class StackedDropout(nn.Module):
    """Dropout with the random bytes of each seed."""

    def __init__(self, p: float, rng: DropoutRng) -> None:
        super().__init__()
        # differs from the paper: a byte decides, so the rate is rounded to a multiple of 1/256.
        self.threshold = min(round(256 * p), 255)
        self.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.threshold:
            return x
        flat = x.reshape(len(self.rng.seeds), -1)
        keep = self.rng.take(flat.shape[1]) >= self.threshold
        return (flat * keep).mul_(256 / (256 - self.threshold)).view(x.shape)


class StackedLinear(nn.Module):
    """One `nn.Linear` per seed."""

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


class StackedLayerNorm(nn.Module):
    """One `nn.LayerNorm` per seed."""

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


class StackedEmbedding(nn.Module):
    """One `nn.Embedding` per seed; `StackedEmbeddings` does the lookup."""

    def __init__(self, tables: Sequence[nn.Embedding]) -> None:
        super().__init__()
        self.weight = stacked([table.weight for table in tables])  # (seeds, rows, width)


class StackedEmbeddings(nn.Module):
    """One embedding block per seed."""

    def __init__(self, blocks: Sequence[Embeddings], rng: DropoutRng) -> None:
        super().__init__()
        self.token = StackedEmbedding([block.token for block in blocks])
        self.position = StackedEmbedding([block.position for block in blocks])
        self.segment = StackedEmbedding([block.segment for block in blocks])
        self.norm = StackedLayerNorm([block.norm for block in blocks])
        self.dropout = StackedDropout(blocks[0].dropout.p, rng)

    def forward(self, ids: Tensor, segments: Tensor) -> Tensor:
        seeds, rows, width = self.token.weight.shape
        length = ids.shape[1]
        first = torch.arange(seeds, device=ids.device)[:, None] * rows
        index = (ids.view(seeds, -1) + first).flatten()
        # index_select, because its backward can be captured in a CUDA graph
        tokens = self.token.weight.flatten(0, 1).index_select(0, index)
        zero, one = self.segment.weight[:, None, None].unbind(3)  # each (seeds, 1, 1, width)
        second = segments.view(seeds, -1, length, 1).bool()
        x = tokens.view(seeds, -1, length, width) + torch.where(second, one, zero)
        x = x + self.position.weight[:, None, :length]
        return self.dropout(self.norm(x.flatten(0, 1)))  # (seeds x batch, length, width)


class StackedAttention(nn.Module):
    """Attention with the dropout of each seed."""

    def __init__(self, dropout: float, rng: DropoutRng) -> None:
        super().__init__()
        self.dropout = StackedDropout(dropout, rng)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if not self.training or not self.dropout.threshold:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return attend(q, k, v, mask, self.dropout)


def stack(networks: Sequence[M], rng: DropoutRng) -> M:
    """One network that computes what each of these computes; they must have the same structure."""
    stacked_network = copy.deepcopy(networks[0])
    _check_stackable(stacked_network, "")
    _replace(stacked_network, networks, rng)
    return stacked_network


def _check_stackable(module: nn.Module, name: str) -> None:
    """Refuse modules that the seeds would share, or whose stacked form computes something else."""
    stackable = type(module) in STACKABLE
    if isinstance(module, STACKABLE) and not stackable:
        raise _not_stackable(name, module, "is a subclass with a forward of its own")
    if isinstance(module, nn.modules.dropout._DropoutNd) and not stackable:
        raise _not_stackable(name, module, "is another kind of dropout")
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    owned = {tensor for tensor, _ in tensors}
    if type(module) in (nn.Linear, nn.LayerNorm):
        if owned != {"weight", "bias"}:
            raise _not_stackable(name, module, "must have a weight and a bias")
    elif owned:
        raise _not_stackable(name, module, f"has a tensor of its own, '{min(owned)}'")
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}".lstrip(".")
        if type(module) is Embeddings and type(child) is not EMBEDDING_PARTS.get(child_name):
            raise _not_stackable(path, child, "is not part of the embedding block")
        if type(child) is not nn.Embedding or type(module) is not Embeddings:
            _check_stackable(child, path)


def _not_stackable(path: str, module: nn.Module, reason: str) -> UserError:
    return UserError(
        f"Fine-tuning cannot train several seeds at the same time with '{path}': this "
        f"{type(module).__name__} {reason}. Add its stacked form to electra/finetune/stack.py."
    )


def _replace(target: nn.Module, sources: Sequence[nn.Module], rng: DropoutRng) -> None:
    for name, child in target.named_children():
        layers: list[Any] = [getattr(source, name) for source in sources]
        if type(child) is Embeddings:
            setattr(target, name, StackedEmbeddings(layers, rng))
        elif type(child) is nn.Linear:
            setattr(target, name, StackedLinear(layers))
        elif type(child) is nn.LayerNorm:
            setattr(target, name, StackedLayerNorm(layers))
        elif type(child) is nn.Dropout:
            setattr(target, name, StackedDropout(child.p, rng))
        elif type(child) is Attention:
            setattr(target, name, StackedAttention(child.dropout, rng))
        else:
            _replace(child, layers, rng)


def unstack_(network: nn.Module, stacked_network: nn.Module, place: int) -> None:
    """Copy the weights of one seed into a network that is not stacked."""
    network.load_state_dict({name: t[place] for name, t in stacked_network.state_dict().items()})


@torch.no_grad()
def finite_seeds(stacked_network: nn.Module) -> list[bool]:
    """For each seed, whether all its weights are finite."""
    finite = [p.isfinite().flatten(1).all(1) for p in stacked_network.parameters()]
    return [bool(each) for each in torch.stack(finite).all(0).tolist()]


def stacked(parameters: Sequence[Tensor]) -> nn.Parameter:
    """One parameter with the seeds as its first axis."""
    return nn.Parameter(torch.stack([p.detach() for p in parameters]))
