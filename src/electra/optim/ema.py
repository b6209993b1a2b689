"""An exponential moving average of the weights, which validation and exported models use."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from electra.optim.shards import local


class WeightEma:
    """The moving average of some parameters, updated after each step of the optimizer.

    average <- decay * average + (1 - decay) * weights, with min(decay, (1 + n) / (10 + n)) as the
    decay of update n = 0, 1, ... So the average covers about the last tenth of a run that is too
    short for `decay`, and forgets its initialisation.

    All changes are operations in place on tensors of the device, the count `updates` included: a
    CUDA graph can capture them.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self.parameters = dict(parameters)
        self.averages = {name: p.detach().clone() for name, p in self.parameters.items()}
        device = next(iter(self.averages.values())).device
        self.updates = torch.zeros((), dtype=torch.long, device=device)

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights."""
        # In fp32, because MPS has no fp64; exact for 16 million updates, and then constant.
        n = self.updates.float()
        weight = torch.maximum(9 / (n + 10), torch.full_like(n, 1 - self.decay))
        averages, weights = self._pairs()
        # torch._foreach_lerp_ takes a weight from the host, which a CUDA graph would keep for ever
        differences = torch._foreach_sub(weights, averages)
        torch._foreach_mul_(differences, weight)
        torch._foreach_add_(averages, differences)
        self.updates += 1

    @torch.no_grad()
    def restart(self) -> None:
        """Begin again from the current weights, after something else than a step changed them."""
        torch._foreach_copy_(*self._pairs())
        self.updates.zero_()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Swap weights and averages, and swap them back at the end: both keep their bits."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # In place, because a CUDA graph knows the addresses; one at a time, to save memory.
        for average, p in zip(*self._pairs(), strict=True):
            weights = p.clone()
            p.copy_(average)
            average.copy_(weights)

    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """The averages and the weights, of sharded ones this process's part."""
        return [*map(local, self.averages.values())], [*map(local, self.parameters.values())]

    def averages_of(self, parameter: Tensor) -> list[Tensor]:
        """The average of a parameter, in a list that is empty if it has none."""
        return [self.averages[name] for name, p in self.parameters.items() if p is parameter]

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, as checkpoints store it."""
        return {"updates": self.updates, **self.averages}
