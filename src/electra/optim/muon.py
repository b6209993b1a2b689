"""Muon for the matrices of the layers, and the paper's Adam for everything else.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest orthogonal matrix, so
that an update is equally large in all directions. It is scaled to the size of Adam's updates (Liu
et al., 2025), so that both share one learning rate.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from electra.optim.adam import PaperAdam, gradient

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd quintic polynomial that takes all singular values of a matrix towards one."""
ITERATIONS = 5
ADAM_RMS = 0.2
"""The root mean square of an update, in learning rates, as Adam's tends to be."""


def is_layer_matrix(name: str, p: Tensor) -> bool:
    """Whether a parameter is a weight of a transformer layer."""
    return p.ndim == 2 and ".layers." in name


class MatrixStack:
    """Matrices of one shape that are updated together, as few large launches.

    The QKV projection of a layer is three matrices. A matrix with more rows than columns is in the
    stack as its transpose.
    """

    def __init__(self, params: Sequence[tuple[nn.Parameter, int]], scale: float, decay: float):
        self.params, self.pieces = zip(*params, strict=True)
        parts = [self.matrices(p.detach(), n) for p, n in params]
        self.momentum = torch.zeros_like(torch.cat(parts))  # (matrices, rows, columns)
        self.lr_scale = scale * ADAM_RMS * math.sqrt(self.momentum.shape[2])
        self.weight_decay = decay

    @staticmethod
    def matrices(tensor: Tensor, pieces: int) -> Tensor:
        """A parameter or its gradient as matrices with at most as many rows as columns."""
        parts = tensor.view(pieces, -1, tensor.shape[1])
        return parts.mT if parts.shape[1] > parts.shape[2] else parts

    @property
    def has_gradients(self) -> bool:
        """Whether the current stage trains these parameters."""
        return self.params[0].grad is not None

    def gradient(self) -> Tensor:
        """The gradients of all matrices."""
        each = zip(self.params, self.pieces, strict=True)
        return torch.cat([self.matrices(gradient(p), pieces) for p, pieces in each])

    def momenta(self) -> dict[Tensor, Tensor]:
        """The momentum of each parameter, a view."""
        return dict(zip(self.params, self.momentum.split(self.pieces), strict=True))

    def update(self, grad: Tensor, finite: Tensor, lr: float | Tensor, momentum: float) -> None:
        """Update the matrices; with `finite` = 0 nothing changes."""
        dtype = torch.bfloat16 if grad.is_cuda else grad.dtype
        grad = torch.where(finite > 0, grad, 0.0)
        self.momentum.lerp_(grad, (1 - momentum) * finite)
        nesterov = grad.lerp(self.momentum, momentum)
        updates = orthogonalize(nesterov.to(dtype)).to(grad.dtype) * (lr * finite * self.lr_scale)
        # Like Adam's kernels: shadow weights are written too, so the version stays the same
        params = [p.data for p in self.params]
        torch._foreach_mul_(params, 1 - lr * finite * self.weight_decay)
        transposed = updates.mT.contiguous()  # one copy, where views would be a launch each
        each = zip(params, updates.split(self.pieces), transposed.split(self.pieces), strict=True)
        own = [(u if u.shape[2] == p.shape[1] else t).view(p.shape) for p, u, t in each]
        torch._foreach_sub_(params, own)
        if hasattr(self.params[0], "bf16_shadow"):
            torch._foreach_copy_([p.bf16_shadow for p in self.params], params)


class Muon:
    """An optimizer for `electra.optim.optimizer.Optimizer`; see the text above.

    Gradient clipping concerns Adam's parameters: the length of a gradient has no effect on Muon.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], adam: PaperAdam, momentum: float = 0.95
    ) -> None:
        """`groups` have `params` with their pieces, `lr_scale` and `weight_decay`."""
        self.adam, self.decay = adam, momentum
        self.stacks: list[MatrixStack] = []
        for group in groups:
            shapes: dict[tuple[int, ...], list[tuple[nn.Parameter, int]]] = {}
            for p, pieces in group["params"]:
                shape = MatrixStack.matrices(p, pieces).shape[1:]
                shapes.setdefault(tuple(shape), []).append((p, pieces))
            self.stacks += [
                MatrixStack(params, group["lr_scale"], group["weight_decay"])
                for params in shapes.values()
            ]
        self.momenta = {p: m for stack in self.stacks for p, m in stack.momenta().items()}

    @torch.no_grad()
    def step(self, lr: float | Tensor) -> Tensor:
        """Update; return the norm of all gradients before clipping.

        If it is not finite, nothing changes.
        """
        trained = [stack for stack in self.stacks if stack.has_gradients]
        grads = [stack.gradient() for stack in trained]
        own = torch.stack([grad.norm() for grad in grads]).norm()
        others = [p for group in self.adam.param_groups for p in group["params"]]
        smallest = min((p for p in others if p.grad is not None), key=Tensor.numel)
        gradient(smallest).add_(0 * own)  # so that Adam, too, skips the step if it is not finite
        norm = torch.stack([own, self.adam.step(lr)]).norm()
        finite = norm.isfinite().float()
        for stack, grad in zip(trained, grads, strict=True):
            stack.update(grad, finite, lr, self.decay)
        return norm

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.adam.zero_grad()
        for p in self.momenta:
            p.grad = None

    def moments(self, p: Tensor) -> dict[str, Tensor]:
        """Return the momentum of the matrices of a parameter, or Adam's two moments."""
        return {"momentum": self.momenta[p]} if p in self.momenta else self.adam.moments(p)

    def supports_kernels(self) -> bool:
        """Whether Adam's part runs through its kernels."""
        return self.adam.supports_kernels()

    def finish_capture(self) -> Any:
        """Finish the capture of Adam's part."""
        return self.adam.finish_capture()


def orthogonalize(x: Tensor) -> Tensor:
    """Return nearly orthogonal matrices with the same singular vectors; (count, rows, columns)."""
    a, b, c = COEFFICIENTS
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # small, as there are at most as many rows as columns
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x
