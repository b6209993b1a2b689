"""Shards of another store: the same rows as from a folder, a bounded cache, clear errors."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from benchmarks.range_server import RangeServer

from electra.errors import UserError
from electra.files import locked
from electra.text import remote
from electra.text.remote import default_cache, is_url, open_remote, read_remote_index
from electra.text.shards import Shards

fsspec = pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(remote, "DELAYS", (0.01, 0.01))
    monkeypatch.setattr(remote, "WAIT", 0.02)


@pytest.fixture(scope="module")
def folder(many_shards):
    return many_shards


@pytest.fixture
def in_memory(folder):
    """The same shards in fsspec's memory."""
    files = fsspec.filesystem("memory")
    files.put(f"{folder}/", "/bucket/shards", recursive=True)
    yield files
    files.rm("/bucket", recursive=True)


@pytest.fixture
def served(folder, tmp_path):
    """A copy of the shards on a web server: its folder and its address."""
    pytest.importorskip("aiohttp")
    copy = shutil.copytree(folder, tmp_path / "served" / "shards")
    server = RangeServer(copy.parent)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield copy, f"{server.url}/shards"
    server.shutdown()
    server.server_close()


def fill(shards):
    """Fill the cache and wait until it is filled."""
    shards.background.start()
    shards.background.main.join(20)
    shards.background.check()


def cached(cache):
    return sorted(path.name for path in cache.glob("*/*.bin"))


def everything(shards):
    return [shards.gather(s, np.arange(shards.rows(s))[::-1]) for s in ("train", "held_out")]


def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(everything(one), everything(two), strict=True))


@pytest.mark.parametrize("where", ["memory", "file", "http"])
@pytest.mark.parametrize("gigabytes", [0, 4e-5, 1])
def test_rows_are_those_of_the_folder(where, gigabytes, folder, tmp_path, request):
    """Nothing is cached, a part of the shards, or all; before and after the cache is filled."""
    if where == "http":
        url = request.getfixturevalue("served")[1]
    elif where == "memory":
        request.getfixturevalue("in_memory")
        url = "memory://bucket/shards"
    else:
        url = folder.as_uri()
    local, cache = Shards.open(folder), tmp_path / "cache"
    shards = open_remote(url, cache, int(gigabytes * 1e9))
    assert shards.digest == local.digest
    assert shards.location == url
    assert (shards.tokenizer / "tokenizer.json").is_file()
    assert same(shards, local)
    assert cached(cache) == []  # opening and reading download no shard
    fill(shards)
    files = [shard.file for shard in local.shards]
    held = cached(cache)
    assert held == files[: len(held)]
    assert len(held) == {0: 0, 1: len(files)}.get(gigabytes, len(held))
    assert gigabytes != 4e-5 or 0 < len(held) < len(files)
    assert sum((next(cache.glob("*/index.json")).parent / f).stat().st_size for f in held) <= max(
        gigabytes * 1e9, 0
    )
    assert same(shards, local)


@pytest.mark.usefixtures("in_memory")
def test_cached_shards_are_not_read_again(tmp_path, monkeypatch, folder):
    first = open_remote("memory://bucket/shards", tmp_path, 10**9)
    fill(first)
    again = open_remote("memory://bucket/shards", tmp_path, 10**9)

    def forbidden(*_):
        raise AssertionError("was read from the store")

    monkeypatch.setattr(remote.Store, "download", forbidden)
    monkeypatch.setattr(remote.Store, "read_parts", forbidden)
    fill(again)
    assert same(again, Shards.open(folder))


@pytest.mark.usefixtures("in_memory")
def test_shards_that_vanish_from_the_cache_are_read_from_the_store(tmp_path, folder):
    shards = open_remote("memory://bucket/shards", tmp_path, 10**9)
    fill(shards)
    (shards.folder / "shard-00001.bin").unlink()
    assert same(shards, Shards.open(folder))


@pytest.mark.usefixtures("in_memory")
def test_damaged_and_partial_files_in_the_cache_are_replaced(tmp_path, folder):
    shards = open_remote("memory://bucket/shards", tmp_path, 10**9)
    fill(shards)
    partial = shards.folder / "shard-00000.bin"
    partial.write_bytes(partial.read_bytes()[:-10])
    changed = shards.folder / "shard-00001.bin"
    changed.write_bytes(bytes(changed.stat().st_size))
    left = shards.folder / "shard-00002.bin.123.tmp"
    left.write_bytes(b"x")
    fill(open_remote("memory://bucket/shards", tmp_path, 10**9))
    assert same(Shards.open(shards.folder), Shards.open(folder))
    assert not left.exists()


