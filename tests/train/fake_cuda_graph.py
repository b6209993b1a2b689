"""A stand-in for CUDA graphs on the CPU: what a capture calls, a replay calls again.

As with a real graph, a replay reads and writes the tensors of the capture.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from electra.train.cuda_graph import GraphedStep, capture_cuda_graph
from electra.train.step import Step

Call = tuple[Callable[..., Any], tuple[Any, ...], Any]


class Stream:
    def wait_stream(self, other: "Stream") -> None:
        pass


class FakeGraph:
    """The calls of a capture, with their arguments and results."""

    step: Step
    calls: list[Call]

    def capture(self, step: Step, calls: list[Call]) -> None:
        self.step, self.calls = step, calls
        self.stage, self.mask_rate = step.objective.step_kind, step.objective.mask_rate

    def replay(self) -> None:
        objective = self.step.objective
        assert objective.step_kind == self.stage
        traffic = self.step.ranks.traffic
        sent = traffic.bytes
        now, moves = objective.mask_rate, isinstance(self.mask_rate, Tensor)
        objective.mask_rate = self.mask_rate if moves else now
        for function, arguments, result in self.calls:
            again = function(*arguments)
            write(again, result)
            if function.__name__ == "flatten_gradients":
                self.move_gradients(again, result)
        objective.mask_rate = now
        traffic.bytes = sent  # a real graph counts nothing

    def move_gradients(self, source: Tensor, target: Tensor) -> None:
        """Make the gradients views of the captured tensor instead of the new one."""
        for p in self.step.objective.parameters():
            if p.grad is not None:
                begin = (p.grad.data_ptr() - source.data_ptr()) // 4
                p.grad = target[begin : begin + p.numel()].view_as(p)


def write(source: Any, target: Any) -> None:
    """Copy tensors, or tuples of them, into those of the capture."""
    if isinstance(target, Tensor):
        target.copy_(source)
    else:
        for one, other in zip(source, target, strict=True):
            write(one, other)


class Recorded(Step):
    """A step that notes the outermost calls of its parts."""

    calls: list[Call] = []  # noqa: RUF012
    depth = 0

    def __call__(self, *given: Any) -> Tensor:
        return record(Step.__call__, self.plain(), *given)

    def backward(self, *given: Any) -> Tensor:
        return record(Step.backward, self.plain(), *given)

    def flatten_gradients(self) -> Tensor:
        return record(Step.flatten_gradients, self.plain())

    def update(self, *given: Any) -> Tensor:
        return record(Step.update, self.plain(), *given)

    def plain(self) -> Step:
        return Step(**{f.name: getattr(self, f.name) for f in fields(Step)})


def record(function: Callable[..., Any], *arguments: Any) -> Any:
    Recorded.depth += 1
    try:
        result = function(*arguments)
    finally:
        Recorded.depth -= 1
    if not Recorded.depth:
        Recorded.calls.append((function, arguments, result))
    return result


def capture_on_cpu(step: Step, rows: Tensor) -> GraphedStep:
    """`capture_cuda_graph` without a GPU."""
    objective, mask_batch = step.objective, step.objective.mask_batch

    @contextmanager
    def graph(graph: FakeGraph, **_: Any) -> Iterator[None]:
        Recorded.calls = []
        yield
        graph.capture(step, Recorded.calls)
        Recorded.calls = []

    fakes = {
        **{"Stream": Stream, "current_stream": Stream, "stream": lambda _: nullcontext()},
        **{"graph_pool_handle": lambda: None, "CUDAGraph": FakeGraph, "graph": graph},
    }
    recorded = Recorded(**{f.name: getattr(step, f.name) for f in fields(step)})
    with (
        mock.patch.multiple(torch.cuda, **fakes),
        mock.patch.object(objective, "mask_batch", lambda rows: record(mask_batch, rows)),
    ):
        return capture_cuda_graph(recorded, rows)
