"""Token shards on disk: arrays of rows, described by an `index.json`."""

import hashlib
import json
import mmap
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from electra.errors import UserError
from electra.files import file_sha256
from electra.json_types import check_fields, parse_json
from electra.text.layouts import Layout

FORMAT = 1
INDEX = "index.json"
TOKENIZER = "tokenizer"
Split = Literal["train", "held_out"]
DTYPES = ("uint16", "uint32")
SHARD_NAME = re.compile(r"shard-\d{5,}\.bin")
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
    marks: dict[str, tuple[int, int]]
    """Size and time of modification of each file when it was verified."""

    @classmethod
    def open(cls, folder: Path) -> "Shards":
        """Open a prepared folder and verify every file."""
        folder = Path(folder)
        index = read_index(folder)
        shards = tuple(Shard(**entry) for entry in index["shards"])
        opened = cls(
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
            marks={s.file: mark(folder / s.file) for s in shards if (folder / s.file).is_file()},
        )
        opened.check_sizes()
        opened.check_content()
        return opened

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
        shard_of = np.searchsorted(ends, index, side="right")
        order = np.argsort(shard_of, kind="stable")
        numbers, starts = np.unique(shard_of[order], return_index=True)
        for number, selected in zip(numbers, np.split(order, starts[1:]), strict=True):
            shard = self.shards[number]
            begin = int(ends[number - 1]) if number else 0
            skip = shard.held_out if split == "train" else 0
            out[selected] = self.memmap(shard)[index[selected] - begin + skip]
        return out

    def memmap(self, shard: Shard) -> npt.NDArray[Any]:
        """Return the memory-mapped rows of one shard; refuse one that has become shorter."""
        path = self.folder / shard.file
        mapped = map_file(str(path), shard.sha256)
        if mapped.size() < len(mapped):  # reading beyond the end would kill the process
            raise damaged(path, "was cut short while it was read")
        return np.frombuffer(mapped, self.dtype).reshape(-1, self.length + 2)

    def check_sizes(self) -> None:
        """Refuse missing files and files of the wrong size."""
        row_bytes = np.dtype(self.dtype).itemsize * (self.length + 2)
        for shard in self.shards:
            path = self.folder / shard.file
            if not path.is_file():
                raise damaged(path, "is missing")
            if (size := path.stat().st_size) != shard.rows * row_bytes:
                raise damaged(path, f"has {size} bytes, not {shard.rows * row_bytes}")

    def check_unchanged(self, last_good: str) -> None:
        """Refuse to go on if a file is not what was verified at the start.

        A deleted file has no other content: what is mapped stays, and mapping it again fails.
        """
        for shard in self.shards:
            path = self.folder / shard.file
            if not path.is_file() or mark(path) == self.marks[shard.file]:
                continue
            if file_sha256(path) != shard.sha256:
                raise UserError(
                    f"The shard '{path}' was changed while the run read it, so nothing is saved "
                    f"from here on. {last_good} Restore the file, or prepare the same text again, "
                    "and continue with --resume."
                )
            self.marks[shard.file] = mark(path)

    def check_content(self) -> None:
        """Refuse files whose checksum is wrong."""
        paths = [self.folder / shard.file for shard in self.shards]
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            hashes = pool.map(file_sha256, paths)
            for shard, path, sha256 in zip(self.shards, paths, hashes, strict=True):
                if sha256 != shard.sha256:
                    raise damaged(path, "was changed after it was written")


@lru_cache(maxsize=256)  # each map holds a file descriptor, and those are limited
def map_file(path: str, sha256: str) -> mmap.mmap:
    """Memory-map a file; the checksum is part of the cache key only."""
    try:
        with Path(path).open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise damaged(Path(path), "is missing") from None


def mark(path: Path) -> tuple[int, int]:
    """The size and the time of modification of a file."""
    state = path.stat()
    return state.st_size, state.st_mtime_ns


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
    try:
        index: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
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
    typed = {key: index[key] for key in ("length", "layout", "dtype", "vocabulary_size")}
    check_fields(Shards, typed | {"fingerprint": index["tokenizer"]})
    if index["dtype"] not in DTYPES or index["length"] < 1 or not isinstance(index["shards"], list):
        raise ValueError("not the rows of shards")
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
