"""Cheaper dropout for the CPU: one random 64-bit number serves four elements.

torch draws one number per element, which takes longer than everything else in dropout.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """Apply dropout like `torch.nn.functional.dropout`, with `p` rounded to 1/65,536."""
    threshold = min(round(p * 65536), 65535)
    if not training or not threshold:
        return x
    random = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    bits = random.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    keep = bits >= threshold - 32768  # int16 starts at -32,768
    return x * keep.to(x.dtype).mul_(65536 / (65536 - threshold))


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: Callable[[Tensor], Tensor]
) -> Tensor:
    """Compute what the encoder's `Attention` does, with another dropout than torch's."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return dropout(scores.softmax(-1)) @ v
