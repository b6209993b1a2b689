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
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from electra.errors import UserError, require

BLOCK = 1 << 20  # bytes read at a time
COMPRESSED = (".gz", ".xz", ".bz2", ".zst")

# Files that are often mistaken for text, by their first bytes.
MAGIC_BYTES = {
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"%PDF": "a PDF document; extract its text first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"\x1f\x8b": "gzip-compressed; give its name the ending .gz",
    b"\xfd7zXZ": "xz-compressed; give its name the ending .xz",
    b"BZh": "bzip2-compressed; give its name the ending .bz2",
    b"\x28\xb5\x2f\xfd": "zstd-compressed; give its name the ending .zst",
    b"PAR1": "a parquet file; give its name the ending .parquet",
    b"\xff\xfe": "UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
    b"\xfe\xff": "UTF-16; convert it with `iconv -f UTF-16 -t UTF-8`",
}

OnBytes = Callable[[int], None]


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
        endings = [s.lower() for s in Path(self.name).suffixes]
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
    ending = Path(name).suffix.lower()
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


def blocks(source: Source, on_bytes: OnBytes) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in blocks and report the bytes read from disk."""
    reported = 0
    with open_binary(source.name) as raw:
        stream = decompress(source.name, raw)
        while True:
            try:
                block = read_block(stream)
            except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, OSError) as error:
                raise UserError(
                    f"'{source.name}' is truncated or damaged ({str(error).rstrip('.')}): "
                    "fetch or compress it again."
                ) from None
            position = reported + len(block) if source.pipe else raw.tell()
            on_bytes(position - reported)
            reported = position
            if not block:
                return
            yield block


def open_binary(name: str) -> IO[bytes]:
    """Open a file or a pipe for reading."""
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise UserError(f"'{name}' cannot be read: {error.strerror}.") from None


def read_block(stream: IO[bytes]) -> bytes:
    """Read one full block; only the last one is shorter, whatever the compression or pipe."""
    block = stream.read(BLOCK)
    while block and len(block) < BLOCK:
        more = stream.read(BLOCK - len(block))
        if not more:
            break
        block += more
    return block


def texts(source: Source, on_bytes: OnBytes) -> Iterator[str]:
    """Yield the text of a file in blocks: UTF-8 without BOM, every line end converted to \\n."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    lines = offset = 0
    for block in blocks(source, on_bytes):
        refuse_binary(source.name, block, first=offset == 0, line=lines + 1)
        yield newlines.decode(decode_block(decoder, block, source.name, lines, offset))
        lines += block.count(b"\n")
        offset += len(block)
    yield newlines.decode(decode_block(decoder, b"", source.name, lines, offset), final=True)


def refuse_binary(name: str, block: bytes, *, first: bool, line: int) -> None:
    """Refuse binary files: known formats by their first bytes, others by a NUL byte."""
    if first:
        for magic, what in MAGIC_BYTES.items():
            if block.startswith(magic):
                raise UserError(f"'{name}' is not UTF-8 text: it is {what}.")
    if b"\0" in block:
        line += block[: block.index(b"\0")].count(b"\n")
        raise UserError(
            f"'{name}' is not text: line {line} holds a NUL byte; "
            "leave this file out or convert it to UTF-8 text."
        )


def decode_block(
    decoder: codecs.IncrementalDecoder, block: bytes, name: str, lines: int, offset: int
) -> str:
    """Decode a block; an error names the file, the line and the byte."""
    try:
        return decoder.decode(block, final=not block)
    except UnicodeDecodeError as error:
        data = error.object  # bytes left over from the last block, then this block
        line = lines + data[: error.start].count(b"\n") + 1
        position = offset - (len(data) - len(block)) + error.start
        command = f"iconv -f LATIN1 -t UTF-8 {shlex.quote(name)}"
        raise UserError(
            f"'{name}' is not valid UTF-8 in line {line} (byte 0x{data[error.start]:02x} at offset "
            f"{position}): convert it, for example with `{command}`."
        ) from None
