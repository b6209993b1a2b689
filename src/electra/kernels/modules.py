"""The forward passes of the networks through the kernels."""

import warnings

import torch
from torch import Tensor, nn

from electra.errors import UserError
from electra.kernels.any_gpu.embedding import Embedding, Linear
from electra.kernels.any_gpu.mlm import MlmHead, MlmLoss
from electra.kernels.any_gpu.rtd import RtdHead
from electra.kernels.encoder_stack import EncoderStack, StackConfig
from electra.kernels.exact import (
    changed_mismatch,
    discriminator_head_mismatch,
    encoder_mismatch,
    encoder_state_mismatch,
    generator_head_mismatch,
    has_hooks,
)
from electra.kernels.layer_params import NUM_CAST, PARAM_NAMES
from electra.kernels.plan import (
    EncoderShape,
    Setting,
    encoder_supported,
    plan_encoder,
    plan_mlm_loss,
)
from electra.kernels.shadow_weights import ShadowWeights, attach, attached, cast_weights
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Encoder

__all__ = [
    "attach_shadow_weights",
    "discriminator_forward",
    "discriminator_head_mismatch",
    "encoder_forward",
    "encoder_reason",
    "encoder_shape",
    "generator_head_mismatch",
    "mlm_loss",
    "uses_fused_head",
]


def encoder_reason(encoder: Encoder) -> str | None:
    """Why an encoder has to run as plain modules, or None."""
    if reason := encoder_mismatch(encoder):
        return reason
    head_dim = encoder.config.hidden // encoder.config.head_count
    if not encoder_supported(head_dim, encoder.embeddings.token.weight.device):
        return f"no kernel for attention heads of {head_dim}"
    return None


