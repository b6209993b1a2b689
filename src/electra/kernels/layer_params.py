"""A layer as the kernels see it: its parameters in one order, and what is kept for the way back."""

from typing import NamedTuple

from torch import Tensor

NAMES = (
    "qkv.weight",
    "attended.weight",
    "expand.weight",
    "contract.weight",
    "qkv.bias",
    "attended.bias",
    "attention_norm.weight",
    "attention_norm.bias",
    "expand.bias",
    "contract.bias",
    "output_norm.weight",
    "output_norm.bias",
)
"""The parameters of a layer in the order in which they travel; the first five take part in
products, and are cast."""
CAST = 5


class Forth(NamedTuple):
    """Factors of the gradients of the four matrices that the way forth has."""

    x: Tensor
    mixed: Tensor
    y: Tensor
    active: Tensor


class Back(NamedTuple):
    """The other factors, which the way back finds."""

    of_qkv: Tensor
    of_attended: Tensor
    of_inner: Tensor
    of_outer: Tensor


class Kept(NamedTuple):
    """What else is kept for the way back."""

    qkv: Tensor
    logs: Tensor
    normal1: Tensor
    scale1: Tensor
    normal2: Tensor
    scale2: Tensor
    slope: Tensor
    """Of gelu."""
