"""Sources: which inputs are found, and how files and pipes are read."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.text import sources
from electra.text.readers import read_chunks
from electra.text.sources import Source, find_sources, pipes_as_files


@contextmanager
def named_pipe(path: Path, data: bytes, times: int = 1) -> Iterator[Path]:
    """Yield a named pipe that another thread writes the data to."""
    os.mkfifo(path)

    def write() -> None:
        for _ in range(times):
            with suppress(BrokenPipeError):
                path.write_bytes(data)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    yield path
    thread.join(10)
    assert not thread.is_alive(), "the pipe was not read"


@contextmanager
def unnamed_pipe(data: bytes) -> Iterator[Path]:
    """Yield a path like the one a shell gives for a process substitution."""
    reader, writer = os.pipe()
    os.write(writer, data)  # little enough for the pipe's buffer
    os.close(writer)
    yield Path(f"/dev/fd/{reader}")
    os.close(reader)


def documents(*inputs: object) -> list[str]:
    return [d for chunk in read_chunks([str(i) for i in inputs]) for d in chunk]


def as_text(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "data"),
    [("pipe", b"one\n\ntwo"), ("pipe.jsonl", b'{"text": "one"}\n{"text": "two"}\n')],
)
def test_named_pipe_is_read_by_its_ending(tmp_path, name, data):
    with named_pipe(tmp_path / name, data) as path:
        assert documents(path) == ["one", "two"]


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2", "zst"])
def test_compressed_pipe(tmp_path, ending):
    import bz2
    import gzip
    import lzma

    if ending == "zst":
        arrow = pytest.importorskip("pyarrow")
        data = arrow.compress(b"one\n\ntwo", codec="zstd", asbytes=True)
    else:
        data = {"gz": gzip, "xz": lzma, "bz2": bz2}[ending].compress(b"one\n\ntwo")
    with named_pipe(tmp_path / f"pipe.txt.{ending}", data) as path:
        assert documents(path) == ["one", "two"]


def test_process_substitution_beside_a_file(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    counted: list[int] = []
    with unnamed_pipe(b"two\n\nthree") as path:
        chunks = read_chunks([str(tmp_path / "a.txt"), str(path)], on_bytes=counted.append)
        assert [d for chunk in chunks for d in chunk] == ["one", "two", "three"]
    assert sum(counted) == len(b"one") + len(b"two\n\nthree")


def test_finding_a_pipe_does_not_open_it(tmp_path):
    """Opening and closing it would break the pipe for its writer."""
    os.mkfifo(tmp_path / "pipe")
    (source,) = find_sources([str(tmp_path / "pipe")])
    assert (source.pipe, source.kind, source.size) == (True, "txt", None)


def test_pipe_without_text_and_parquet_from_a_pipe(tmp_path):
    with unnamed_pipe(b"") as path, pytest.raises(UserError, match="holds no text"):
        documents(path)
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="is a pipe, parquet needs a file"):
        documents(tmp_path / "a.parquet")


def test_pipes_are_copied_for_work_that_reads_twice(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    with (
        named_pipe(tmp_path / "pipe.jsonl", b'{"text": "two"}') as path,
        pipes_as_files([tmp_path / "a.txt", path]) as files,
    ):
        for _ in range(2):
            assert documents(*files) == ["one", "two"]
        assert files[0] == str(tmp_path / "a.txt")
    assert not Path(files[1]).exists()


def test_folders_are_read_sorted_without_hidden_files(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    as_text(tmp_path / "b.txt", b"three")
    as_text(tmp_path / "a.txt", b"one")
    as_text(tmp_path / "a2.md", b"two")
    as_text(tmp_path / "empty.txt", b"")
    as_text(tmp_path / "sub" / "0.jsonl", b'{"text": "four"}')
    as_text(tmp_path / ".git" / "x.txt", b"hidden")
    as_text(tmp_path / ".DS_Store", b"\0\1")
    assert documents(tmp_path) == ["one", "two", "three", "four"]
    assert documents(tmp_path / "*.txt") == ["one", "three"]
    assert documents(tmp_path / "**" / "*.jsonl") == ["four"]
    (tmp_path / "sub" / "deep").mkdir()
    as_text(tmp_path / "sub" / "deep" / "1.jsonl", b'{"text": "five"}')
    assert documents(tmp_path / "**" / "*.jsonl") == ["four", "five"]


def test_unreadable_subfolder_is_an_error(tmp_path, monkeypatch):
    scandir = os.scandir

    def refuse(path):
        if Path(path).name in ("locked", ".locked"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    as_text(tmp_path / "a.txt", b"one")
    (tmp_path / ".locked").mkdir()
    assert documents(tmp_path) == ["one"]
    (tmp_path / "locked").mkdir()
    with pytest.raises(UserError, match="locked' cannot be read: Permission denied"):
        documents(tmp_path)


def test_short_reads_are_joined(monkeypatch):
    """A pipe or decompressor can return less than requested; the blocks stay the same."""

    class Drops:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def read(self, count: int) -> bytes:
            some, self.data = self.data[: min(3, count)], self.data[min(3, count) :]
            return some

    monkeypatch.setattr(sources, "BLOCK", 10)
    stream = Drops(bytes(range(25)))
    found = [sources.read_block(stream)[0] for _ in range(4)]
    assert found == [bytes(range(10)), bytes(range(10, 20)), bytes(range(20, 25)), b""]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none.txt", "There is no file or folder '.*none.txt'"),
        ("*.nothing", "No file matches"),
        ("hub:", "names no dataset"),
    ],
)
def test_missing_inputs(tmp_path, name, message):
    with pytest.raises(UserError, match=message):
        documents(name if name.startswith("hub:") else tmp_path / name)


def test_empty_folder_and_folder_without_text(tmp_path):
    with pytest.raises(UserError, match="holds no files"):
        documents(tmp_path)
    as_text(tmp_path / "a.txt", b"\n")
    with pytest.raises(UserError, match="There is no text in"):
        documents(tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.TXT", "txt"),
        ("a.jsonl.gz", "jsonl"),
        ("a", "txt"),
        ("v1.2.csv.xz", "csv"),
        ("v1.csv/a", "txt"),
        ("a_data.xz", "txt"),
        ("a.tar.xz", "tar"),
        ("a.TGZ", "tar"),
    ],
)
def test_kind_by_ending(name, kind):
    assert Source(name=name, size=0, modified=0, alone=True).kind == kind


def test_files_called_like_an_ending_are_text(tmp_path):
    for name in ("gz", "zip", "tar"):
        assert documents(as_text(tmp_path / name, b"one")) == ["one"]


def test_folder_named_like_a_hub_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("hub:x").mkdir()
    Path("hub:x/a.txt").write_text("one\n\ntwo")
    assert documents("./hub:x") == ["one", "two"]
