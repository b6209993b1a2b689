"""The paper's Adam for stacked seeds: per-seed clipping, a rate per layer, all in few kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor

ENDLESS = 1e9
"""A step count at which Adam's bias correction is exactly 1, that is, there is none."""


class StackedAdam:
    """`PaperAdam` on parameters whose first axis is the seed; each seed has its own norm.

    torch's fused AdamW, told that it has run for ever: then it has no bias correction, and its
    decay, applied to the weights first, comes to the paper's. With `bias_correction` it is told
    the truth. It works on the CPU, on CUDA, and within a CUDA graph, because rates and count are
    tensors.
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
        self.begin = 0.0 if bias_correction else ENDLESS
        self.count = torch.tensor(self.begin, device=first.device)
        self.weight_decay, self.betas, self.eps, self.clip = weight_decay, betas, eps, clip

    @torch.no_grad()
    def step(self, rates: Tensor) -> None:
        """One update; `rates` has the learning rate of each group."""
        self.count += 1
        scales = (self.norms() / self.clip).clamp(min=1.0)  # (seeds,); gradients are divided by it
        for number, group in enumerate(self.groups):
            means, squares = self.means[number], self.squares[number]
            for decay, members in self.by_decay(group):
                for seed in range(self.seeds):
                    torch._fused_adamw_(
                        [group[i][seed] for i in members],
                        [_gradient(group[i])[seed] for i in members],
                        [means[i][seed] for i in members],
                        [squares[i][seed] for i in members],
                        [],
                        [self.count] * len(members),
                        lr=rates[number],
                        beta1=self.betas[0],
                        beta2=self.betas[1],
                        weight_decay=decay,
                        eps=self.eps,
                        amsgrad=False,
                        maximize=False,
                        grad_scale=scales[seed],
                        found_inf=None,
                    )

    def forget(self) -> None:
        """As before the first step."""
        self.count.fill_(self.begin)
        for running in (*self.means, *self.squares):
            torch._foreach_zero_(running)

    def norms(self) -> Tensor:
        """The norm of each seed's gradient."""
        gradients = [_gradient(p) for group in self.groups for p in group]
        parts = [g[seed] for seed in range(self.seeds) for g in gradients]
        return torch.stack(torch._foreach_norm(parts)).view(self.seeds, -1).norm(dim=1)

    def by_decay(self, group: list[Tensor]) -> list[tuple[float, list[int]]]:
        """The members that decay (matrices and tables) and those that do not (vectors)."""
        if not self.weight_decay:
            return [(0.0, list(range(len(group))))]
        matrices = [i for i, p in enumerate(group) if p.ndim >= 3]  # one axis is the seed's
        vectors = [i for i, p in enumerate(group) if p.ndim < 3]
        return [(d, m) for d, m in ((self.weight_decay, matrices), (0.0, vectors)) if m]


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad
