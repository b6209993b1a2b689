"""Token shards on disk: arrays of rows beside an index.json that says what they are."""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from electra.errors import UserError
from electra.files import file_sha256
from electra.text.rows import Layout

FORMAT = 1
INDEX = "index.json"
TOKENIZER = "tokenizer"
Split = Literal["train", "held_out"]
# What makes two folders the same data; the rest of the index tells where it came from.
IDENTITY = ("format", "length", "layout", "dtype", "tokenizer", "vocabulary_size", "shards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file: `held_out` rows first, then those of training."""

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
    """Of the tokenizer."""
    digest: str
    """Of the data: equal for equal rows, wherever they lie."""
    tokens: int
    """Without padding, over both splits."""
    shards: tuple[Shard, ...]
    ends: dict[str, npt.NDArray[np.int64]]
    """For each split the number of its rows up to the end of each shard."""

    @classmethod
    def open(cls, folder: Path) -> "Shards":
        """Open a prepared folder, after a look at every byte of it."""
        folder = Path(folder)
        index = read_index(folder)
        shards = tuple(Shard(**entry) for entry in index["shards"])
        found = cls(
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
        found.check_sizes()
        found.check_content()
        return found

    @property
    def tokenizer(self) -> Path:
        """The folder of the tokenizer that made the rows."""
        return self.folder / TOKENIZER

    def rows(self, split: Split) -> int:
        """The number of rows of a split."""
        ends = self.ends[split]
        return int(ends[-1]) if len(ends) else 0

    def gather(self, split: Split, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int32]:
        """Rows of a split by their places in it: (n, length + 2), `first` and `total` last."""
        places = np.asarray(indices, dtype=np.int64)
        if places.size and (places.min() < 0 or places.max() >= self.rows(split)):
            raise IndexError(f"the split {split} has {self.rows(split)} rows")
        out = np.empty((len(places), self.length + 2), dtype=np.int32)
        if not len(places):
            return out
        ends = self.ends[split]
        owner = np.searchsorted(ends, places, side="right")
        order = np.argsort(owner, kind="stable")
        owners, starts = np.unique(owner[order], return_index=True)
        for number, mine in zip(owners, np.split(order, starts[1:]), strict=True):
            shard = self.shards[number]
            begin = int(ends[number - 1]) if number else 0
            skip = shard.held_out if split == "train" else 0
            out[mine] = self.mapped(shard)[places[mine] - begin + skip]
        return out

    def mapped(self, shard: Shard) -> npt.NDArray[Any]:
        """The rows of one shard, mapped from disk."""
        return mapped(str(self.folder / shard.file), shard.sha256, self.dtype, self.length + 2)

    def check_sizes(self) -> None:
        """Refuse missing, cut or grown files."""
        wide = np.dtype(self.dtype).itemsize * (self.length + 2)
        for shard in self.shards:
            path = self.folder / shard.file
            if not path.is_file():
                raise damaged(path, "is missing")
            if (size := path.stat().st_size) != shard.rows * wide:
                raise damaged(path, f"has {size} bytes, not {shard.rows * wide}")

    def check_content(self) -> None:
        """Refuse files whose bytes are not those that were written."""
        paths = [self.folder / shard.file for shard in self.shards]
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            hashes = pool.map(file_sha256, paths)
            for shard, path, found in zip(self.shards, paths, hashes, strict=True):
                if found != shard.sha256:
                    raise damaged(path, "was altered after it was written")


@lru_cache(maxsize=256)  # each map holds a file descriptor, of which a process has few
def mapped(path: str, sha256: str, dtype: str, columns: int) -> npt.NDArray[Any]:
    """A shard's rows as a read-only map; the checksum only tells equal paths apart."""
    return np.memmap(path, dtype=dtype, mode="r").reshape(-1, columns)


def damaged(path: Path, what: str) -> UserError:
    """The error for a file that is not as the index says."""
    return UserError(
        f"The shard '{path}' {what}: delete the folder '{path.parent}' and run"
        "  electra prepare  again."
    )


def read_index(folder: Path) -> dict[str, Any]:
    """The index of a prepared folder."""
    path = folder / INDEX
    if not path.is_file():
        raise UserError(
            f"'{folder}' is no folder of token shards (it has no {INDEX}): "
            "make one, or finish it, with  electra prepare."
        )
    try:
        index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = index["format"]
        if version == FORMAT:
            digest(index)
            for entry in index["shards"]:
                Shard(**entry)  # refuses other names
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"'{path}' is damaged: delete the folder '{folder}' and run  electra prepare  again."
        ) from None
    if version != FORMAT:
        raise UserError(
            f"'{path}' has format {version}, this version reads {FORMAT}: "
            "run  electra prepare  again."
        )
    return index


def digest(index: dict[str, Any]) -> str:
    """The identity of the data: a hash over what the index says of the rows."""
    core = {key: index[key] for key in IDENTITY}
    return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()
