"""A training step as one CUDA graph: the host launches a thousand kernels at once, then is free."""

from collections.abc import Callable

import torch
from torch import Tensor

from electra.objectives.objective import Objective
from electra.optim.adam import PaperAdam

GraphedStep = Callable[[Tensor, float], Tensor]
"""Takes the rows and the learning rate of a step; returns what the step returns."""

WARM_UP = 3
"""Steps before the capture, in which libraries set themselves up and compiled code is made."""


def capture_cuda_graph(
    step: Callable[[Tensor, Tensor], Tensor],
    objective: Objective,
    optimizer: PaperAdam,
    rows: Tensor,
    dtype: torch.dtype,
) -> GraphedStep:
    """`step(rows, rate)` as a graph for each stage of the objective; the run stays as it was.

    What changes from step to step is read from a fixed place on the device: the rows, the two
    rates, and torch's random offset. A replay reads that offset from the host's generator and moves
    it on by what the step draws, as the step itself does: so a replay has the random numbers that
    the step would have had, and `torch.cuda.get_rng_state` is what a checkpoint has to keep.
    `dtype` is the precision of the step's products.
    """
    shadows = []
    if dtype == torch.bfloat16 and optimizer.fits():
        from electra.kernels.modules import attach_shadow_weights

        shadows = attach_shadow_weights(objective, dtype)
    place = rows.clone()
    rate = torch.zeros((), device=rows.device)
    share = torch.full((), float(objective.rate), dtype=torch.float64, device=rows.device)
    mask_rate, moving = objective.rate, bool(objective.config.mask_rate_end)
    # Made before the capture, or the graph would make them anew, as zeros, in each replay
    moments = [m for p in objective.parameters() for m in optimizer.moments(p).values()]
    # A rate of 0 leaves the weights alone, but not these
    before = [m.to("cpu", copy=True) for m in moments]
    graphs = {}
    pool, side = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    try:
        objective.rate = share if moving else mask_rate
        for _ in objective.each_stage():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    step(place, rate)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=side):
                sums = step(place, rate)
            graphs[objective.in_second_stage] = graph, sums, optimizer.settle()
    finally:
        objective.rate = mask_rate
        for moment, value in zip(moments, before, strict=True):
            moment.copy_(value)

    def replay(rows: Tensor, now: float) -> Tensor:
        # In stream order: the replay before has read what is written here, and its sums are added
        place.copy_(rows)
        rate.fill_(now)
        if moving:
            share.fill_(objective.rate)
        for shadow in shadows:
            shadow.refresh()  # should anyone but the step have changed parameters
        graph, sums, _ = graphs[objective.in_second_stage]
        graph.replay()
        return sums

    return replay
