"""A layer as the kernels see it: its parameters in one order, and what the backward pass needs."""

from typing import NamedTuple

from torch import Tensor

PARAM_NAMES = (
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
"""The parameters of `electra.models.encoder.Layer` in the order of `LayerParams`."""
NUM_CAST = 5
"""The first parameters are inputs of GEMMs, and are cast to the precision of the activations."""


class LayerParams(NamedTuple):
    """Parameters of a layer, or stacks of them (layers, ...), in the order of `PARAM_NAMES`."""

    w_qkv: Tensor
    w_out: Tensor
    w_up: Tensor
    w_down: Tensor
    b_qkv: Tensor
    b_out: Tensor
    norm1_weight: Tensor
    norm1_bias: Tensor
    b_up: Tensor
    b_down: Tensor
    norm2_weight: Tensor
    norm2_bias: Tensor


class LinearInputs(NamedTuple):
    """Inputs of the four linear maps, one operand of their weights' gradients."""

    x: Tensor
    context: Tensor
    """Output of attention."""
    y: Tensor
    """Output of the first LayerNorm."""
    gelu_out: Tensor


class ActivationGrads(NamedTuple):
    """Gradients of the outputs of the four linear maps, the other operand."""

    grad_qkv: Tensor
    grad_out_proj: Tensor
    grad_up_proj: Tensor
    grad_down_proj: Tensor


class SavedForBackward(NamedTuple):
    """What else the backward pass needs of a layer."""

    qkv: Tensor
    lse: Tensor
    """Log-sum-exp of the attention scores."""
    x_hat1: Tensor
    rstd1: Tensor
    x_hat2: Tensor
    rstd2: Tensor
    gelu_grad: Tensor
    """Derivative of GELU."""
