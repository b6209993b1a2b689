"""The Adam that trained BERT and ELECTRA, and the groups that it is given."""

import importlib.util
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from electra.optim.fused_adam import Chunks

ENDLESS = 1e9
"""A step count at which Adam's bias correction is exactly 1, that is, there is none."""


class PaperAdam(torch.optim.Optimizer):
    """Adam without bias correction, epsilon outside the root, decay added to the update.

    torch.optim.AdamW has the correction, which makes its first step 3.2 times shorter. Its fused
    kernel, told that it has run for ever, has none; and its decay, which it applies to the weights
    before the update, comes to the paper's.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clip: float = float("inf"),
        kernels: bool = True,
    ) -> None:
        """`kernels`: within a CUDA graph, take the steps through Triton where that is possible."""
        super().__init__(params, {"betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.clip, self.kernels = clip, kernels
        self.count = torch.full((), ENDLESS, device=self.param_groups[0]["params"][0].device)
        self.chunks: Chunks | None = None
        """What the kernels work on, from the first step through them on."""

    @torch.no_grad()
    def step(self, rate: float | Tensor) -> Tensor:  # type: ignore[override]
        """Clip and update; returns the norm that the gradient had.

        A CUDA graph, in which a number could not change, gives the rate as a tensor in fp32.
        """
        if isinstance(rate, Tensor) and self.fits():
            return self.step_through_kernels(rate)
        norm = self.norm()
        scale = (norm / self.clip).clamp(min=1.0).float()  # gradients are divided by it
        update = fused if norm.device.type in ("cpu", "cuda") else written_out
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                update(
                    params,
                    [gradient(p) for p in params],
                    [self.moments(p)["mean"] for p in params],
                    [self.moments(p)["square"] for p in params],
                    [self.count] * len(params),
                    rate,
                    group,
                    scale,
                )
        return norm

    def fits(self) -> bool:
        """Whether the kernels can take the step."""
        if not self.kernels or importlib.util.find_spec("triton") is None:
            return False
        from electra.optim.fused_adam import aligned

        groups = self.param_groups
        same = all(group[k] == groups[0][k] for group in groups for k in ("betas", "eps"))
        tensors = [t for g in groups for p in g["params"] for t in (p, *self.moments(p).values())]
        return same and all(t.is_cuda and t.dtype == torch.float32 and aligned(t) for t in tensors)

    def step_through_kernels(self, rate: Tensor) -> Tensor:
        """The same step, of a graph or of those that warm it up.

        A capture cannot copy from the host where its gradients are: it leaves that to `settle`.
        """
        from electra.optim.fused_adam import Chunks, aligned

        every = [(p, group["weight_decay"]) for group in self.param_groups for p in group["params"]]
        params, decays = zip(*((p, d) for p, d in every if p.grad is not None), strict=True)
        # A gradient that is a part of a larger tensor may begin anywhere
        order = torch.contiguous_format
        grads = [g if aligned(g) else g.clone(memory_format=order) for g in map(gradient, params)]
        capturing = torch.cuda.is_current_stream_capturing()
        if not capturing:
            moments = [self.moments(p) for p in params]
            means, squares = ([m[name] for m in moments] for name in ("mean", "square"))
            self.chunks = Chunks(params, means, squares, decays)
        assert self.chunks is not None, "a step before the capture makes the table"
        self.chunks.note(params, grads)
        if not capturing:
            self.chunks.fill()
        group = self.param_groups[0]
        return self.chunks.step(rate, self.clip, group["betas"], group["eps"])

    def settle(self) -> "Chunks | None":
        """After a capture: tell its kernels where the gradients are.

        Returns what has to live as long as the graph, which reads it in each replay.
        """
        if self.chunks is not None:
            self.chunks.fill()
        return self.chunks

    def norm(self) -> Tensor:
        """The norm of all gradients together."""
        params = (p for group in self.param_groups for p in group["params"])
        gradients = [gradient(p) for p in params if p.grad is not None]
        return torch.stack(torch._foreach_norm(gradients)).norm()

    def moments(self, p: Tensor) -> dict[str, Tensor]:
        """The two running means of a parameter, zero before its first step."""
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["mean"] = torch.zeros_like(p)
            state["square"] = torch.zeros_like(p)
        return state


def fused(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    rate: float | Tensor,
    group: dict[str, Any],
    scale: Tensor | None,
) -> None:
    """One pass over the memory: on the CPU four times as fast as the operations one by one.

    `scale` is what gradients are divided by.
    """
    torch._fused_adamw_(
        params,
        grads,
        means,
        squares,
        [],
        counts,
        lr=rate,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=scale,
    )


def written_out(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    rate: float | Tensor,
    group: dict[str, Any],
    scale: Tensor,
) -> None:
    """The same for other devices: Apple's fused kernel passes over the scale in silence."""
    (beta1, beta2), decay = group["betas"], group["weight_decay"]
    torch._foreach_div_(grads, scale)
    torch._foreach_mul_(means, beta1)
    torch._foreach_add_(means, grads, alpha=1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, group["eps"])
    updates = torch._foreach_div(means, roots)
    torch._foreach_add_(updates, params, alpha=decay)
    torch._foreach_mul_(updates, rate)
    torch._foreach_sub_(params, updates)


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices (tables included) decay; biases and LayerNorm, the vectors, do not."""
    params = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
    ]


def gradient(p: Tensor) -> Tensor:
    """Of a parameter that has one."""
    assert p.grad is not None
    return p.grad
