"""What the training loop needs of an optimizer, and how a run builds its own."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from electra.optim.adam import OptimConfig, PaperAdam, parameter_groups
from electra.optim.muon import Muon, is_layer_matrix


class Optimizer(Protocol):
    """An optimizer that clips gradients itself and keeps its state by parameter."""

    def step(self, lr: float | Tensor) -> Tensor:
        """Update the parameters; return the norm of the gradient before clipping, as a tensor.

        If the norm is not finite, parameters and state must stay as they are.

        `lr` is the learning rate of the schedule; a parameter group may scale it. In a CUDA graph
        it is an fp32 tensor on the device.
        """

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def moments(self, p: Tensor) -> dict[str, Tensor]:
        """Return the state of a parameter by name, made on first use; checkpoints store it."""

    def supports_kernels(self) -> bool:
        """Whether `step` runs through fused kernels, which also write bf16 shadow weights."""

    def finish_capture(self) -> Any:
        """Finish the capture of a CUDA graph; return what must live as long as the graph."""


def build_optimizer(
    module: nn.Module,
    config: OptimConfig,
    *,
    generator_modules: Sequence[str] = ("generator",),
    kernels: bool = True,
    sum_over_ranks: Callable[[Tensor], Tensor] | None = None,
) -> Optimizer:
    """Build the optimizer of a run.

    The parameters below `generator_modules` are the generator's own; parameters that it shares
    with the discriminator are the discriminator's. If the parameters are sharded over processes,
    `sum_over_ranks` adds up a tensor over them.
    """
    separate = bool(config.clip_by == "network" or config.generator_lr or config.generator_eps)
    groups = parameter_groups(module, config.weight_decay, generator_modules if separate else ())
    for group in groups:
        if group["network"] == "generator":
            group["eps"] = config.generator_eps or config.eps
            group["lr_scale"] = config.generator_lr / config.lr if config.generator_lr else 1.0
    matrices: list[dict[str, Any]] = []
    if config.kind == "muon":
        assert sum_over_ranks is None, "Muon needs whole matrices"
        matrices = split_off_matrices(module, groups, config, generator_modules)
    adam = PaperAdam(
        groups,
        betas=config.betas,
        eps=config.eps,
        clip=config.clip,
        clip_by=config.clip_by,
        kernels=kernels,
        sum_over_ranks=sum_over_ranks,
    )
    return Muon(matrices, adam) if matrices else adam


def split_off_matrices(
    module: nn.Module,
    groups: list[dict[str, Any]],
    config: OptimConfig,
    generator_modules: Sequence[str],
) -> list[dict[str, Any]]:
    """Remove the weights of layers from Adam's groups; return them as groups of Muon.

    A group has the matrices of one network, as a stage may train only one of them.
    """
    names = {p: name for name, p in module.named_parameters()}
    muon_scale = config.muon_lr / config.lr if config.muon_lr else 1.0
    networks: dict[tuple[Any, ...], list[tuple[nn.Parameter, int]]] = {}
    for group in groups:
        lr_scale, weight_decay = group.get("lr_scale", 1.0) * muon_scale, group["weight_decay"]
        for p in group["params"]:
            if is_layer_matrix(names[p], p):
                own = names[p].split(".")[0] in generator_modules
                pieces = 3 if ".qkv." in names[p] else 1
                networks.setdefault((own, lr_scale, weight_decay), []).append((p, pieces))
        group["params"] = [p for p in group["params"] if not is_layer_matrix(names[p], p)]
    return [
        {"params": params, "lr_scale": lr_scale, "weight_decay": weight_decay}
        for (_, lr_scale, weight_decay), params in networks.items()
    ]
