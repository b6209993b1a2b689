"""Which implementation computes each piece of a network, decided once for each input shape."""

import functools
from typing import Literal, NamedTuple

import torch

from electra.kernels.any_gpu import attention as any_attention
from electra.kernels.cuda import attention as cuda_attention
from electra.kernels.cuda import fused_encoder, fused_linear_cross_entropy
from electra.kernels.cuda import gemm as cuda_gemm
from electra.kernels.hopper import gemm as hopper_gemm

Tier = Literal["any_gpu", "hopper", "cuda"]
"""Triton for every GPU, Triton for narrow models on Hopper GPUs, CUDA C++ for exact sizes."""
Setting = Literal["triton", "auto"]
"""`train.fused_kernels`: 'triton' leaves out the CUDA C++ tier."""
TIER_NAMES: dict[Tier, str] = {"any_gpu": "Triton", "hopper": "Triton, Hopper", "cuda": "CUDA"}

SMALL = 5e9
"""Multiplications of a weight's gradient below which the GEMM is too small to fill a GPU."""


class EncoderShape(NamedTuple):
    """Everything that a plan depends on."""

    rows: int
    length: int
    hidden: int
    inner: int
    heads: int
    dropout: float
    attention_dropout: float
    dtype: torch.dtype
    device: torch.device
    recompute: bool = False
    """Keep only each layer's input, and compute the rest again in the backward pass."""


class Plan(NamedTuple):
    """The implementation of each piece of an encoder."""

    encoder: Literal["layers", "fused"]
    """'fused': all layers in one CUDA C++ kernel; the other fields are then unused."""
    attention: Tier
    gemm: Tier
    """QKV projection, up-projection with GELU, and the input gradient of the output projection."""
    gemm_layernorm: Tier
    """Output and down-projection with residual, dropout and LayerNorm."""
    batch_weight_grads: bool
    """Compute the weight gradients of all layers in one batched GEMM at the end. It costs memory:
    the operands of all layers."""

    def describe(self) -> str:
        """A few words for people."""
        if self.encoder == "fused":
            return "fused encoder (CUDA)"
        if self.gemm == self.gemm_layernorm == self.attention:
            return f"GEMM + attention ({TIER_NAMES[self.gemm]})"
        gemm = TIER_NAMES[self.gemm]
        if self.gemm_layernorm != self.gemm:
            gemm += f", LayerNorm {TIER_NAMES[self.gemm_layernorm]}"
        return f"GEMM ({gemm}) + attention ({TIER_NAMES[self.attention]})"


@functools.cache
def plan_encoder(s: EncoderShape, setting: Setting = "auto") -> Plan:
    """The fastest implementation of each piece that supports this shape."""
    cuda = setting == "auto"
    tokens, sizes = s.rows * s.length, (s.hidden, s.inner)
    dropouts = (s.dropout, s.attention_dropout)
    batch_weight_grads = not s.recompute and tokens * s.hidden * s.inner < SMALL
    fused = (
        cuda
        and batch_weight_grads
        and fused_encoder.supports(s.length, s.heads, *sizes, dropouts, s.dtype, s.device)
    )
    attention: Tier = "any_gpu"
    head_dim = s.hidden // s.heads
    if cuda and cuda_attention.supports(s.length, head_dim, s.attention_dropout, s.dtype, s.device):
        attention = "cuda"
    gemm: Tier = "any_gpu"
    if hopper_gemm.supports(*sizes, s.dtype, s.device):
        gemm = "hopper"
    gemm_layernorm = gemm
    if cuda and cuda_gemm.supports(*sizes, s.dtype, s.device):
        gemm = "cuda"
    if cuda and cuda_gemm.supports_layernorm(*sizes, s.dropout, s.dtype, s.device):
        gemm_layernorm = "cuda"
    return Plan("fused" if fused else "layers", attention, gemm, gemm_layernorm, batch_weight_grads)


@functools.cache
def plan_mlm_loss(
    width: int,
    temperature: float,
    disallow_correct: bool,
    dtype: torch.dtype,
    device: torch.device,
    setting: Setting = "auto",
) -> Tier:
    """The implementation of the MLM loss for a token table of this width."""
    supported = fused_linear_cross_entropy.supports(
        width, temperature, disallow_correct, dtype, device
    )
    return "cuda" if setting == "auto" and supported else "any_gpu"


def encoder_supported(head_dim: int, device: torch.device) -> bool:
    """Whether the kernels can compute an encoder with heads of this size at all."""
    return any_attention.supports(head_dim, device)
