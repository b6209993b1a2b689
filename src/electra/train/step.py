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
from electra.train.distributed import ONE_RANK, Ranks


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
    """Rows per forward pass, on each rank."""
    ema: WeightEma | None = None
    """The moving average of the weights, if `optim.ema` asks for one."""
    ranks: Ranks = ONE_RANK
    """The processes that share a batch; each calls the step with its own rows."""
    sharded: bool = False
    """Whether FSDP2 shards the parameters over the ranks; it also sums their gradients."""

    @property
    def device(self) -> torch.device:
        return self.objective.maskable.device

    def __call__(self, rows: Tensor, rate: float | Tensor) -> Tensor:
        """Take one step; returns the metric sums, the gradient norm and whether it was skipped.

        A step whose gradient is not finite changes no weights and counts in no metric. The metric
        sums are those of this rank's rows; weights and norm are the same on all ranks.
        """
        batch, masked, totals = self.objective.mask_batch(rows)
        # Counts of the whole batch, so that the ranks' gradients add up to its gradient
        sums = self.backward(batch, masked, self.ranks.sum_(totals))
        self.sum_gradients()
        return self.update(sums, rate)

    def sum_gradients(self) -> None:
        """Replace the gradients by their sums over all ranks, with one all-reduce."""
        if self.ranks.size == 1 or self.sharded:
            return
        self.ranks.sum_(self.flatten_gradients())

    def flatten_gradients(self) -> Tensor:
        """Make the gradients views of one tensor, and return it."""
        params = [p for p in self.objective.parameters() if p.grad is not None]
        # The optimizer's kernels read 16 bytes at once: what would shift the others comes last
        params.sort(key=lambda p: p.numel() % 4 != 0)
        flat = torch.cat([p.grad.flatten() for p in params])  # type: ignore[union-attr]
        for p, grad in zip(params, flat.split([p.numel() for p in params]), strict=True):
            p.grad = grad.view_as(p)
        return flat

    def update(self, sums: Tensor, rate: float | Tensor) -> Tensor:
        """Clip the gradient, update the weights and their average; returns what the step does."""
        norm = self.optimizer.step(rate)
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update()
        skipped = ~norm.isfinite()
        found = torch.where(skipped, 0.0, torch.cat([sums, norm.reshape(1)]))
        return torch.cat([found, skipped.reshape(1)])

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
