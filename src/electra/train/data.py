"""Batches from shards: an endless shuffled stream, of which the position is the only state."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import UserError
from electra.text.shards import Shards
from electra.text.shuffle import shuffled

AHEAD = 3
"""Batches to prefetch; one of them is already on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The training data."""

    folder: str = ""
    """The folder that `electra prepare` wrote; `--data` sets it."""
    seq_length: int = 128
    """Tokens per row; must be the length that the data was prepared with."""
    batch_size: int = 128
    """Rows per step, over all micro-batches."""
    document_mask: bool = False
    """Restrict attention to the own document where rows hold several (`--layout packed`)."""

    def __post_init__(self) -> None:
        for name in ("seq_length", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"data.{name} must be at least 1.")


def open_data(config: DataConfig, positions: int) -> Shards:
    """Open the shards of a run, verify their hashes and check them against the configuration."""
    check_positions(config.seq_length, positions)
    shards = Shards.open(Path(config.folder))
    if shards.length != config.seq_length:
        raise UserError(
            f"{config.folder} holds rows of {shards.length} tokens and the recipe expects "
            f"{config.seq_length}: prepare again with --length {config.seq_length}, or set "
            f"data.seq_length={shards.length}."
        )
    return shards


def check_positions(length: int, positions: int) -> None:
    """Refuse rows that are longer than the position table."""
    if length > positions:
        raise UserError(
            f"Rows of {length} tokens do not fit a position table of {positions}: prepare with "
            f"--length {positions} at most, or train a model with model.max_positions={length}."
        )


def rows_at(shards: Shards, position: int, count: int, seed: int) -> NDArray[np.int32]:
    """Return `count` rows of the stream from `position` on; each epoch has its own order.

    The order is a function of seed, epoch and position, not a stored permutation, so a resumed run
    only needs its position.
    """
    total = shards.rows("train")
    places = np.arange(position, position + count, dtype=np.int64)
    epochs, places = np.divmod(places, total)
    order = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        order[here] = shuffled(places[here], total, seed=_mix(seed, int(epoch)))
    return shards.gather("train", order)


def stream(
    shards: Shards, batch: int, seed: int, position: int, device: torch.device
) -> Iterator[Tensor]:
    """Yield batches from `position` on, prefetched while the device trains.

    On CUDA the next batch is copied while a step runs. The reader waits until the device has begun
    the batch `AHEAD` positions before: otherwise the host would run far ahead, and a time budget
    or a signal would find many steps still queued.
    """
    side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def fetch(start: int, begun: torch.cuda.Event | None = None) -> Tensor:
        if begun is not None:
            begun.synchronize()
        rows = torch.from_numpy(rows_at(shards, start, batch, seed))
        return rows.pin_memory() if side else rows

    def copy(rows: Tensor) -> Tensor:
        with torch.cuda.stream(side):
            return rows.to(device, non_blocking=True)

    with ThreadPoolExecutor(1) as reader:
        ahead = deque(reader.submit(fetch, position + i * batch) for i in range(AHEAD))
        next_rows = copy(ahead.popleft().result())
        while True:
            rows, begun = next_rows, None
            if side:
                now = torch.cuda.current_stream(device)
                now.wait_stream(side)
                rows.record_stream(now)  # keeps its memory from being reused before it is read
                begun = torch.cuda.Event(blocking=True)
                begun.record(now)
            ahead.append(reader.submit(fetch, position + AHEAD * batch, begun))
            next_rows = copy(ahead.popleft().result())
            position += batch
            yield rows


def held_out_rows(shards: Shards, count: int) -> Tensor:
    """Return the same held-out rows each time, spread evenly over the split."""
    total = shards.rows("held_out")
    if not total:
        raise UserError(
            f"{shards.folder} has no held-out rows, so nothing could be measured: prepare it again "
            "with --held-out above 0."
        )
    places = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    return torch.from_numpy(shards.gather("held_out", places))


def _mix(seed: int, epoch: int) -> int:
    """Combine two numbers into one seed."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
