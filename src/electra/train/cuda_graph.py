"""A training step as one CUDA graph, which the host launches at once."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from electra.train.step import Step

if TYPE_CHECKING:
    from electra.kernels.shadow_weights import ShadowWeights

GraphedStep = Callable[[Tensor, float], Tensor]
"""Takes the rows and the learning rate of a step; returns what the step returns."""

WARMUP_STEPS = 3
"""Steps before the capture, in which libraries initialise and kernels are compiled."""


def capture_cuda_graph(step: Step, rows: Tensor) -> GraphedStep:
    """Capture `step` as one graph for each stage of the objective; weights and state stay as is.

    What changes between steps is read from fixed addresses: the rows, the learning rate, the mask
    rate, `objective.counter` and torch's random offset. A replay takes that offset from the host's
    generator and advances it as the step itself does. So a replay uses the same random numbers as
    the step, and a checkpoint only has to save `torch.cuda.get_rng_state`.
    """
    objective, optimizer = step.objective, step.optimizer
    shadows = _attach_shadow_weights(step)
    static_rows = rows.clone()
    rate = torch.zeros((), device=rows.device)
    static_mask_rate = torch.full(
        (), float(objective.mask_rate), dtype=torch.float64, device=rows.device
    )
    mask_rate, moving = objective.mask_rate, bool(objective.config.mask_rate_end)
    # Allocated before the capture: inside it, each replay would create them anew, as zeros.
    state = [m for p in objective.parameters() for m in optimizer.moments(p).values()]
    if step.ema is not None:
        state += step.ema.tensors().values()
    # The warm-up runs at a learning rate of 0, which leaves the weights alone, but not these.
    before = [tensor.to("cpu", copy=True) for tensor in state]
    graphs = {}
    pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    try:
        objective.mask_rate = static_mask_rate if moving else mask_rate
        for _ in objective.each_step_kind():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARMUP_STEPS):
                    step(static_rows, rate)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                sums = step(static_rows, rate)
            graphs[objective.step_kind] = graph, sums, optimizer.finish_capture()
    finally:
        objective.mask_rate = mask_rate
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    def replay(rows: Tensor, now: float) -> Tensor:
        # Stream order makes this safe: the previous replay has read its inputs, and its sums have
        # been added up.
        static_rows.copy_(rows)
        rate.fill_(now)
        if moving:
            static_mask_rate.fill_(objective.mask_rate)
        for shadow in shadows:
            shadow.refresh()  # in case something other than the step changed parameters
        graph, sums, _ = graphs[objective.step_kind]
        graph.replay()
        return sums

    return replay


def _attach_shadow_weights(step: Step) -> "list[ShadowWeights]":
    """Attach bf16 copies of the weights, if the optimizer's kernels can keep them up to date."""
    if step.dtype != torch.bfloat16 or not step.optimizer.supports_kernels():
        return []
    from electra.kernels.modules import attach_shadow_weights

    return attach_shadow_weights(step.objective, step.dtype)
