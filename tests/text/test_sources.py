"""Sources: which inputs there are, and how pipes are read."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.text.readers import read_chunks
from electra.text.sources import find_sources, pipes_as_files


@contextmanager
def named_pipe(path: Path, data: bytes, times: int = 1) -> Iterator[Path]:
    """A named pipe that another thread writes the data to."""
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
    """The path that a shell gives for a process substitution."""
    reader, writer = os.pipe()
    os.write(writer, data)  # little enough for the pipe's buffer
    os.close(writer)
    yield Path(f"/dev/fd/{reader}")
    os.close(reader)


def documents(*inputs: object) -> list[str]:
    return [d for chunk in read_chunks([str(i) for i in inputs]) for d in chunk]


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
    """Its writer would end with a broken pipe."""
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
