"""Copies of weights in the precision of GEMMs.

Copying them in every step takes 1 % of a step of ELECTRA-Small. Within a CUDA graph they are kept:
the optimizer's kernels write a parameter's `bf16_shadow` together with the parameter. Everything
else that changes parameters are torch operations, which increase their version: then `refresh`
copies again.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ShadowWeights:
    """Copies of the weights of layers with equal shapes, in stacks (layers, ...)."""

    def __init__(self, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> None:
        self.dtype, self.version = dtype, -1
        self.stacks = [t.new_empty(len(layers), *t.shape, dtype=dtype) for t in layers[0]]
        self.copies = [stack[n] for n in range(len(layers)) for stack in self.stacks]
        self.params = [t for layer in layers for t in layer]

    def refresh(self) -> list[Tensor]:
        """The stacks, up to date with the parameters."""
        version = sum(t._version for t in self.params)
        if version != self.version:
            torch._foreach_copy_(self.copies, [t.detach() for t in self.params])
            self.version = version
        return self.stacks


def attach(owner: nn.Module, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> None:
    """Keep shadow weights at `owner` and at their parameters, where an optimizer finds them.

    A parameter has one shadow: where two owners share parameters, the second gets none.
    """
    shadow = ShadowWeights(layers, dtype)
    if any(hasattr(t, "bf16_shadow") or not isinstance(t, nn.Parameter) for t in shadow.params):
        return
    if any(copy.data_ptr() % 16 for copy in shadow.copies):  # the optimizer could not write them
        return
    owner.shadow_weights = shadow  # type: ignore[assignment]
    for param, copy in zip(shadow.params, shadow.copies, strict=True):
        param.bf16_shadow = copy  # type: ignore[attr-defined]


def cast_weights(
    owner: nn.Module, layers: Sequence[Sequence[Tensor]], dtype: torch.dtype
) -> list[Tensor]:
    """Stacks of weights in `dtype`: the attached ones, if there are any."""
    shadow = attached(owner)
    if shadow is None or shadow.dtype != dtype:
        shadow = ShadowWeights(layers, dtype)
    return shadow.refresh()


def attached(owner: nn.Module) -> ShadowWeights | None:
    """The shadow weights of a module, if there are any."""
    return owner.__dict__.get("shadow_weights")
