"""Tensor bundles: what an independent writer writes is read, and damage is found."""

from pathlib import Path

import numpy as np
import pytest
from tests.hub.conftest import MAGIC, block, field, table, varint

from electra.errors import UserError
from electra.hub.tensor_bundle import open_bundle


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    found = {
        f"electra/layer_{i}/{name}": rng.normal(size=(3, i + 1)).astype(np.float32)
        for i in range(12)
        for name in ("bias", "kernel", "kernel/adam_m")
    }
    return found | {
        "global_step": np.array(30, np.int64),
        "double": rng.normal(size=5),
        "half": rng.normal(size=(2, 2, 2)).astype(np.float16),
        "counts": np.array([-1, 2**31 - 1], np.int32),
        "empty": np.zeros((0, 4), np.float32),
    }


@pytest.mark.parametrize(("shards", "per_block"), [(1, 1000), (1, 1), (3, 7), (12, 4)])
def test_tensors_come_back(shards, per_block, tensors, write_bundle, tmp_path):
    write_bundle(tmp_path / "model.ckpt-30", tensors, shards, per_block=per_block)
    bundle = open_bundle(tmp_path / "model.ckpt-30")
    assert bundle.shards == shards
    assert bundle.entries.keys() == tensors.keys()
    for name, expected in tensors.items():
        found = bundle.read(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(found, expected)


def test_each_damaged_byte_of_the_data_is_found(tensors, write_bundle, tmp_path):
    write_bundle(tmp_path / "model", {"double": tensors["double"]})
    data = tmp_path / "model.data-00000-of-00001"
    content = data.read_bytes()
    for place in range(len(content)):
        data.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with pytest.raises(UserError, match="is damaged: the checksum of double differs"):
            open_bundle(tmp_path / "model").read("double")


def test_truncated_or_missing_data(tensors, write_bundle, tmp_path):
    write_bundle(tmp_path / "model", tensors, 2)
    bundle = open_bundle(tmp_path / "model")
    last = max(tensors, key=lambda name: (bundle.entries[name].shard, bundle.entries[name].offset))
    data = tmp_path / "model.data-00001-of-00002"
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"too short for {last}"):
        bundle.read(last)
    data.unlink()
    with pytest.raises(UserError, match=r"data-00001-of-00002 is missing: copy all files"):
        bundle.read(last)


def test_every_damaged_index_is_refused(tensors, write_bundle, tmp_path):
    """Either the index is refused, or the byte was one that nothing reads."""
    write_bundle(tmp_path / "model", tensors, 2, per_block=20)
    index = tmp_path / "model.index"
    content = index.read_bytes()
    entries = open_bundle(tmp_path / "model").entries
    refused = 0
    for place in range(0, len(content), 3):
        index.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        try:
            assert open_bundle(tmp_path / "model").entries == entries
        except UserError:
            refused += 1
    assert refused > 0.9 * len(content) / 3  # the rest is padding and the block of filters
    for size in (0, 7, 47, 48, len(content) // 2, len(content) - 1):
        index.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"model\.index is damaged"):
            open_bundle(tmp_path / "model")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"compression": 1}, "is compressed"),
        ({"header": b"\x10\x01"}, "big-endian"),
        ({"extra": b"\x3a\x00"}, "partitioned"),
    ],
)
def test_forms_that_are_not_read(more, message, tensors, write_bundle, tmp_path):
    write_bundle(tmp_path / "model", tensors, **more)
    with pytest.raises(UserError, match=message):
        open_bundle(tmp_path / "model").read("double")


def test_an_unknown_type(write_bundle, tmp_path: Path):
    write_bundle(tmp_path / "model", {"names": np.array([1, 2], np.uint16)})
    with pytest.raises(UserError, match=r"names has TensorFlow's dtype 7"):
        open_bundle(tmp_path / "model").read("names")


def entry(shape: tuple[int, ...], *, size: int, offset: int = 0) -> bytes:
    sizes = b"".join(field(2, field(1, each)) for each in shape)
    return field(1, 1) + field(2, sizes) + field(4, offset) + field(5, size)


@pytest.mark.parametrize(
    "value",
    [
        entry((2**61,), size=2**63),  # file.read would allocate it at once
        entry((1,), size=4, offset=2**63),
        entry((2**40, 2**40), size=0),
        entry((0, 2**64 - 1), size=16),
    ],
    ids=["size", "offset", "overflow", "empty"],
)
def test_places_outside_of_the_file_are_refused(value, tmp_path):
    (tmp_path / "m.index").write_bytes(table([(b"", field(1, 1)), (b"a", value)], 7))
    (tmp_path / "m.data-00000-of-00001").write_bytes(bytes(100))
    with pytest.raises(UserError, match="too short for a"):
        open_bundle(tmp_path / "m").read("a")


@pytest.mark.parametrize(
    "items",
    [
        [(b"", field(1, b"x")), (b"a", b"")],
        [(b"", field(1, 1)), (b"a", field(2, 5))],  # a number where a message belongs
        [(b"", field(1, 1)), (b"a", b"\x08" + b"\xff" * 11)],
        [(b"", field(1, 1)), (b"a" * 2000, b"")],  # later keys would repeat it for two bytes
    ],
    ids=["header", "type", "number", "name"],
)
def test_hostile_entries_are_refused(items, tmp_path):
    (tmp_path / "m.index").write_bytes(table(items, 7))
    with pytest.raises(UserError, match="is damaged"):
        open_bundle(tmp_path / "m")


def test_a_block_that_is_listed_twice_is_refused(tmp_path):
    """A table of a megabyte could list a block of a megabyte a hundred thousand times."""
    content = block([(b"", field(1, 1))])
    handle = varint(0) + varint(len(content) - 5)
    index = block([(b"a", handle), (b"b", handle)])
    place = varint(0) * 2 + varint(len(content)) + varint(len(index) - 5)
    (tmp_path / "m.index").write_bytes(content + index + place.ljust(40, b"\0") + MAGIC)
    with pytest.raises(UserError, match="is damaged"):
        open_bundle(tmp_path / "m")
