"""Failures at a place in a run, for tests: `inject` before the run starts.

The idea is that of torchft's event injector. Nothing in the package knows of it.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from electra.train import checkpoint, loop
from electra.train.distributed import Ranks
from electra.train.step import Step

PLACES: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "step": (Step, "__call__", lambda *_: True),
    "backward": (torch.Tensor, "backward", lambda *_: True),
    "all-reduce": (Ranks, "sum_", lambda _, tensor: tensor.numel() > 1000),  # the gradients
    "write": (checkpoint, "save_tensors", lambda path, _: path.name == "optimizer.safetensors"),
    "rename": (Path, "rename", lambda path, _: path.name.endswith(".partial")),
    "save of another rank": (loop, "gather_random_states", lambda *_: True),
}
"""Where a rank can fail: a function, and which of its calls count."""


def inject(place: str, when: str, how: str, rank: int, number: int) -> None:
    """Let a rank fail before or after (`when`) the call of that number at a place.

    `how` is "killed", or "error" for an exception.
    """
    if os.environ["RANK"] != str(rank):
        return
    owner, name, counts = PLACES[place]
    original, calls = getattr(owner, name), []

    def failing(*arguments: Any, **named: Any) -> Any:
        if not counts(*arguments):
            return original(*arguments, **named)
        calls.append(1)
        if len(calls) == number and when == "before":
            fail(how)
        result = original(*arguments, **named)
        if len(calls) == number and when == "after":
            fail(how)
        return result

    setattr(owner, name, failing)


def fail(how: str) -> None:
    """End this process as a crash would, or as a bug would."""
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("a bug on one rank")
