"""Batches from shards: an endless shuffled stream, of which the position is the only state."""

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import UserError
from electra.text.remote import default_cache, is_url, open_remote, read_remote_index
from electra.text.shards import INDEX, Shards, Verify, read_index
from electra.text.shuffle import shuffled
from electra.train.distributed import ONE_RANK, Ranks
from electra.train.phases import Phase, build_phases

AHEAD = 3
"""Batches to prefetch at least; one of them is already on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The training data."""

    folder: str = ""
    """The folder that `electra prepare` wrote, or where it was uploaded to, such as
    s3://bucket/shards; `--data` sets it."""
    seq_length: int | str = 128
    """Tokens per row; must be the length that the data was prepared with. Or a schedule, such as
    128,512@0.9: rows of 128 tokens, and of 512 from 90 % of the run on."""
    batch_size: int | str = 128
    """Rows per step, over all micro-batches and processes; or a schedule, such as 128,256@0.2. It
    counts rows of the first length; a batch of longer rows has fewer rows and as many tokens."""
    document_mask: bool = False
    """In rows with several documents (`--layout packed`), each token attends only to its own
    document."""
    verify: Verify = "auto"
    """When to verify the hashes of local shards: 'auto' does it before the start if they have up to
    2 GB, otherwise during training; 'start' always before the start; 'off' checks only sizes."""
    cache_dir: str = ""
    """Folder on the local disk for shards of an object store; by default ~/.cache/electra/shards.
    Several runs and processes may share it."""
    cache_gb: float = 100.0
    """Gigabytes that the cache may hold. Rows of shards that do not fit are read one by one."""

    def __post_init__(self) -> None:
        if self.cache_gb < 0:
            raise UserError("data.cache_gb must be at least 0.")
        build_phases(self.seq_length, self.batch_size)  # refuses what cannot be read

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The parts of the run with one sequence length and batch size each, in order."""
        return build_phases(self.seq_length, self.batch_size)

    @property
    def lengths(self) -> list[int]:
        """The different sequence lengths, the first one first."""
        return list(dict.fromkeys(phase.seq_length for phase in self.phases))

    def single_phase(self, what: str) -> Phase:
        """Return the only phase; a schedule is refused, because `what` needs one length."""
        if len(self.phases) > 1:
            raise UserError(
                f"{what} takes one data.seq_length and one data.batch_size, not a schedule: give "
                f"those of one phase, such as data.seq_length={self.phases[-1].seq_length} "
                f"data.batch_size={self.phases[-1].batch_size}."
            )
        return self.phases[0]


def open_data(config: DataConfig, positions: int) -> Shards:
    """Open and check the shards that a run begins with, and the tokenizer of its other shards."""
    check_positions(max(config.lengths), positions)
    places = [find_shards(config.folder, n, config.lengths) for n in config.lengths]
    first = open_shards(places[0], config)
    for place in places[1:]:
        if load_index(place)["tokenizer"] != first.fingerprint:
            raise UserError(
                f"{place} was prepared with another tokenizer than {places[0]}: prepare the text "
                "again."
            )
    return first


def open_all_lengths(config: DataConfig, first: Shards) -> dict[int, Shards]:
    """Open and check the shards of every length of a run; `first` is open already."""
    shards = {first.length: first}
    for length in config.lengths[1:]:
        shards[length] = open_shards(find_shards(config.folder, length, config.lengths), config)
    return shards


def open_shards(location: str, config: DataConfig) -> Shards:
    """Open the shards in a local folder or at an address."""
    if not is_url(location):
        return Shards.open(Path(location), config.verify)
    cache = Path(config.cache_dir).expanduser() if config.cache_dir else default_cache()
    return open_remote(location, cache, int(config.cache_gb * 1e9))


def load_index(location: str) -> dict[str, Any]:
    """Return the index of a local folder or an address."""
    index = read_remote_index(location) if is_url(location) else read_index(Path(location))
    if index is None:
        raise no_shards(location)
    return index


def no_shards(location: str) -> UserError:
    """Return the error for an address without token shards."""
    return UserError(
        f"'{location}' holds no token shards (there is no {location.rstrip('/')}/{INDEX}): check "
        "the address, and whether `electra prepare` has finished and its folder is uploaded."
    )


def shard_lengths(location: str, wanted: int) -> dict[int, str]:
    """Return where the shards of each sequence length are, as `electra prepare` writes them.

    That is the location itself, or subfolders named by their length. At an address, only the
    subfolder of the wanted length is asked for.
    """
    if not is_url(location):
        folder = Path(location)
        nested = [p.parent for p in folder.glob(f"*/{INDEX}") if p.parent.name.isdigit()]
        found = {int(p.name): str(p) for p in sorted(nested, key=lambda p: int(p.name))}
        return found or {read_index(folder)["length"]: location}
    # First the address itself: stores may refuse to say that a file is not there.
    if (index := read_remote_index(location)) is not None:
        return {index["length"]: location}
    below = f"{location.rstrip('/')}/{wanted}"
    if read_remote_index(below) is not None:
        return {wanted: below}
    raise no_shards(location)


def find_shards(location: str, length: int, lengths: Sequence[int] = ()) -> str:
    """Return the folder or address of the shards with rows of `length` tokens.

    `lengths` are all that are needed.
    """
    found = shard_lengths(location, length)
    if length in found:
        return found[length]
    listed = " and ".join(map(str, found))
    wanted = ",".join(map(str, lengths or [length]))
    raise UserError(
        f"{location} holds rows of {listed} tokens and the recipe expects {length}: prepare again "
        f"with --length {wanted}, or set data.seq_length={max(found)}."
    )


def data_digest(shards: Mapping[int, Shards]) -> str:
    """Return the identity of a run's data."""
    digests = [shards[length].digest for length in sorted(shards)]
    return digests[0] if len(digests) == 1 else sha256("".join(digests).encode()).hexdigest()


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
    return shards.gather("train", row_order(shards.rows("train"), position, count, seed))


