"""Find the input files, decompress them and read them as blocks of text."""

import bz2
import codecs
import glob
import gzip
import io
import lzma
import os
import shlex
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from electra.errors import UserError, require

BLOCK = 1 << 20  # bytes of a block
PIECE = 1 << 16  # bytes read at a time; damage loses at most one piece
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")
# Endings of compressed tar archives, and the compression that each stands for.
COMPRESSED_TAR = {".tgz": ".gz", ".txz": ".xz", ".tbz": ".bz2", ".tbz2": ".bz2", ".tzst": ".zst"}

# Files that are often mistaken for text, by their first bytes.
MAGIC_BYTES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF document; extract its text first",
    b"PK\x03\x04": "a zip archive, whose name must end in .zip, or an office document, which you "
    "can save as text",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it first",
    b"Rar!\x1a\x07": "a rar archive; unpack it first",
    b"\x1f\x8b": "gzip-compressed; give its name the ending .gz",
    b"\xfd7zXZ": "xz-compressed; give its name the ending .xz",
    b"BZh": "bzip2-compressed; give its name the ending .bz2",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; give its name the ending .zst",
    b"PAR1": "a parquet file; give its name the ending .parquet",
    b"\xff\xfe": "UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
}

# What decompressors and archive readers raise for damaged files.
DAMAGE = (
    EOFError,
    OSError,
    NotImplementedError,  # a compression method that `zipfile` does not know
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)

OnBytes = Callable[[int], None]
Block = tuple[bytes, Exception | None]
"""Bytes, none at the end of the file, and the damage after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file or pipe, or one dataset of the Hugging Face Hub."""

    name: str
    """The path, or `hub:…`."""
    size: int | None
    """Size on disk in bytes; None for pipes and the Hub."""
    modified: int | None
    """Time of the last change in nanoseconds; None for pipes and the Hub."""
    alone: bool
    """Named by the user, not found in a folder: an empty file is an error."""
    pipe: bool = False
    """A named pipe, `/dev/stdin` or a process substitution, which can be read only once."""

    @property
    def kind(self) -> str:
        """The format by the file's ending, without the compression: txt, jsonl, csv, …"""
        if self.size is None and not self.pipe:  # not by name: a folder can be called hub:…
            return "hub"
        return file_kind(self.name)


def file_endings(name: str) -> list[str]:
    """Return the endings of a file's name in lower case, as `Path.suffixes` but faster."""
    return [f".{each}" for each in name.rpartition("/")[2].lower().lstrip(".").split(".")[1:]]


def file_kind(name: str) -> str:
    """Return the format by a file's ending, without the compression: txt, jsonl, csv, tar, …"""
    endings = file_endings(name)
    if endings and endings[-1] in COMPRESSED_TAR:
        return "tar"
    if endings and endings[-1] in COMPRESSED:
        endings.pop()
    return endings[-1][1:] if endings else "txt"


def find_sources(inputs: list[str]) -> list[Source]:
    """Return every file, pipe and dataset that the inputs name, in a fixed order."""
    if not inputs:
        raise UserError("No input is given: name files, folders, globs or hub:NAME.")
    return [source for name in inputs for source in expand_input(name)]


def expand_input(name: str) -> Iterator[Source]:
    """Yield the sources of one input: a dataset, file, pipe, folder or glob."""
    if name.startswith("hub:"):
        yield Source(name=name, size=None, modified=None, alone=True)
        return
    path = Path(name)
    if path.is_file():
        yield file_source(path, alone=True)
        return
    if is_pipe(path):
        # Not opened here: closing it again would break the pipe for its writer.
        yield Source(name=name, size=None, modified=None, alone=True, pipe=True)
        return
    if path.is_dir():
        found = [p for p in files_below(path) if p.is_file()]
        if not found:
            raise UserError(f"The folder '{name}' holds no files: name one that holds text.")
    elif glob.has_magic(name):
        found = [p for p in map(Path, glob.iglob(name, recursive=True)) if p.is_file()]  # noqa: PTH207
        if not found:
            raise UserError(f"No file matches '{name}': check the pattern and the folder.")
    else:
        raise UserError(f"There is no file or folder '{name}': check the path.")
    for each in sorted(found, key=lambda p: p.as_posix()):
        yield file_source(each, alone=False)


