"""One training step: mask a batch, forward and backward, clip the gradient, update the weights."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from electra.device import autocast
from electra.objectives.batch import Batch
from electra.objectives.corrupt import Masked
from electra.objectives.objective import LossOutput, Objective
from electra.optim.ema import WeightEma
from electra.optim.optimizer import Optimizer


@dataclass(slots=True, kw_only=True)
class Step:
    """Updates the networks from one batch; needs no run, no folder and no console."""

    objective: Objective
    optimizer: Optimizer
    forward: Callable[..., LossOutput]
    """The objective, or its compiled form."""
    dtype: torch.dtype
    """Precision of the matmuls; weights and optimizer state stay in fp32."""
    micro_batch: int
    """Rows per forward pass."""
    ema: WeightEma | None = None
    """The moving average of the weights, if `optim.ema` asks for one."""

    @property
    def device(self) -> torch.device:
        return self.objective.maskable.device

    def __call__(self, rows: Tensor, rate: float | Tensor) -> Tensor:
        """Take one step at this learning rate; returns the metric sums and the gradient norm."""
        batch, masked, totals = self.objective.mask_batch(rows)
        sums = self.backward(batch, masked, totals)
        norm = self.optimizer.step(rate)
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update()
        return torch.cat([sums, norm.reshape(1)])

    def averaged_weights(self) -> AbstractContextManager[None]:
        """Replace the weights by their moving average, if there is one, within a `with`."""
        return nullcontext() if self.ema is None else self.ema.applied()

    def backward(self, batch: Batch, masked: Masked, totals: Tensor) -> Tensor:
        """Accumulate the gradient over micro-batches; `totals` are the counts of the batch."""
        sums: list[Tensor] = []
        parts = zip(*(t.split(self.micro_batch) for t in (*batch, *masked)), strict=True)
        fields = len(batch)  # the tensors of `batch` come first, then those of `masked`
        for part in parts:
            # No cache of casts: each weight is used once, and a CUDA graph must not read casts
            # that were made outside of it.
            with autocast(self.device, self.dtype, cache=False):
                output = self.forward(Batch(*part[:fields]), Masked(*part[fields:]), totals)
            output.loss.backward()
            sums.append(output.metric_sums)
        return sum(sums[1:], sums[0])
