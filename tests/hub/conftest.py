"""A writer of TensorFlow's tensor bundles, independent of the reader."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

NUMBERS = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
MAGIC = bytes.fromhex("57fb808b247547db")


def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


TABLE = _byte_table()


def slow_crc32c(data: bytes) -> int:
    """The textbook's CRC-32C, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> bytes:
    crc = slow_crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: int | bytes) -> bytes:
    """A protobuf field: an integer (left out when it is 0) or a message."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value) if value else b""


def block(items: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """A LevelDB block with its trailer; a restart every third key."""
    out, restarts, last = b"", [], b""
    for number, (key, value) in enumerate(items):
        shared = 0
        if number % 3 == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value))
        out += key[shared:] + value
        last = key
    for offset in (*restarts, len(restarts)):
        out += offset.to_bytes(4, "little")
    out += bytes([compression])
    return out + masked_crc(out)


def table(items: list[tuple[bytes, bytes]], per_block: int, compression: int = 0) -> bytes:
    """A LevelDB table."""
    out, index = b"", []
    for begin in range(0, len(items), per_block):
        some = items[begin : begin + per_block]
        content = block(some, compression)
        index.append((some[-1][0], varint(len(out)) + varint(len(content) - 5)))
        out += content
    handles = b""
    for content in (block([]), block(index)):
        handles += varint(len(out)) + varint(len(content) - 5)
        out += content
    return out + handles.ljust(40, b"\0") + MAGIC


def write(
    prefix: Path,
    tensors: Mapping[str, np.ndarray],
    shards: int = 1,
    *,
    per_block: int = 7,
    compression: int = 0,
    header: bytes = b"",
    extra: bytes = b"",
) -> None:
    """Write a checkpoint; `header` and `extra` are more fields of its header and its entries."""
    data = [b""] * shards
    items = [(b"", field(1, shards) + header + field(3, field(1, 1)))]
    for number, name in enumerate(sorted(tensors)):
        tensor, shard = tensors[name], number % shards
        content = tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()
        shape = b"".join(field(2, field(1, size)) for size in tensor.shape)
        entry = field(1, NUMBERS.get(tensor.dtype.name, 7)) + field(2, shape) + field(3, shard)
        entry += field(4, len(data[shard])) + field(5, len(content))
        entry += varint(6 << 3 | 5) + masked_crc(content) + extra
        items.append((name.encode(), entry))
        data[shard] += content
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.index").write_bytes(table(items, per_block, compression))
    for shard, content in enumerate(data):
        Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}").write_bytes(content)


@pytest.fixture(scope="session")
def write_bundle():
    return write


@pytest.fixture(scope="session")
def textbook_crc32c():
    return slow_crc32c
