"""The networks' forward passes through the kernels."""

import torch
from torch import Tensor, nn

from electra.errors import UserError
from electra.kernels.any_gpu.attention import attention_fits
from electra.kernels.encoder_stack import Body, Shape
from electra.kernels.any_gpu.embedding import Embed
from electra.kernels.any_gpu.mlm_head import Head
from electra.kernels.layer_params import CAST, NAMES
from electra.kernels.any_gpu.linear import Linear
from electra.kernels.any_gpu.rtd_head import Score
from electra.kernels.shadow_weights import Twins, copied, keep, kept
from electra.kernels.any_gpu.mlm_loss import Guess
from electra.models.electra import Discriminator, Generator
from electra.models.encoder import Embeddings, Encoder


def fits(encoder: Encoder) -> bool:
    """Whether the kernels can do what this encoder does."""
    c = encoder.config
    plain = type(encoder) is Encoder and type(encoder.embeddings) is Embeddings
    here = encoder.embeddings.token.weight.device
    return plain and attention_fits(c.hidden // c.head_count, here)


def precision(device: torch.device) -> torch.dtype:
    """Of products: in it the heads take vectors, whatever a plain encoder gave them."""
    here = device.type
    return torch.get_autocast_dtype(here) if torch.is_autocast_enabled(here) else torch.float32


def encode(
    encoder: Encoder,
    ids: Tensor,
    segments: Tensor,
    attention_mask: Tensor | None = None,
    *,
    recompute: bool = False,
) -> Tensor:
    """What `Encoder.forward` computes, for rows with padding at the end and ascending documents.

    differs from it in what padding sees: itself, not the text. Nothing looks at padding.
    """
    c, block = encoder.config, encoder.embeddings
    widest = max(c.feed_forward_width, 3 * c.hidden, c.embedding)
    if ids.numel() * widest >= 2**31:  # the kernels' indices
        raise UserError(
            f"{ids.numel():,} tokens at once are too many for the kernels: set "
            "train.grad_accumulation."
        )
    dtype = precision(ids.device)
    p = c.dropout if encoder.training else 0.0
    tables = (block.token.weight, block.position.weight, block.segment.weight)
    norm = block.norm
    x = Embed.apply(ids, segments, *tables, norm.weight, norm.bias, norm.eps, p, dtype)
    if isinstance(encoder.project, nn.Linear):  # the tables are not as wide as the layers
        x = Linear.apply(x, encoder.project.weight, encoder.project.bias)
    if attention_mask is None:
        documents = torch.zeros_like(ids, dtype=torch.int32)
    elif attention_mask.dtype == torch.bool:  # in one launch
        documents = torch.logical_not(attention_mask, out=torch.empty_like(ids, dtype=torch.int32))
    else:
        documents = attention_mask.int()
    attention_p = c.attention_dropout if encoder.training else 0.0
    # Without a way back nothing has to be kept for it
    lean = recompute or not torch.is_grad_enabled()
    shape = Shape(c.head_count, p, attention_p, norm.eps, lean)
    layers = parameters(encoder)
    matrices = copied(encoder, [layer[:CAST] for layer in layers], dtype)
    params = [p for layer in layers for p in layer]
    return Body.apply(x, documents, shape, matrices, *params).view(*ids.shape, -1)


def parameters(encoder: Encoder) -> list[list[Tensor]]:
    """Of each layer, in the order of `NAMES`."""
    return [[layer.get_parameter(name) for name in NAMES] for layer in encoder.layers]


def keep_copies(module: nn.Module, dtype: torch.dtype) -> list[Twins]:
    """From now on copies of matrices last, where there is an optimizer that writes them; returns
    them."""
    for part in module.modules():
        if isinstance(part, Encoder) and fits(part):
            keep(part, [layer[:CAST] for layer in parameters(part)], dtype)
        elif isinstance(part, Generator):
            table = part.encoder.embeddings.token
            keep(table, [[table.weight]], dtype)
    return [twins for part in module.modules() if (twins := kept(part)) is not None]


def judge(
    discriminator: Discriminator,
    ids: Tensor,
    segments: Tensor,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """What `Discriminator.forward` computes."""
    hidden = discriminator.encoder(ids, segments, attention_mask)
    dense, score = discriminator.dense, discriminator.score
    flat = hidden.flatten(0, 1).to(precision(ids.device))
    return Score.apply(flat, dense.weight, dense.bias, score.weight, score.bias).view_as(ids)


def guess(
    generator: Generator, hidden: Tensor, truth: Tensor, is_masked: Tensor,
    temperature: float, disallow_correct: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """From vectors (batch, slots, hidden): the summed loss, right (batch, slots), samples."""
    losses, samples, best, _ = words(
        generator, hidden, truth, is_masked, truth, temperature, disallow_correct
    )
    return losses.sum(), (best == truth) & is_masked, samples


def words(
    generator: Generator, hidden: Tensor, truth: Tensor, is_masked: Tensor, other: Tensor,
    temperature: float = 1.0, disallow_correct: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """`read_logits_` of the logits at (batch, slots), in this form."""
    dense, norm = generator.dense, generator.norm
    x = hidden.flatten(0, 1).to(precision(hidden.device))
    x = Head.apply(x, dense.weight, dense.bias, norm.weight, norm.bias, norm.eps)
    table = generator.encoder.embeddings.token
    (copy,) = copied(table, [[table.weight]], x.dtype)
    flat = (t.flatten() for t in (truth, is_masked, other))
    found = Guess.apply(
        x,
        table.weight,
        copy[0],
        generator.bias,
        generator.absent,
        *flat,
        temperature,
        disallow_correct,
    )
    losses, samples, best, logs = (t.unflatten(0, truth.shape) for t in found)
    return losses, samples, best, logs
