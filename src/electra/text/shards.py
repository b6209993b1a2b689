"""Token shards on disk: arrays of rows, described by an `index.json`."""

import hashlib
import json
import mmap
import os
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from electra.errors import UserError
from electra.files import file_sha256
from electra.json_types import check_fields, has_type, parse_json
from electra.text.background import BackgroundWork
from electra.text.layouts import Layout

if TYPE_CHECKING:
    from electra.text.remote import RemoteFiles

FORMAT = 1
INDEX = "index.json"
TOKENIZER = "tokenizer"
Split = Literal["train", "held_out"]
DTYPES = ("uint16", "uint32")
SHARD_NAME = re.compile(r"shard-\d{5,}\.bin")
Verify = Literal["auto", "start", "off"]
VERIFIED_AT_START = 2_000_000_000
"""Bytes of shards up to which all hashes are verified before the first row is read."""
MAPPED = 256
"""Shards up to which files are memory-mapped: each map holds a file descriptor. Of more shards a
batch reads a row here and a row there, and then opening a file for each is cheaper than a map."""
# Two folders with the same values hold the same data; the rest of the index is its origin.
IDENTITY = ("format", "length", "layout", "dtype", "tokenizer", "vocabulary_size", "shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file: its first `held_out` rows are for validation, the others for training."""

    file: str
    rows: int
    held_out: int
    tokens: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """An open folder of token shards."""

    folder: Path
    length: int
    layout: Layout
    dtype: str
    vocabulary_size: int
    fingerprint: str
    """Hash of the tokenizer."""
    digest: str
    """Hash of the data: equal for equal rows, whatever the folder."""
    tokens: int
    """Tokens without padding, over both splits."""
    shards: tuple[Shard, ...]
    ends: dict[str, npt.NDArray[np.int64]]
    """For each split, the number of its rows up to the end of each shard."""
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Size and time of modification of each file in the folder when it was opened."""
    remote: "RemoteFiles | None" = None
    """Where the shards are that the folder does not hold."""
    background: BackgroundWork[Shard] | None = None
    """What is done with the shards while a run trains: verify them, or download them."""

    @classmethod
    def open(cls, folder: Path, verify: Verify = "auto") -> "Shards":
        """Open a prepared folder and check the size of every file.

        Hashes are verified now, or, if there is too much data for that, by `background`.
        """
        opened = cls.from_index(Path(folder), read_index(Path(folder)))
        opened.check_sizes()
        if verify == "start" or (verify == "auto" and opened.size <= VERIFIED_AT_START):
            opened.check_content()
        elif verify == "auto":
            # In another order each time, so that many short runs verify everything too.
            order = random.sample(opened.shards, len(opened.shards))
            return replace(opened, background=BackgroundWork(opened.check_shard, order))
        return opened

    @classmethod
    def from_index(cls, folder: Path, index: dict[str, Any]) -> "Shards":
        """Return the shards that an index describes."""
        shards = tuple(Shard(**entry) for entry in index["shards"])
        return cls(
            folder=folder,
            length=index["length"],
            layout=index["layout"],
            dtype=index["dtype"],
            vocabulary_size=index["vocabulary_size"],
            fingerprint=index["tokenizer"],
            digest=digest(index),
            tokens=sum(shard.tokens for shard in shards),
            shards=shards,
            ends={
                "train": np.cumsum([s.rows - s.held_out for s in shards], dtype=np.int64),
                "held_out": np.cumsum([s.held_out for s in shards], dtype=np.int64),
            },
        )

    @property
    def location(self) -> str:
        """The folder or the address that the user has named."""
        return str(self.remote.url if self.remote else self.folder)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row on disk."""
        return np.dtype(self.dtype).itemsize * (self.length + 2)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return self.row_bytes * sum(shard.rows for shard in self.shards)

    @property
    def readers(self) -> int:
        """Threads that read batches at the same time: as many as the storage needs to be busy."""
        return 1 if self.remote is None and len(self.shards) <= MAPPED else 4

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer that the text was encoded with."""
        return self.folder / TOKENIZER

    def rows(self, split: Split) -> int:
        """Return the number of rows of a split."""
        ends = self.ends[split]
        return int(ends[-1]) if len(ends) else 0

    def gather(self, split: Split, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Return rows of a split by index: (n, length + 2), `first` and `total` last."""
        index = np.asarray(indices, dtype=np.int64)
        if index.size and (index.min() < 0 or index.max() >= self.rows(split)):
            raise IndexError(f"the split {split} has {self.rows(split)} rows")
        out = np.empty((len(index), self.length + 2), dtype=np.int32)
        if not len(index):
            return out
        ends = self.ends[split]
        order = np.argsort(index, kind="stable")  # by shard, and by place in it
        numbers, starts = np.unique(
            np.searchsorted(ends, index[order], side="right"), return_index=True
        )
        absent: list[tuple[Shard, npt.NDArray[np.int64], npt.NDArray[np.int64]]] = []
        for number, selected in zip(numbers, np.split(order, starts[1:]), strict=True):
            shard = self.shards[number]
            begin = int(ends[number - 1]) if number else 0
            skip = shard.held_out if split == "train" else 0
            rows = index[selected] - begin + skip
            if (found := self.read(shard, rows)) is None:
                absent.append((shard, rows, selected))
            else:
                out[selected] = found
        if self.remote and absent:
            found = self.read_remote([(shard, rows) for shard, rows, _ in absent])
            out[np.concatenate([selected for *_, selected in absent])] = found
        return out

    def read(self, shard: Shard, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any] | None:
        """Return sorted rows of one shard; None if the shard is not in the folder."""
        path, columns = self.folder / shard.file, self.length + 2
        if self.remote is None and len(self.shards) <= MAPPED:
            mapped = map_file(str(path), shard.sha256)
            if mapped.size() < len(mapped):  # reading beyond the end would kill the process
                raise damaged(path, "was cut short while it was read")
            return np.frombuffer(mapped, self.dtype).reshape(-1, columns)[rows]
        if self.remote is not None and shard.file not in self.remote.kept:
            return None
        try:
            return read_rows(path, rows, self.dtype, columns)
        except FileNotFoundError:
            if self.remote is None:
                raise damaged(path, "is missing") from None
            return None  # not downloaded yet, or removed from the cache by another run

    def read_remote(self, parts: list[tuple[Shard, npt.NDArray[np.int64]]]) -> npt.NDArray[Any]:
        """Return rows of several shards of the remote store, in the given order."""
        assert self.remote is not None
        ranges = [
            (
                shard.file,
                int(rows[begin]) * self.row_bytes,
                (int(rows[end - 1]) + 1) * self.row_bytes,
            )
            for shard, rows in parts
            for begin, end in neighbours(rows)
        ]
        data = b"".join(self.remote.read_ranges(ranges))
        return np.frombuffer(data, dtype=self.dtype).reshape(-1, self.length + 2)

    def check_sizes(self) -> None:
        """Refuse missing files and files of the wrong size."""
        with os.scandir(self.folder) as entries:  # faster than asking for each path
            marks = {entry.name: mark(entry.stat()) for entry in entries if entry.is_file()}
        for shard in self.shards:
            if shard.file not in marks:
                raise damaged(self.folder / shard.file, "is missing")
            size, _ = self.marks[shard.file] = marks[shard.file]
            if size != (expected := shard.rows * self.row_bytes):
                raise damaged(self.folder / shard.file, f"has {size} bytes, not {expected}")

    def check_unchanged(self, last_good: str) -> None:
        """Refuse to go on if a file is not what it was when it was opened.

        A deleted file has no other content: what is mapped stays, and mapping it again fails. The
        cache of a remote store has no marks: what is in it was verified.
        """
        for shard in self.shards if self.marks else ():
            path = self.folder / shard.file
            if not path.is_file() or mark(path.stat()) == self.marks[shard.file]:
                continue
            if file_sha256(path) != shard.sha256:
                raise UserError(
                    f"The shard '{path}' was changed while the run read it, so nothing is saved "
                    f"from here on. {last_good} Restore the file, or prepare the same text again, "
                    "and continue with --resume."
                )
            self.marks[shard.file] = mark(path.stat())

    def check_content(self) -> None:
        """Refuse files whose checksum is wrong."""
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for _ in pool.map(self.check_shard, self.shards):
                pass

    def check_shard(self, shard: Shard) -> None:
        """Refuse a file whose checksum is wrong."""
        if file_sha256(self.folder / shard.file) != shard.sha256:
            raise damaged(self.folder / shard.file, "was changed after it was written")


@lru_cache(maxsize=MAPPED)
def map_file(path: str, sha256: str) -> mmap.mmap:
    """Memory-map a file; the checksum is part of the cache key only."""
    try:
        with Path(path).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise damaged(Path(path), "is missing") from None


def mark(state: os.stat_result) -> tuple[int, int]:
    """The size and the time of modification of a file."""
    return state.st_size, state.st_mtime_ns


def read_rows(
    path: Path, rows: npt.NDArray[np.int64], dtype: str, columns: int
) -> npt.NDArray[Any]:
    """Read sorted rows of a shard; neighbours are read at once."""
    found = np.empty((len(rows), columns), dtype=dtype)
    with path.open("rb", buffering=0) as file:
        for begin, end in neighbours(rows):
            file.seek(int(rows[begin]) * found.strides[0])
            part = found[begin:end].data
            if file.readinto(part) != part.nbytes:
                raise damaged(path, "is too short")
    return found


def neighbours(rows: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each run of consecutive numbers."""
    if len(rows) == 1:  # as in almost every shard of a large corpus
        yield 0, 1
        return
    cuts = (np.flatnonzero(np.diff(rows) != 1) + 1).tolist()
    yield from zip([0, *cuts], [*cuts, len(rows)], strict=True)


def damaged(path: Path, what: str) -> UserError:
    """Return the error for a file that does not match the index."""
    return UserError(
        f"The shard '{path}' {what}: delete the folder '{path.parent}' and "
        "run `electra prepare` again."
    )


def read_index(folder: Path) -> dict[str, Any]:
    """Read and check the index of a prepared folder."""
    path = folder / INDEX
    if not path.is_file():
        raise UserError(
            f"'{folder}' is not a folder of token shards (it has no {INDEX}): "
            "create or finish it with `electra prepare`."
        )
    return parse_index(path.read_bytes(), str(path), str(folder))


def parse_index(content: bytes, path: str, folder: str) -> dict[str, Any]:
    """Read and check an index; path and folder are named in errors."""
    try:
        index: dict[str, Any] = parse_json(content.decode())
        version = index["format"]
        if version == FORMAT:
            check_index(index)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"'{path}' is damaged: delete the folder '{folder}' and run `electra prepare` again."
        ) from None
    if version != FORMAT:
        raise UserError(
            f"'{path}' has format {version}, this version reads {FORMAT}: "
            "run `electra prepare` again."
        )
    return index


def check_index(index: dict[str, Any]) -> None:
    """Refuse an index whose values would be used as something else than they are."""
    digest(index)
    types = {"length": int, "layout": Layout, "vocabulary_size": int, "tokenizer": str}
    typed = all(has_type(index[key], kind) for key, kind in types.items())
    if not typed or index["dtype"] not in DTYPES or not isinstance(index["shards"], list):
        raise ValueError("not the rows of shards")
    if index["length"] < 1:
        raise ValueError("not a length")
    for entry in index["shards"]:
        check_fields(Shard, entry)
        shard = Shard(**entry)  # fails on missing or unknown keys
        # The name of a file beside the index, never a path to somewhere else
        if not SHARD_NAME.fullmatch(shard.file) or not 0 <= shard.held_out <= shard.rows:
            raise ValueError("not a shard")


def digest(index: dict[str, Any]) -> str:
    """Return the identity of the data: a hash of the index entries that describe the rows."""
    core = {key: index[key] for key in IDENTITY}
    return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()
