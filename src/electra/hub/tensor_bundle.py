"""Read TensorFlow checkpoints without TensorFlow: the tensor-bundle format.

`PREFIX.index` is a table in LevelDB's format. It maps the name of each tensor to its dtype, shape
and place in one of the files `PREFIX.data-00000-of-00001`, and the empty name to a header.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from electra.errors import UserError
from electra.hub.crc32c import crc32c, unmask

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
FOOTER_SIZE = 48
BLOCK_TRAILER_SIZE = 5
"""Bytes after a block: its compression and the CRC of both."""
DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 6: "i1", 9: "<i8", 10: "?", 19: "<f2"}
"""NumPy's dtypes by TensorFlow's numbers."""
MAX_NAME_BYTES = 1000
MAX_VARINT_BYTES = 10
"""Bytes of a number of 64 bits; a longer one is damage."""
Fields = dict[int, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Where a tensor is stored."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    sliced: bool
    """Whether the tensor is stored in slices, as partitioned variables are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBundle:
    """An open checkpoint: the places of its tensors, by name."""

    prefix: Path
    shards: int
    entries: dict[str, Entry]

    def read(self, name: str) -> npt.NDArray[Any]:
        """Read one tensor and verify its checksum."""
        entry = self.entries[name]
        path = self.data_file(entry)
        if entry.sliced:
            raise UserError(f"{self.prefix}: {name} is partitioned, which is not supported.")
        if entry.dtype not in DTYPES:
            raise UserError(
                f"{self.prefix}: {name} has TensorFlow's dtype {entry.dtype}, which is not "
                "supported: save it as float32."
            )
        dtype = np.dtype(DTYPES[entry.dtype])
        fits = entry.offset + entry.size <= path.stat().st_size
        if not fits or entry.size != dtype.itemsize * math.prod(entry.shape):
            raise UserError(f"{path} is too short for {name}: copy the checkpoint again.")
        with path.open("rb") as file:
            file.seek(entry.offset)
            content = file.read(entry.size)
        if crc32c(content) != unmask(entry.crc):
            raise UserError(
                f"{path} is damaged: the checksum of {name} differs; copy the checkpoint again."
            )
        return np.frombuffer(content, dtype).reshape(entry.shape)

    def data_file(self, entry: Entry) -> Path:
        """Return the file that holds a tensor; it must be there."""
        path = Path(f"{self.prefix}.data-{entry.shard:05d}-of-{self.shards:05d}")
        if not path.is_file():
            raise UserError(f"{path} is missing: copy all files of the checkpoint here.")
        return path

    def stored_bytes(self) -> int:
        """Return the size of all files that hold tensors."""
        files = {self.data_file(entry) for entry in self.entries.values()}
        return sum(file.stat().st_size for file in files)


def open_bundle(prefix: Path) -> TensorBundle:
    """Read the index of the checkpoint `PREFIX.index`, `PREFIX.data-…`."""
    path = Path(f"{prefix}.index")
    table = path.read_bytes()
    damaged = UserError(f"{path} is damaged or not of a checkpoint: copy the checkpoint again.")
    try:
        items = dict(_read_table(table, path))
        header = _parse_message(items.pop(b""))
        entries = {key.decode(): _parse_entry(value) for key, value in items.items()}
        shards, big_endian = _number(header, 1), _number(header, 2)
    except (IndexError, KeyError, ValueError, TypeError):  # also a UnicodeDecodeError
        raise damaged from None
    if big_endian:
        raise UserError(f"{path} is of a big-endian machine, which is not supported.")
    return TensorBundle(prefix=prefix, shards=shards, entries=entries)


def _read_table(table: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a LevelDB table."""
    footer = table[-FOOTER_SIZE:]
    if len(footer) < FOOTER_SIZE or not footer.endswith(MAGIC):
        raise ValueError("no footer")
    _, _, position = _read_handle(footer, 0)  # the block of filters, which is not used
    offset, size, _ = _read_handle(footer, position)
    end = 0
    for _, handle in _read_block(table, offset, size, path):
        offset, size, _ = _read_handle(handle, 0)
        if offset < end:  # a block that is listed twice could be listed a million times
            raise ValueError("blocks overlap")
        end = offset + size
        yield from _read_block(table, offset, size, path)


def _read_block(table: bytes, offset: int, size: int, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield the keys and values of a block; a key stores only what differs from the last one."""
    stored = table[offset : offset + size + BLOCK_TRAILER_SIZE]
    if crc32c(stored[: size + 1]) != unmask(int.from_bytes(stored[size + 1 :], "little")):
        raise ValueError("wrong checksum")
    if stored[size]:
        raise UserError(
            f"{path} is compressed, which is not supported: save the checkpoint again with "
            "TensorFlow 1.2 or later."
        )
    restarts = int.from_bytes(stored[size - 4 : size], "little")
    end = size - 4 * (restarts + 1)
    position, key = 0, b""
    while position < end:
        shared, position = _read_varint(stored, position)
        added, position = _read_varint(stored, position)
        length, position = _read_varint(stored, position)
        key = key[:shared] + stored[position : position + added]
        if len(key) > MAX_NAME_BYTES:  # a byte could stand for a long name
            raise ValueError("a long name")
        position += added
        yield key, stored[position : position + length]
        position += length


def _read_handle(data: bytes, position: int) -> tuple[int, int, int]:
    """Return offset and size of a block, and the position after them."""
    offset, position = _read_varint(data, position)
    size, position = _read_varint(data, position)
    return offset, size, position


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of variable length, and the position after it."""
    value = 0
    for count in range(MAX_VARINT_BYTES):
        byte = data[position + count]
        value |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError("a long number")


def _parse_entry(data: bytes) -> Entry:
    """Parse a `BundleEntryProto`."""
    fields = _parse_message(data)
    shape = _parse_message(fields[2][0]) if 2 in fields else {}
    return Entry(
        dtype=_number(fields, 1),
        shape=tuple(_number(_parse_message(size), 1) for size in shape.get(2, [])),
        shard=_number(fields, 3),
        offset=_number(fields, 4),
        size=_number(fields, 5),
        crc=_number(fields, 6),
        sliced=7 in fields,
    )


def _parse_message(data: bytes) -> Fields:
    """Return the fields of a protobuf message by number: integers, or bytes for messages."""
    fields: Fields = {}
    position = 0
    while position < len(data):
        tag, position = _read_varint(data, position)
        value: int | bytes
        if tag & 7 == 0:
            value, position = _read_varint(data, position)
        else:
            if tag & 7 == 2:
                size, position = _read_varint(data, position)
            else:
                size = {1: 8, 5: 4}[tag & 7]
            value = data[position : position + size]
            position += size
            if tag & 7 != 2:
                value = int.from_bytes(value, "little")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _number(fields: Fields, field: int) -> int:
    """Return an integer field, which is 0 when it is not stored."""
    return int(fields.get(field, [0])[-1])
