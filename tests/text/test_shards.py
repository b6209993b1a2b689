"""Shards on disk: opening, gathering, detecting damage, and reading at scale."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from electra.errors import UserError
from electra.text import shards
from electra.text.shards import Shards, map_file, neighbours


@pytest.fixture(scope="module")
def folder(many_shards):
    return many_shards


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy")


def whole(folder):
    """Read both splits file by file, without the class under test."""
    index = json.loads((folder / "index.json").read_text())
    train, held = [], []
    for shard in index["shards"]:
        rows = np.fromfile(folder / shard["file"], dtype=index["dtype"]).reshape(-1, 34)
        assert len(rows) == shard["rows"]
        held.append(rows[: shard["held_out"]])
        train.append(rows[shard["held_out"] :])
    return {"train": np.concatenate(train), "held_out": np.concatenate(held)}


@pytest.mark.parametrize("mapped", [256, 0])
def test_gather_returns_the_rows_on_disk(folder, mapped, monkeypatch):
    """With memory maps, and with files, as for more shards than there may be maps."""
    monkeypatch.setattr(shards, "MAPPED", mapped)
    opened = Shards.open(folder)
    assert opened.readers == (1 if mapped else 4)
    assert len(opened.shards) > 3
    random = np.random.default_rng(0)
    for split, rows in whole(folder).items():
        assert opened.rows(split) == len(rows) > 10
        for indices in (
            np.arange(len(rows)),
            random.integers(0, len(rows), 200),
            np.array([len(rows) - 1, 0, 0]),
            np.array([], dtype=np.int64),
        ):
            found = opened.gather(split, indices)
            assert found.dtype == np.int32
            assert np.array_equal(found, rows[indices])


def test_attributes(folder, tokenizer_folder):
    opened = Shards.open(folder)
    assert (opened.length, opened.layout, opened.dtype) == (32, "pairs", "uint16")
    assert opened.vocabulary_size == 300
    assert opened.tokens == sum(int(rows[:, -1].sum()) for rows in whole(folder).values())
    assert opened.fingerprint == json.loads((folder / "index.json").read_text())["tokenizer"]
    assert (opened.tokenizer / "tokenizer.json").is_file()


def test_index_out_of_range(folder):
    opened = Shards.open(folder)
    for wrong in (-1, opened.rows("train")):
        with pytest.raises(IndexError):
            opened.gather("train", np.array([wrong]))


def test_digest_depends_on_the_data_only(folder, copy):
    assert Shards.open(folder).digest == Shards.open(copy).digest
    index = json.loads((copy / "index.json").read_text())
    index["sources"] = []
    (copy / "index.json").write_text(json.dumps(index))
    assert Shards.open(copy).digest == Shards.open(folder).digest
    index["shards"][0]["held_out"] += 1
    (copy / "index.json").write_text(json.dumps(index))
    assert Shards.open(copy).digest != Shards.open(folder).digest


def test_changed_shard_is_reported(copy):
    path = copy / "shard-00002.bin"
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"shard-00002\.bin' was changed.*electra prepare"):
        Shards.open(copy)


def test_shards_of_wrong_size_and_missing_shards_are_reported(copy):
    path = copy / "shard-00001.bin"
    content = path.read_bytes()
    for other in (content[:-2], content + content[:68]):
        path.write_bytes(other)
        with pytest.raises(UserError, match=r"shard-00001\.bin' has \d+ bytes, not"):
            Shards.open(copy)
    path.unlink()
    with pytest.raises(UserError, match=r"shard-00001\.bin' is missing"):
        Shards.open(copy)


def test_invalid_folders(folder, copy, tmp_path):
    with pytest.raises(UserError, match="not a folder of token shards"):
        Shards.open(tmp_path)
    (copy / "index.json").write_text('{"format": 99}')
    with pytest.raises(UserError, match="format 99"):
        Shards.open(copy)
    index = json.loads((folder / "index.json").read_text()) | {"shards": [{"file": "a"}]}
    for broken in ('{"for', "[]", '{"format": 1}', json.dumps(index)):
        (copy / "index.json").write_text(broken)
        with pytest.raises(UserError, match="damaged"):
            Shards.open(copy)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dtype", "O"),  # the bytes of the file would be taken for addresses
        ("dtype", "uint8"),
        ("length", -1),
        ("length", "32"),
        ("layout", "rows"),
        ("vocabulary_size", None),
        ("shards", {}),
        ("file", "../outside.bin"),
        ("file", "/etc/hostname"),
        ("file", 5),
        ("rows", "3"),
        ("rows", -1),
        ("held_out", 10**9),
    ],
)
def test_a_hostile_index_is_refused(copy, key, value):
    path = copy / "index.json"
    index = json.loads(path.read_text())
    (copy.parent / "outside.bin").write_bytes(b"secret")
    shard = index["shards"][0]
    (shard if key in shard else index)[key] = value
    path.write_text(json.dumps(index))
    with pytest.raises(UserError, match="is damaged"):
        Shards.open(copy)


def test_an_index_that_is_nested_too_deeply_is_refused(copy):
    (copy / "index.json").write_text("[" * 10_000)
    with pytest.raises(UserError, match="is damaged"):
        Shards.open(copy)


def test_a_shard_that_changes_after_it_was_opened(copy):
    shards = Shards.open(copy)
    path = copy / shards.shards[0].file
    content = path.read_bytes()
    shards.check_unchanged("")
    os.utime(path, (1, 1))
    shards.check_unchanged("")  # the same rows
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match=rf"{path.name}' was changed.*The last one\. Restore"):
        shards.check_unchanged("The last one.")
    path.write_bytes(content)
    shards.check_unchanged("")
    path.unlink()
    shards.check_unchanged("")  # what is mapped stays


def test_a_shard_that_becomes_shorter_or_vanishes_while_it_is_read(copy):
    """Without the check, reading it would end the process by SIGBUS."""
    shards = Shards.open(copy)
    path = copy / shards.shards[0].file
    rows = np.arange(shards.rows("train"))
    before = shards.gather("train", rows)
    content = path.read_bytes()
    os.truncate(path, 10)
    with pytest.raises(UserError, match=rf"{path.name}' was cut short"):
        shards.gather("train", rows)
    with path.open("r+b") as file:
        file.write(content)
    assert np.array_equal(shards.gather("train", rows), before)
    map_file.cache_clear()
    path.unlink()
    with pytest.raises(UserError, match=rf"{path.name}' is missing"):
        shards.gather("train", rows)


def test_neighbours_are_read_at_once():
    def runs(*rows):
        return list(neighbours(np.array(rows)))

    assert runs(5) == [(0, 1)]
    assert runs(5, 6, 7, 9, 9, 10) == [(0, 3), (3, 4), (4, 6)]


@pytest.fixture
def large(monkeypatch):
    """Every corpus counts as one that is too large to be verified at the start."""
    monkeypatch.setattr(shards, "VERIFIED_AT_START", 0)
    monkeypatch.setattr(shards, "MAPPED", 0)


def change_a_byte(path):
    data = bytearray(path.read_bytes())
    data[1000] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("large")
def test_large_corpora_are_verified_in_the_background(copy):
    intact = Shards.open(copy).background
    intact.start()
    intact.main.join(10)
    intact.check()
    change_a_byte(copy / "shard-00002.bin")
    background = Shards.open(copy).background
    background.check()  # nothing is known before it starts
    background.start()
    background.main.join(10)
    with pytest.raises(UserError, match=r"shard-00002\.bin' was changed.*electra prepare"):
        background.check()


@pytest.mark.usefixtures("large")
def test_when_hashes_are_verified_can_be_chosen(copy):
    change_a_byte(copy / "shard-00001.bin")
    assert Shards.open(copy, verify="off").background is None
    with pytest.raises(UserError, match="was changed"):
        Shards.open(copy, verify="start")


@pytest.mark.usefixtures("large")
def test_files_that_vanish_or_shrink_while_they_are_read_are_reported(copy):
    opened = Shards.open(copy)
    everything = np.arange(opened.rows("train"))
    path = copy / "shard-00001.bin"
    os.truncate(path, path.stat().st_size - 34 * 2)
    with pytest.raises(UserError, match=r"shard-00001\.bin' is too short"):
        opened.gather("train", everything)
    path.unlink()
    with pytest.raises(UserError, match=r"shard-00001\.bin' is missing"):
        opened.gather("train", everything)


def open_files():
    return len(list(Path("/proc/self/fd").glob("*")))  # none where there is no such folder


def test_ten_thousand_shards_open_in_seconds_with_few_open_files(folder, tmp_path):
    """A corpus of 1.1 T tokens in files that are holes."""
    count, rows = 10_000, 850_000
    index = json.loads((folder / "index.json").read_text())
    entry = {"rows": rows, "held_out": 10, "tokens": rows * 128, "sha256": "0" * 64}
    index["shards"] = [{"file": f"shard-{i:05d}.bin"} | entry for i in range(count)]
    index["length"] = 128
    (tmp_path / "index.json").write_text(json.dumps(index))
    for shard in index["shards"]:
        with (tmp_path / shard["file"]).open("wb") as file:
            file.truncate(rows * 130 * 2)
    with (tmp_path / "shard-09999.bin").open("r+b") as file:  # the last row is 2.2 TB away
        file.seek(-260, os.SEEK_END)
        file.write(np.arange(130, dtype=np.uint16).tobytes())
    begun = time.perf_counter()
    opened = Shards.open(tmp_path)
    assert time.perf_counter() - begun < 10  # 0.2 s on an idle machine
    assert opened.tokens > 1e12
    before = open_files()
    last = opened.rows("train") - 1
    assert last > 2**32
    some = np.append(np.random.default_rng(0).integers(0, last, 1000), last)
    found = opened.gather("train", some)
    assert np.array_equal(found[-1], np.arange(130))
    assert not found[:-1].any()
    assert open_files() <= before + 1
