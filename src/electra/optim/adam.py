"""The Adam that trained BERT and ELECTRA, and its parameter groups."""

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from electra.errors import UserError
from electra.optim.schedule import ScheduleConfig
from electra.optim.shards import local

if TYPE_CHECKING:
    from electra.optim.fused_adam import Chunks

ClipBy = Literal["joint", "network"]
NO_BIAS_CORRECTION = 1e9
"""A step count at which Adam's bias correction is exactly 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig(ScheduleConfig):
    """The optimizer and its learning rate."""

    kind: Literal["adam", "muon"] = "adam"
    """'adam' is the paper's; 'muon' updates the weights of the layers with Muon, and all other
    parameters with Adam."""
    muon_lr: float = 0.0
    """Peak learning rate of Muon; 0 means the same as `lr`, which suits it, because its updates are
    scaled to the size of Adam's."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the two moments."""
    eps: float = 1e-6
    """Adam's epsilon, added to the root of the second moment."""
    generator_eps: float = 0.0
    """Adam's epsilon for the generator's own parameters; 0 means the same as `eps`."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and LayerNorm are exempt."""
    clip: float = 1.0
    """Maximum gradient norm."""
    clip_by: ClipBy = "joint"
    """'joint' clips the gradient of both networks together; 'network' clips each network by its
    own norm, shared parameters counting as the discriminator's."""
    ema: float = 0.0
    """Decay of an exponential moving average of the weights, such as 0.999; validation and exported
    models then use the average. 0 means none."""

    def __post_init__(self) -> None:
        ScheduleConfig.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.clip <= 0 or self.eps <= 0:
            raise UserError("optim.clip and optim.eps must be above 0.")
        for name in ("generator_eps", "weight_decay", "muon_lr"):
            if getattr(self, name) < 0:
                raise UserError(f"optim.{name} must be at least 0.")
        if self.muon_lr and not self.lr:
            raise UserError("optim.muon_lr needs an optim.lr above 0.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError("optim.betas are two numbers, at least 0 and below 1.")
        if not 0 <= self.ema < 1:
            raise UserError(
                "optim.ema is a decay such as 0.999, at least 0 and below 1; 0 means no average."
            )


class PaperAdam(torch.optim.Optimizer):
    """Adam without bias correction, epsilon outside the root, weight decay added to the update.

    torch.optim.AdamW has the correction, which makes its first step 3.2 times shorter. Its fused
    kernel has none at a step count of 1e9, and its decay, applied to the weights before the update,
    equals the paper's.

    A parameter group may have its own `lr_scale`, `eps`, `weight_decay` and `network`.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clip: float = float("inf"),
        clip_by: ClipBy = "joint",
        kernels: bool = True,
        sum_over_ranks: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """`kernels`: in a CUDA graph, use the Triton kernels where they support the settings.

        `sum_over_ranks` adds up a tensor over the processes that hold parts of the parameters.
        """
        defaults = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"lr_scale": 1.0, "network": ""})
        self.clip, self.clip_by, self.kernels = clip, clip_by, kernels
        device = self.param_groups[0]["params"][0].device
        self.count = torch.full((), NO_BIAS_CORRECTION, device=device)
        self.chunks: Chunks | None = None
        """The table of the kernels, created by the first step through them."""
        self.sum_over_ranks = sum_over_ranks

    @torch.no_grad()
    def step(self, lr: float | Tensor) -> Tensor:  # type: ignore[override]
        """Clip and update; return the norm of the gradient before clipping.

        If it is not finite, weights and moments stay as they are; the device decides that, without
        the host. In a CUDA graph, where a number could not change, `lr` is an fp32 tensor.
        """
        if isinstance(lr, Tensor) and self.supports_kernels():
            return self.step_through_kernels(lr)
        norm, scales = self.clip_scales()
        skip = (~norm.isfinite()).float()
        update = fused_update if norm.device.type in ("cpu", "cuda") else foreach_update
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if params:
                update(
                    [local(p) for p in params],
                    [local(gradient(p)) for p in params],
                    [local(self.moments(p)["mean"]) for p in params],
                    [local(self.moments(p)["square"]) for p in params],
                    [self.count] * len(params),
                    lr if group["lr_scale"] == 1 else lr * group["lr_scale"],
                    group,
                    scales[group["network"]],
                    skip,
                )
        return norm

    def clip_scales(self) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the norm of all gradients, and what to divide each network's gradients by."""
        networks = {group["network"]: [group] for group in self.param_groups}
        if self.clip_by == "joint" or len(networks) == 1:
            norm = self.norm(self.param_groups)
            scale = (norm / self.clip).clamp(min=1.0).float()
            return norm, dict.fromkeys(networks, scale)
        for name in networks:
            networks[name] = [group for group in self.param_groups if group["network"] == name]
        norms = {name: self.norm(groups) for name, groups in networks.items()}
        scales = {name: (n / self.clip).clamp(min=1.0).float() for name, n in norms.items()}
        return torch.stack([*norms.values()]).norm(), scales

    def norm(self, groups: Iterable[dict[str, Any]]) -> Tensor:
        """Return the norm of the gradients of some groups together, over all shards of them."""
        norm = gradient_norm(groups)
        return norm if self.sum_over_ranks is None else self.sum_over_ranks(norm.square()).sqrt()

    def supports_kernels(self) -> bool:
        """Whether the Triton kernels can do the step: one clip, one epsilon, one learning rate."""
        sharded = self.sum_over_ranks is not None
        if sharded or not self.kernels or importlib.util.find_spec("triton") is None:
            return False
        from electra.optim.fused_adam import aligned

        groups = self.param_groups
        if self.clip_by != "joint" and len({group["network"] for group in groups}) > 1:
            return False
        names = ("betas", "eps", "lr_scale")
        same = all(group[k] == groups[0][k] for group in groups for k in names)
        tensors = [t for g in groups for p in g["params"] for t in (p, *self.moments(p).values())]
        return (
            same
            and groups[0]["lr_scale"] == 1
            and all(t.is_cuda and t.dtype == torch.float32 and aligned(t) for t in tensors)
        )

    def step_through_kernels(self, lr: Tensor) -> Tensor:
        """Do the same step in Triton, inside a CUDA graph or in the steps that warm it up.

        A capture cannot copy the addresses of the gradients from the host: `finish_capture` does.
        """
        from electra.optim.fused_adam import Chunks, aligned

        every = [(p, group["weight_decay"]) for group in self.param_groups for p in group["params"]]
        params, decays = zip(*((p, d) for p, d in every if p.grad is not None), strict=True)
        # A gradient that is a view of a larger tensor may start at any address
        order = torch.contiguous_format
        grads = [g if aligned(g) else g.clone(memory_format=order) for g in map(gradient, params)]
        capturing = torch.cuda.is_current_stream_capturing()
        if not capturing:
            moments = [self.moments(p) for p in params]
            means, squares = ([m[name] for m in moments] for name in ("mean", "square"))
            self.chunks = Chunks(params, means, squares, decays)
        assert self.chunks is not None, "the table of addresses is created before the capture"
        self.chunks.note(params, grads)
        if not capturing:
            self.chunks.fill()
        group = self.param_groups[0]
        return self.chunks.step(lr, self.clip, group["betas"], group["eps"])

    def finish_capture(self) -> "Chunks | None":
        """After a capture, tell its kernels where the gradients are.

        Returns the table of addresses, which must live as long as the graph.
        """
        if self.chunks is not None:
            self.chunks.fill()
        return self.chunks

    def moments(self, p: Tensor) -> dict[str, Tensor]:
        """Return the two moments of a parameter, zero before its first step."""
        state: dict[str, Tensor] = self.state[p]
        if not state:
            state["mean"] = torch.zeros_like(p)
            state["square"] = torch.zeros_like(p)
        return state


def fused_update(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    lr: float | Tensor,
    group: dict[str, Any],
    scale: Tensor | None,
    skip: Tensor | None = None,
) -> None:
    """Update in one pass over the memory: on the CPU four times as fast as `foreach_update`.

    Gradients are divided by `scale`; nothing changes if `skip` is 1.
    """
    torch._fused_adamw_(
        params,
        grads,
        means,
        squares,
        [],
        counts,
        lr=lr,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        grad_scale=scale,
        found_inf=skip,
    )
    # The kernel leaves versions alone, by which copies of weights are found to be out of date
    torch.autograd.graph.increment_version(params)


def foreach_update(
    params: list[Tensor],
    grads: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    counts: list[Tensor],
    lr: float | Tensor,
    group: dict[str, Any],
    scale: Tensor,
    skip: Tensor,
) -> None:
    """Update on other devices: the fused kernel for MPS ignores `scale`."""
    (beta1, beta2), decay = group["betas"], group["weight_decay"]
    torch._foreach_div_(grads, scale)
    # A step to skip is one without gradient, decay of the moments and learning rate.
    grads = [torch.where(skip == 1, 0.0, grad) for grad in grads]
    keep1, keep2, lr = (
        torch.where(skip == 1, none, torch.as_tensor(value, dtype=means[0].dtype).to(skip.device))
        for value, none in ((beta1, 1.0), (beta2, 1.0), (lr, 0.0))
    )
    torch._foreach_mul_(means, keep1)
    torch._foreach_add_(means, grads, alpha=1 - beta1)
    torch._foreach_mul_(squares, keep2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_add_(roots, group["eps"])
    updates = torch._foreach_div(means, roots)
    torch._foreach_add_(updates, params, alpha=decay)
    torch._foreach_mul_(updates, lr)
    torch._foreach_sub_(params, updates)


def parameter_groups(
    module: nn.Module, weight_decay: float, generator_modules: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Group parameters: weights (embeddings included) decay, biases and LayerNorm do not.

    The children named in `generator_modules` get groups of their own. A shared parameter counts
    once, under its first name, which is the discriminator's.
    """
    networks: dict[str, list[nn.Parameter]] = {"": [], "generator": []}
    for name, p in module.named_parameters():
        if p.requires_grad:
            own = name.split(".")[0] in generator_modules
            networks["generator" if own else ""].append(p)
    return [
        {"params": params, "weight_decay": decay, "network": network}
        for network, members in networks.items()
        for params, decay in (
            ([p for p in members if p.ndim >= 2], weight_decay),
            ([p for p in members if p.ndim < 2], 0.0),
        )
        if params or not network
    ]


def gradient_norm(groups: Iterable[dict[str, Any]]) -> Tensor:
    """Return the norm of the gradients of some groups together, of sharded ones the own part's."""
    params = [p for group in groups for p in group["params"]]
    gradients = [local(gradient(p)) for p in params if p.grad is not None]
    if not gradients:  # a network that the current stage does not train
        return torch.zeros((), device=params[0].device)
    return torch.stack(torch._foreach_norm(gradients)).norm()


def gradient(p: Tensor) -> Tensor:
    """Return the gradient of a parameter that has one."""
    assert p.grad is not None
    return p.grad