def is_pipe(path: Path) -> bool:
    """Whether the path is a pipe or another stream that can be read only once."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


@contextmanager
def pipes_as_files(inputs: Sequence[str | Path]) -> Iterator[list[str]]:
    """Copy inputs that are pipes to temporary files, for work that reads its inputs twice."""
    with ExitStack() as stack:
        names: list[str] = []
        for name in map(str, inputs):
            if is_pipe(Path(name)):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="electra-"))
                copy = Path(folder) / Path(name).name  # the ending gives the format
                with open_binary(name) as source, copy.open("wb") as target:
                    shutil.copyfileobj(source, target, BLOCK)
                name = str(copy)
            names.append(name)
        yield names


def files_below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, except hidden ones; an unreadable folder is an error."""

    def fail(error: OSError) -> None:
        raise UserError(f"'{error.filename}' cannot be read: {error.strerror}.")

    for parent, folders, files in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not hidden(Path(name))]
        yield from (Path(parent) / name for name in files if not hidden(Path(name)))


def hidden(path: Path) -> bool:
    """Whether a part of the path starts with a dot, such as .git or .DS_Store."""
    return any(part.startswith(".") for part in path.parts)


def file_source(path: Path, *, alone: bool) -> Source:
    """Return the source for one file, after checking that it is readable."""
    try:
        state = path.stat()
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from None
    return Source(name=str(path), size=state.st_size, modified=state.st_mtime_ns, alone=alone)


def decompress(name: str, raw: IO[bytes]) -> IO[bytes]:
    """Wrap an open file in the decompressor that its ending asks for."""
    ending = (file_endings(name) or [""])[-1]
    ending = COMPRESSED_TAR.get(ending, ending)
    if ending == ".gz":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=raw))
    if ending == ".xz":
        return cast("IO[bytes]", lzma.LZMAFile(raw))
    if ending == ".bz2":
        return cast("IO[bytes]", bz2.BZ2File(raw))
    if ending == ".zst":
        arrow: Any = require("pyarrow", "data")
        return cast("IO[bytes]", arrow.CompressedInputStream(raw, "zstd"))
    return raw


class InputFile:
    """The decompressed bytes of a file, of a pipe or of a member of an archive."""

    def __init__(self, name: str, next_block: Callable[[], Block], *, archive: str = "") -> None:
        self.name = f"{archive}:{name}" if archive else name
        """The path for errors; that of a member is `ARCHIVE:MEMBER`."""
        self.archived = bool(archive)
        """Whether it is a member of an archive."""
        self.kind = file_kind(name)
        """The format by the file's ending."""
        self.location = ""
        """For errors: the member that is being read, if this is an archive."""
        self._read_block = next_block
        self._block = b""
        self._offset = 0
        self._error: Exception | None = None

    def head(self) -> bytes:
        """Return the rest of the current block, at the start the first one; it stays unread."""
        if self._offset == len(self._block):
            self._next_block()
        return self._block[self._offset :]

    def read(self, count: int) -> bytes:
        """Return up to `count` bytes, none at the end."""
        if self._offset == len(self._block):
            self._next_block()
        piece = self._block[self._offset : self._offset + count]
        self._offset += len(piece)
        return piece

    def blocks(self) -> Iterator[bytes]:
        """Yield the rest of the file in blocks."""
        while block := self.head():
            self._offset = len(self._block)
            yield block

    def _next_block(self) -> None:
        self._block, self._offset = b"", 0
        if self._error is None:
            self._block, self._error = self._read_block()
        if self._error is not None and not self._block:
            raise damaged(self.name, self.location, self._error) from None


