"""Copies of matrices in the precision of products.

Copies for a step alone take 1 % of a step of ELECTRA-Small. Within a CUDA graph they last: the
optimizer's kernels write a parameter's `twin` with the parameter. All else that changes parameters
are operations of torch, which count how often they do: then `fresh` copies anew.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Twins:
    """Of layers that have the same shapes, in stacks: (layers, ...)."""

    def __init__(self, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> None:
        self.dtype, self.version = dtype, -1
        self.stacks = [t.new_empty(len(layers), *t.shape, dtype=dtype) for t in layers[0]]
        self.copies = [stack[n] for n in range(len(layers)) for stack in self.stacks]
        self.originals = [t for layer in layers for t in layer]

    def fresh(self) -> list[Tensor]:
        """The stacks, as the parameters are now."""
        version = sum(t._version for t in self.originals)
        if version != self.version:
            torch._foreach_copy_(self.copies, [t.detach() for t in self.originals])
            self.version = version
        return self.stacks


def keep(owner: nn.Module, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> None:
    """Twins that last, and that an optimizer finds by their parameters: one for each, so that of
    two owners one has none."""
    twins = Twins(layers, dtype)
    if any(hasattr(t, "twin") or not isinstance(t, nn.Parameter) for t in twins.originals):
        return
    if any(copy.data_ptr() % 16 for copy in twins.copies):  # the optimizer could not write them
        return
    owner.twins = twins  # type: ignore[assignment]
    for original, copy in zip(twins.originals, twins.copies, strict=True):
        original.twin = copy  # type: ignore[attr-defined]


def copied(
    owner: nn.Module, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype
) -> list[Tensor]:
    """Stacks of copies: those that last, if there are any."""
    twins = kept(owner)
    if twins is None or twins.dtype != dtype:
        twins = Twins(layers, dtype)
    return twins.fresh()


def kept(owner: nn.Module) -> Twins | None:
    """The twins of a module's own, if they last."""
    return owner.__dict__.get("twins")