def row_order(total: int, position: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return which of `total` rows are at `count` positions of the stream."""
    places = np.arange(position, position + count, dtype=np.int64)
    epochs, places = np.divmod(places, total)
    order = np.empty_like(places)
    for epoch in np.unique(epochs):
        here = epochs == epoch
        order[here] = shuffled(places[here], total, seed=_mix(seed, int(epoch)))
    return order


def stream(
    shards: Shards,
    batch: int,
    seed: int,
    position: int,
    device: torch.device,
    ranks: Ranks = ONE_RANK,
) -> Generator[Tensor, None, None]:
    """Yield batches from `position` on, prefetched while the device trains.

    `position` and `batch` count the rows of all ranks; each rank gets its share of every batch.

    On CUDA the next batch is copied while a step runs. The reader waits until the device has begun
    a batch some positions before: otherwise the host would run far ahead, and a time budget or a
    signal would find many steps still queued.

    Large and remote corpora are read by several threads, each a batch; the order stays the same.
    """
    side = torch.cuda.Stream(device) if device.type == "cuda" else None
    share, depth = ranks.share(batch), max(AHEAD, shards.readers)
    if shards.background and ranks.local_rank == 0:  # one process per machine is enough
        shards.background.start()

    def fetch(start: int, begun: torch.cuda.Event | None = None) -> Tensor:
        if begun is not None:
            begun.synchronize()
        rows = torch.from_numpy(rows_at(shards, start + share.start, len(share), seed))
        return rows.pin_memory() if side else rows

    def copy(rows: Tensor) -> Tensor:
        with torch.cuda.stream(side):
            return rows.to(device, non_blocking=True)

    with ThreadPoolExecutor(shards.readers) as reader:
        ahead = deque(reader.submit(fetch, position + i * batch) for i in range(depth))
        next_rows = copy(ahead.popleft().result())
        while True:
            rows, begun = next_rows, None
            if side:
                now = torch.cuda.current_stream(device)
                now.wait_stream(side)
                rows.record_stream(now)  # keeps its memory from being reused before it is read
                begun = torch.cuda.Event(blocking=True)
                begun.record(now)
            if shards.background:
                shards.background.check()
            ahead.append(reader.submit(fetch, position + depth * batch, begun))
            next_rows = copy(ahead.popleft().result())
            position += batch
            yield rows


def held_out_rows(shards: Shards, count: int) -> Tensor:
    """Return the same held-out rows each time, spread evenly over the split."""
    total = shards.rows("held_out")
    if not total:
        raise UserError(
            f"{shards.location} has no held-out rows, so nothing could be measured: prepare it "
            "again with --held-out above 0."
        )
    places = np.unique(np.linspace(0, total - 1, min(count, total)).astype(np.int64))
    return torch.from_numpy(shards.gather("held_out", places))


def _mix(seed: int, epoch: int) -> int:
    """Combine two numbers into one seed."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