def damaged(name: str, location: str, error: Exception) -> UserError:
    """Return the error for a file that cannot be decompressed or unpacked."""
    reason = str(error).rstrip(".") or type(error).__name__
    return UserError(
        f"'{name}' is truncated or damaged{location} ({reason}): fetch or compress it again."
    )


@contextmanager
def open_input(source: Source, on_bytes: OnBytes) -> Iterator[InputFile]:
    """Open a file or a pipe; `on_bytes` is called with the number of bytes read from disk."""
    with open_binary(source.name) as raw, ThreadPoolExecutor(1) as pool:
        stream = decompress(source.name, raw)
        ahead: Future[tuple[Block, int]] | None = None
        reported = 0

        def read() -> tuple[Block, int]:
            block = read_block(stream)
            return block, reported + len(block[0]) if source.pipe else raw.tell()

        def next_block() -> Block:
            nonlocal ahead, reported
            block, position = ahead.result() if ahead else read()
            if stream is not raw and not source.pipe:  # a pipe may keep the thread waiting
                ahead = pool.submit(read)  # decompress the next block while this one is used
            on_bytes(position - reported)
            reported = position
            return block

        yield InputFile(source.name, next_block)


def blocks(source: Source, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in blocks and report the bytes read from disk."""
    with open_input(source, on_bytes) as file:
        yield from file.blocks()


def open_binary(name: str) -> IO[bytes]:
    """Open a file or a pipe for reading."""
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise UserError(f"'{name}' cannot be read: {error.strerror}.") from None


def read_block(stream: IO[bytes]) -> Block:
    """Read one full block; only the last one is shorter, whatever the compression or pipe.

    If the file is damaged, return the bytes before the damage and the error.
    """
    read = getattr(stream, "read1", stream.read)  # `read` would lose the bytes before an error
    pieces: list[bytes] = []
    left = BLOCK
    try:
        while left and (piece := read(min(left, PIECE))):
            pieces.append(piece)
            left -= len(piece)
    except DAMAGE as error:
        return b"".join(pieces), error
    return b"".join(pieces), None


def texts(file: InputFile) -> Iterator[str]:
    """Yield the text of a file in blocks: UTF-8 without BOM, every line end converted to \\n."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    lines = offset = 0
    for block in file.blocks():
        refuse_binary(file.name, block, first=offset == 0, line=lines + 1)
        yield newlines.decode(decode_block(decoder, block, file, lines, offset))
        lines += block.count(b"\n")
        offset += len(block)
    yield newlines.decode(decode_block(decoder, b"", file, lines, offset), final=True)


def refuse_known_binary(name: str, block: bytes) -> None:
    """Refuse a file whose first bytes are those of another format."""
    for magic, what in MAGIC_BYTES.items():
        if block.startswith(magic):
            raise UserError(f"'{name}' is not UTF-8 text: it is {what}.")


def refuse_binary(name: str, block: bytes, *, first: bool, line: int) -> None:
    """Refuse binary files: known formats by their first bytes, others by a NUL byte."""
    if first:
        refuse_known_binary(name, block)
    if b"\0" in block:
        line += block[: block.index(b"\0")].count(b"\n")
        raise UserError(
            f"'{name}' is not text: line {line} holds a NUL byte; "
            "leave this file out or convert it to UTF-8 text."
        )


def decode_block(
    decoder: codecs.IncrementalDecoder, block: bytes, file: InputFile, lines: int, offset: int
) -> str:
    """Decode a block; an error names the file, the line and the byte."""
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        data = error.object  # bytes left over from the last block, then this block
        line = lines + data[: error.start].count(b"\n") + 1
        position = offset - (len(data) - len(block)) + error.start
        path = "FILE" if file.archived else shlex.quote(file.name)
        command = f"iconv -f LATIN1 -t UTF-8 {path}"
        raise UserError(
            f"'{file.name}' is not valid UTF-8 in line {line} (byte 0x{data[error.start]:02x} at "
            f"offset {position}): convert it, for example with `{command}`."
        ) from None