def compute_dtype(device: torch.device) -> torch.dtype:
    """The precision of GEMMs: the heads cast to it what a plain encoder returns."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def encoder_shape(
    encoder: Encoder, rows: int, length: int, dtype: torch.dtype, *, recompute: bool = False
) -> EncoderShape:
    """What the plan of an encoder depends on."""
    c = encoder.config
    dropouts = encoder.dropout_rates if encoder.training else (0.0, 0.0)
    device = encoder.embeddings.token.weight.device
    sizes = (c.hidden, c.feed_forward_width, c.head_count)
    return EncoderShape(rows, length, *sizes, *dropouts, dtype, device, recompute)


def encoder_forward(
    encoder: Encoder,
    ids: Tensor,
    segments: Tensor,
    attention_mask: Tensor | None = None,
    *,
    recompute: bool = False,
    setting: Setting = "auto",
) -> Tensor:
    """The fused form of `Encoder.forward`, for rows with padding at the end and ascending doc ids.

    differs from it in what padding attends to: itself, not the text. Nothing reads padding.
    """
    if reason := encoder_state_mismatch(encoder):
        _warn(f"an encoder runs as plain modules: {reason}")
        return type(encoder).forward(encoder, ids, segments, attention_mask)
    c, block = encoder.config, encoder.embeddings
    widest = max(c.feed_forward_width, 3 * c.hidden, c.embedding)
    if ids.numel() * widest >= 2**31:  # the kernels' indices are 32 bits
        raise UserError(
            f"{ids.numel():,} tokens at once are too many for the kernels: set "
            "train.grad_accumulation."
        )
    dtype = compute_dtype(ids.device)
    # Without a backward pass nothing has to be saved for it
    lean = recompute or not torch.is_grad_enabled()
    rows, length = ids.shape
    shape = encoder_shape(encoder, rows, length, dtype, recompute=lean)
    tables = (block.token.weight, block.position.weight, block.segment.weight)
    norm = block.norm
    x = Embedding.apply(
        ids, segments, *tables, norm.weight, norm.bias, norm.eps, shape.dropout, dtype
    )
    if isinstance(encoder.embedding_proj, nn.Linear):  # the tables are not as wide as the layers
        x = Linear.apply(x, encoder.embedding_proj.weight, encoder.embedding_proj.bias)
    plan = plan_encoder(shape, setting)
    dropouts = (shape.dropout, shape.attention_dropout)
    config = StackConfig(c.head_count, *dropouts, norm.eps, plan, lean)
    layers = layer_parameters(encoder)
    weights = cast_weights(encoder, [layer[:NUM_CAST] for layer in layers], dtype)
    params = [p for layer in layers for p in layer]
    doc_ids = document_ids(ids, attention_mask)
    return EncoderStack.apply(x, doc_ids, config, weights, *params).view(*ids.shape, -1)


def document_ids(ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """The document of each token (rows, length): padding is one of its own."""
    if attention_mask is None:
        return torch.zeros_like(ids, dtype=torch.int32)
    if attention_mask.dtype == torch.bool:  # in one launch
        return torch.logical_not(attention_mask, out=torch.empty_like(ids, dtype=torch.int32))
    return attention_mask.int()


def layer_parameters(encoder: Encoder) -> list[list[Tensor]]:
    """The parameters of each layer in the order of `PARAM_NAMES`."""
    return [[layer.get_parameter(name) for name in PARAM_NAMES] for layer in encoder.layers]


def attach_shadow_weights(module: nn.Module, dtype: torch.dtype) -> list[ShadowWeights]:
    """Attach shadow weights to all networks of a module, for an optimizer that writes them."""
    for part in module.modules():
        if isinstance(part, Encoder) and encoder_reason(part) is None:
            attach(part, [layer[:NUM_CAST] for layer in layer_parameters(part)], dtype)
        elif isinstance(part, Generator) and generator_head_mismatch(part) is None:
            table = part.encoder.embeddings.token
            attach(table, [[table.weight]], dtype)
    return [shadow for part in module.modules() if (shadow := attached(part)) is not None]


def discriminator_forward(
    discriminator: Discriminator,
    ids: Tensor,
    segments: Tensor,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """The fused form of `Discriminator.forward`."""
    dense, score = discriminator.dense, discriminator.score
    changed = changed_mismatch(discriminator, discriminator_head_mismatch, skip="encoder")
    if changed or has_hooks(dense) or has_hooks(score):
        if changed:
            _warn(f"the discriminator's head runs as plain modules: {changed}")
        return type(discriminator).forward(discriminator, ids, segments, attention_mask)
    hidden = discriminator.encoder(ids, segments, attention_mask)
    flat = hidden.flatten(0, 1).to(compute_dtype(ids.device))
    return RtdHead.apply(flat, dense.weight, dense.bias, score.weight, score.bias).view_as(ids)


def uses_fused_head(generator: Generator) -> bool:
    """Whether `mlm_loss` stands for this generator's head, as it is now."""
    if "has_fused_head" not in vars(generator):
        return False
    parts = (generator, generator.dense, generator.norm)
    if any(map(has_hooks, parts)):
        return False
    changed = changed_mismatch(generator, generator_head_mismatch, skip="encoder")
    if changed:
        _warn(f"the generator's head runs as plain modules: {changed}")
    return changed is None


def _warn(message: str) -> None:
    warnings.warn(f"fused kernels: {message}", stacklevel=3)


def mlm_loss(
    generator: Generator, hidden: Tensor, labels: Tensor, is_masked: Tensor, other: Tensor,
    row_keys: Tensor, temperature: float = 1.0, disallow_correct: bool = False,
    setting: Setting = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`mlm_loss_` of a generator's logits from its hidden states (batch, slots, hidden)."""
    dense, norm = generator.dense, generator.norm
    dtype, width = compute_dtype(hidden.device), generator.encoder.config.embedding
    x = hidden.flatten(0, 1).to(dtype)
    x = MlmHead.apply(x, dense.weight, dense.bias, norm.weight, norm.bias, norm.eps)
    table = generator.encoder.embeddings.token
    (copy,) = cast_weights(table, [[table.weight]], dtype)
    tier = plan_mlm_loss(width, temperature, disallow_correct, dtype, hidden.device, setting)
    flat = (t.flatten() for t in (labels, is_masked, other))
    outputs = MlmLoss.apply(
        x, table.weight, copy[0], generator.bias, generator.absent, *flat, row_keys, temperature,
        disallow_correct, tier == "cuda",
    )  # fmt: skip
    losses, samples, best, log_probs = (t.unflatten(0, labels.shape) for t in outputs)
    return losses, samples, best, log_probs