def test_what_was_not_used_for_longest_is_removed(in_memory, tmp_path):
    shards = open_remote("memory://bucket/shards", tmp_path, 10**9)
    size = sum(shard.rows * shards.row_bytes for shard in shards.shards)
    for number, name in enumerate(("oldest", "older", "newest")):
        other = tmp_path / name
        other.mkdir()
        (other / "shard-00000.bin").write_bytes(bytes(size // 2))
        os.utime(other / "shard-00000.bin", (number + 1, number + 1))
    shards = open_remote("memory://bucket/shards", tmp_path, 2 * size)
    fill(shards)
    assert len(cached(shards.folder.parent)) == len(shards.shards) + 2
    assert not (tmp_path / "oldest" / "shard-00000.bin").exists()
    smaller = open_remote("memory://bucket/shards", tmp_path, size // 2)
    fill(smaller)
    assert 0 < len(smaller.remote.kept) < len(shards.shards)
    total = sum(path.stat().st_size for path in tmp_path.glob("*/*.bin"))
    assert total <= 2 * size
    assert in_memory.exists("/bucket/shards/shard-00000.bin")


@pytest.mark.usefixtures("in_memory")
def test_one_run_at_a_time_fills_the_cache(tmp_path):
    shards = open_remote("memory://bucket/shards", tmp_path, 10**9)
    with locked(tmp_path, "in use"):
        shards.background.start()
        time.sleep(0.2)
        assert cached(tmp_path) == []
        assert len(everything(shards)[0])  # meanwhile rows are read from the store
    shards.background.main.join(20)
    assert len(cached(tmp_path)) == len(shards.shards)


FILL = """
import sys
from pathlib import Path
from electra.text import remote
remote.WAIT = 0.02
shards = remote.open_remote(sys.argv[1], Path(sys.argv[2]), 10**9)
shards.background.start()
shards.background.main.join()
shards.background.check()
"""


def test_several_processes_share_a_cache(served, folder, tmp_path):
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", FILL, served[1], str(cache)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    (held,) = (path.parent for path in cache.glob("*/index.json"))
    assert same(Shards.open(held), Shards.open(folder))
    assert not list(cache.glob("*/*.tmp"))


def test_a_changed_shard_in_the_store_is_noticed(served, tmp_path):
    copy, url = served
    path = copy / "shard-00001.bin"
    path.write_bytes(bytes(path.stat().st_size))
    shards = open_remote(url, tmp_path / "cache", 10**9)
    with pytest.raises(UserError, match=r"shard-00001\.bin' cannot be read \(its hash is not"):
        fill(shards)
    assert "shard-00001.bin" not in cached(tmp_path / "cache")


def test_short_failures_are_tried_again(served, folder, tmp_path, monkeypatch):
    shards = open_remote(served[1], tmp_path, 0)
    read_parts, calls = remote.Store.read_parts, []

    def flaky(self, ranges):
        calls.append(len(ranges))
        found = read_parts(self, ranges)
        if len(calls) == 1:
            found[1:3] = [ConnectionError("reset"), found[2][:-1]]
        return found

    monkeypatch.setattr(remote.Store, "read_parts", flaky)
    some = np.arange(0, shards.rows("train"), 7)
    expected = Shards.open(folder).gather("train", some)
    assert np.array_equal(shards.gather("train", some), expected)
    assert calls == [len(some), 2]  # only what failed is read again


def test_what_may_not_be_read(served, tmp_path, monkeypatch):
    shards = open_remote(served[1], tmp_path, 0)

    def denied(self, ranges):
        return [PermissionError("Access Denied")] * len(ranges)

    monkeypatch.setattr(remote.Store, "read_parts", denied)
    with pytest.raises(UserError, match=r"may not be read \(Access Denied\).*credentials"):
        shards.gather("train", np.arange(3))


def test_an_emptied_cache_is_filled_again(in_memory, tmp_path, folder):
    shards = open_remote("memory://bucket/shards", tmp_path / "cache", 10**9)
    shutil.rmtree(shards.folder)
    fill(shards)
    assert len(cached(tmp_path / "cache")) == len(shards.shards)
    assert same(shards, Shards.open(folder))


def test_a_store_that_is_gone_is_one_sentence(served, tmp_path):
    copy, url = served
    shards = open_remote(url, tmp_path, 0)
    (copy / "shard-00002.bin").unlink()
    with pytest.raises(UserError, match=r"There is no 'http.*shard-00002\.bin.*upload"):
        everything(shards)
    with pytest.raises(UserError, match=r"cannot be read.*check the network.*--resume"):
        read_remote_index("http://127.0.0.1:9/shards")


def test_what_is_not_there(served, in_memory, tmp_path):
    assert read_remote_index(served[1] + "/64") is None
    assert read_remote_index("memory://nothing/here") is None
    with pytest.raises(UserError, match=r"There is no 'memory://nothing/index\.json'"):
        open_remote("memory://nothing", tmp_path, 0)
    with pytest.raises(UserError, match=r"'nosuch://x' cannot be opened"):
        open_remote("nosuch://x", tmp_path, 0)
    in_memory.rm("/bucket/shards/shard-00001.bin")
    with pytest.raises(UserError, match=r"shard-00001\.bin' is missing"):
        open_remote("memory://bucket/shards", tmp_path, 0)
    in_memory.pipe("/bucket/shards/shard-00001.bin", b"short")
    with pytest.raises(UserError, match=r"shard-00001\.bin' has 5 bytes, not"):
        open_remote("memory://bucket/shards", tmp_path, 0)
    in_memory.pipe("/bucket/shards/index.json", json.dumps({"format": 9}).encode())
    with pytest.raises(UserError, match="format 9"):
        open_remote("memory://bucket/shards", tmp_path, 0)


@pytest.mark.usefixtures("in_memory")
def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written.*data\.cache_dir"):
        open_remote("memory://bucket/shards", tmp_path / "file", 0)


@pytest.mark.usefixtures("in_memory")
def test_a_full_disk_ends_the_caching_but_not_the_run(tmp_path, folder, monkeypatch):
    shards = open_remote("memory://bucket/shards", tmp_path, 10**9)

    def full(self, file, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(remote.Store, "download", full)
    with pytest.warns(UserWarning, match="is full"):
        fill(shards)
    assert cached(tmp_path) == []
    assert not list(tmp_path.glob("*/*.tmp"))
    assert same(shards, Shards.open(folder))


def test_addresses(monkeypatch, tmp_path):
    assert is_url("s3://bucket/x")
    assert not is_url("/data/shards")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "electra" / "shards"
