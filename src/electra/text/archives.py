"""Read the members of tar and zip archives as a stream, without unpacking them to disk."""

import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from typing import IO, Self, cast

from electra.errors import UserError
from electra.text.sources import (
    DAMAGE,
    Block,
    InputFile,
    OnBytes,
    Source,
    damaged,
    decompress,
    open_binary,
    open_input,
    read_block,
    refuse_known_binary,
)

ENCRYPTED = 0x1  # the bit in the flags of a zip member
MAX_NESTED = 4  # archives inside of archives
MAX_HEADER_BYTES = 1_000_000  # a longer name or pax header would be read into memory
HEADERS = (
    *(tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK),
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE),
)


def open_files(source: Source, on_bytes: OnBytes) -> Iterator[InputFile]:
    """Yield the file, or each member if it is an archive. Read each before you take the next."""
    if source.kind == "zip":
        yield from zip_members(source, on_bytes)
        return
    with open_input(source, on_bytes) as file:
        yield from expand(file)


def expand(file: InputFile, depth: int = 0) -> Iterator[InputFile]:
    """Yield the file itself, or the members of a tar archive and of those inside it."""
    if is_tar(file):
        if depth > MAX_NESTED:
            raise UserError(f"'{file.name}' is an archive in {depth} others: unpack them first.")
        for member in tar_members(file):
            yield from expand(member, depth + 1)
    elif file.archived and file.kind == "zip":
        raise UserError(f"'{file.name}' is a zip archive in an archive: unpack it first.")
    else:
        yield file


def is_tar(file: InputFile) -> bool:
    """Whether the decompressed bytes are a tar archive, by its first header or its ending."""
    header = file.head()[: tarfile.BLOCKSIZE]
    try:
        tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.TarError:
        if file.kind != "tar":
            return header[257:262] == b"ustar"
        refuse_known_binary(file.name, header)
    return True


class StrictTarInfo(tarfile.TarInfo):
    """Raises at a damaged header, which `tarfile` takes for the end of the archive."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Parse a header; one whose content would not fit in memory is damage."""
        member = super().frombuf(buf, encoding, errors)
        if member.size < 0 or (member.type in HEADERS and member.size > MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header with a size of {member.size} bytes")
        return member

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        """Read the next header."""
        assert isinstance(tar, StrictTar)
        try:
            member = super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # a block of zeros
            tar.ended = True
            raise
        except tarfile.EmptyHeaderError:  # type: ignore[attr-defined]  # the end of the file
            if not tar.ended:
                raise tarfile.ReadError("the end of the archive is missing") from None
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        tar.ended = False
        return member


class StrictTar(tarfile.TarFile):
    """A tar archive that must end with its end mark; archives may follow each other."""

    tarinfo = StrictTarInfo
    ended = False


def tar_members(file: InputFile) -> Iterator[InputFile]:
    """Yield the regular files of a tar archive in its order; links and hidden files are skipped."""
    file.location = " at its beginning"
    stream = cast("IO[bytes]", file)
    try:
        # `ignore_zeros` also reads to the end of the file, where compressions keep a checksum.
        tar = StrictTar.open(fileobj=stream, mode="r|", ignore_zeros=True)
        while member := tar.next():
            tar.members.clear()  # type: ignore[attr-defined]  # for constant memory
            name = printable(member.name)
            file.location = f" in the member '{name}'"
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None and not is_hidden(member.name):
                next_block = partial(read_block, decompress(name, content))
                yield InputFile(name, next_block, archive=file.name)
            file.location = f" after the member '{name}'"
    except (tarfile.TarError, ValueError) as error:
        raise damaged(file.name, file.location, error) from None


def zip_members(source: Source, on_bytes: OnBytes) -> Iterator[InputFile]:
    """Yield the files of a zip archive in its order; hidden files are skipped."""
    if source.pipe:
        raise UserError(f"'{source.name}' is a pipe, zip needs a file: save it to one first.")
    reported = 0

    def report(position: int) -> None:
        nonlocal reported
        if position > reported:
            on_bytes(position - reported)
            reported = position

    def read_member(stream: IO[bytes]) -> Block:
        block = read_block(stream)
        report(raw.tell())
        return block

    with open_binary(source.name) as raw:
        try:
            archive = zipfile.ZipFile(raw)
        except (*DAMAGE, ValueError) as error:  # ValueError: the encoding of names
            raise damaged(source.name, "", error) from None
        for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
            if not member.filename or member.is_dir() or is_hidden(member.filename):
                continue
            name = printable(member.filename)
            if member.flag_bits & ENCRYPTED:
                raise UserError(f"'{source.name}:{name}' is encrypted: unpack it first.")
            try:
                content = archive.open(member)
            except (*DAMAGE, ValueError) as error:
                raise damaged(f"{source.name}:{name}", "", error) from None
            with content:
                next_block = partial(read_member, decompress(name, content))
                yield from expand(InputFile(name, next_block, archive=source.name))
        report(source.size or 0)


def is_hidden(name: str) -> bool:
    """Whether a part of the member's path starts with a dot, as files that a folder hides."""
    return any(part.startswith(".") and part not in (".", "..") for part in name.split("/"))


def printable(name: str) -> str:
    """Return a member's name for errors, on one line."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else "\ufffd" for c in name)
