"""Dropout for the CPU, where drawing a random number takes longer than using it.

torch draws one for each element; here one draw of 64 bits serves four elements.
"""

from collections.abc import Callable

import torch
from torch import Tensor


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """What `torch.nn.functional.dropout` does; the rate is rounded to a multiple of 1/65,536."""
    threshold = min(round(p * 65536), 65535)
    if not training or not threshold:
        return x
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    keep = bits >= threshold - 32768  # int16 begins at -32,768
    return x * keep.to(x.dtype).mul_(65536 / (65536 - threshold))


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropped: Callable[[Tensor], Tensor]
) -> Tensor:
    """What `Attention` of the encoder does, written out for another dropout than torch's."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return dropped(scores.softmax(-1)) @ v
