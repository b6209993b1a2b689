"""A training step as one CUDA graph, or as three where ranks share a GPU."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    """Capture `step` for each stage of the objective; weights and state stay as they are.

    What changes between steps is read from fixed addresses: the rows, the learning rate, the mask
    rate, `objective.counter` and torch's random offset. A replay takes that offset from the host's
    generator and advances it as the step itself does. So a replay uses the same random numbers as
    the step, and a checkpoint only has to save `torch.cuda.get_rng_state`.

    All ranks of a run capture and replay at the same time, because a step sends messages. The graph
    must be freed before the process group: NCCL waits for the graphs that have its messages.
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
    side = torch.cuda.Stream()
    options: dict[str, Any] = {"pool": torch.cuda.graph_pool_handle(), "stream": side}
    if step.ranks.size > 1:  # NCCL's own thread asks for the state of earlier messages meanwhile
        options["capture_error_mode"] = "thread_local"
    capture = _capture_whole if step.ranks.size == 1 or step.ranks.nccl else _capture_parts
    try:
        objective.mask_rate = static_mask_rate if moving else mask_rate
        for _ in objective.each_step_kind():
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARMUP_STEPS):
                    step(static_rows, rate)
            torch.cuda.current_stream().wait_stream(side)
            launch = capture(step, static_rows, rate, options)
            graphs[objective.step_kind] = launch, optimizer.finish_capture()
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
        launch, _ = graphs[objective.step_kind]
        return launch()

    return replay


def _capture_whole(
    step: Step, rows: Tensor, rate: Tensor, options: dict[str, Any]
) -> Callable[[], Tensor]:
    """Capture a step as one graph, with the messages between the ranks, if there are any."""
    graph, traffic = torch.cuda.CUDAGraph(), step.ranks.traffic
    before = traffic.bytes
    with torch.cuda.graph(graph, **options):
        sums = step(rows, rate)
    sent = traffic.bytes - before  # by each replay

    def launch() -> Tensor:
        graph.replay()
        traffic.bytes += sent
        return sums

    return launch


def _capture_parts(
    step: Step, rows: Tensor, rate: Tensor, options: dict[str, Any]
) -> Callable[[], Tensor]:
    """Capture a step as three graphs, which gloo's messages separate: they pass through the host.

    The tensors to sum are at fixed addresses. The graphs share a pool of memory, which is safe as
    they are always replayed in the order of their capture.
    """
    mask, backward, update = (torch.cuda.CUDAGraph() for _ in range(3))
    with torch.cuda.graph(mask, **options):
        batch, masked, totals = step.objective.mask_batch(rows)
    with torch.cuda.graph(backward, **options):
        sums = step.backward(batch, masked, totals)
        gradients = step.flatten_gradients()
    with torch.cuda.graph(update, **options):
        result = step.update(sums, rate)

    def launch() -> Tensor:
        mask.replay()
        step.ranks.sum_(totals)
        backward.replay()
        step.ranks.sum_(gradients)
        update.replay()
        return result

    return launch


def _attach_shadow_weights(step: Step) -> "list[ShadowWeights]":
    """Attach bf16 copies of the weights, if the optimizer's kernels can keep them up to date."""
    if step.dtype != torch.bfloat16 or not step.optimizer.supports_kernels():
        return []
    from electra.kernels.modules import attach_shadow_weights

    return attach_shadow_weights(step.objective, step.dtype)
