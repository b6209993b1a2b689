"""The paper's Adam for stacked seeds: clipping per seed, a learning rate per layer."""

from collections.abc import Sequence

import torch
from torch import Tensor

from electra.optim.adam import NO_BIAS_CORRECTION, fused_update, gradient


class StackedAdam:
    """`PaperAdam` for parameters whose first dimension is the seed; clips each seed by its norm.

    Like `PaperAdam` it calls torch's fused AdamW with a step count of 1e9, or with
    `bias_correction` the real count. It works on the CPU, on CUDA and inside a CUDA graph, because
    learning rates and step count are tensors.
    """

    def __init__(
        self,
        groups: Sequence[Sequence[Tensor]],
        *,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        clip: float = 1.0,
        bias_correction: bool = False,
    ) -> None:
        self.groups = [list(group) for group in groups]
        first = self.groups[0][0]
        self.seeds = first.shape[0]
        self.means = [[torch.zeros_like(p) for p in group] for group in self.groups]
        self.squares = [[torch.zeros_like(p) for p in group] for group in self.groups]
        self.first_count = 0.0 if bias_correction else NO_BIAS_CORRECTION
        self.count = torch.tensor(self.first_count, device=first.device)
        self.weight_decay, self.betas, self.eps, self.clip = weight_decay, betas, eps, clip

    @torch.no_grad()
    def step(self, lrs: Tensor) -> None:
        """Update; `lrs` has the learning rate of each group."""
        self.count += 1
        self.clip_gradients()
        for number, group in enumerate(self.groups):
            means, squares = self.means[number], self.squares[number]
            for decay, members in self.by_decay(group):
                fused_update(  # all seeds together: few launches, each with many blocks
                    [group[i] for i in members],
                    [gradient(group[i]) for i in members],
                    [means[i] for i in members],
                    [squares[i] for i in members],
                    [self.count] * len(members),
                    lrs[number],
                    {"betas": self.betas, "eps": self.eps, "weight_decay": decay},
                    None,
                )

    def reset(self) -> None:
        """Reset the moments and the step count."""
        self.count.fill_(self.first_count)
        for moments in (*self.means, *self.squares):
            torch._foreach_zero_(moments)

    def clip_gradients(self) -> None:
        """Clip each seed's gradient to the norm `clip`."""
        gradients = [gradient(p) for group in self.groups for p in group]
        parts = [[g[seed] for g in gradients] for seed in range(self.seeds)]
        norms = torch._foreach_norm([part for own in parts for part in own])
        scales = torch.stack(norms).view(self.seeds, -1).norm(dim=1) / self.clip  # (seeds,)
        for own, scale in zip(parts, scales.clamp(min=1.0), strict=True):
            torch._foreach_div_(own, scale)

    def by_decay(self, group: list[Tensor]) -> list[tuple[float, list[int]]]:
        """Return the indices of parameters that decay (weights) and that do not (vectors)."""
        if not self.weight_decay:
            return [(0.0, list(range(len(group))))]
        matrices = [i for i, p in enumerate(group) if p.ndim >= 3]  # one dimension is the seed's
        vectors = [i for i, p in enumerate(group) if p.ndim < 3]
        return [(d, m) for d, m in ((self.weight_decay, matrices), (0.0, vectors)) if m]
