"""Dropout for the CPU, where drawing a random number takes longer than using it.

torch draws one for each element; here one draw of 64 bits serves four elements.
"""

import torch
from torch import Tensor

from electra.models.encoder import Attention


def drop(x: Tensor, p: float, training: bool) -> Tensor:
    """What `torch.nn.functional.dropout` does; the rate is rounded to a multiple of 1/65,536."""
    threshold = round(p * 65536)
    if not training or not threshold:
        return x
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    bits = words.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
    keep = bits >= threshold - 32768  # int16 begins at -32,768
    return x * keep.to(x.dtype).mul_(65536 / (65536 - threshold))


def attend(attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """What `Attention.forward` does, with this dropout."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return drop(scores.softmax(-1), attention.dropout, attention.training) @ v
