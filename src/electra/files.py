"""Atomic file writes, checksums and locks."""

import errno
import hashlib
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from electra.errors import UserError

TEMPORARY, REPLACED = ".tmp", ".old"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file completely or not at all, even if the power fails.

    What is written later is not on the disk before this file is.
    """
    # Separates two writers of one file; on two machines they can have the same process id.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with name_in_errors(path, temporary):
            with temporary.open("wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def name_in_errors(path: Path, temporary: Path) -> Iterator[None]:
    """Let errors of the system name `path` instead of the temporary file or folder for it."""
    try:
        yield
    except OSError as error:
        if error.filename == str(temporary):
            error.filename = str(path)
        raise


def save_figure(figure: Any, path: Path, dpi: int) -> None:
    """Write a figure of matplotlib as PNG, completely or not at all."""
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi, format="png")
    write_atomic(path, content.getbuffer())


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk: a power cut cannot undo it."""
    if os.name == "nt":  # no handle on a folder there, and files are flushed on close
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Create a folder, and those above it, unless they exist; a power cut cannot undo it."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def sync_tree(folder: Path) -> None:
    """Flush everything below a folder to the disk."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end, or vanishes after an error.

    A folder that is there already is replaced.
    """
    path = path.absolute()  # "." has no name
    with staging_folder(path) as staging:
        old = staging.with_name(f"{staging.name}{REPLACED}")
        yield staging
        sync_tree(staging)
        if path.exists():
            path.rename(old)
        try:
            staging.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        sync(path.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def staging_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, and remove those that killed processes have left."""
    staging = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    make_folder(path.parent)
    remove_abandoned(path)
    try:
        with name_in_errors(path, staging):
            staging.mkdir()
        with locked(staging, f"{staging} is in use."):  # so that others know that it is not left
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def remove_abandoned(path: Path) -> None:
    """Remove the temporary folders for `path` whose processes were killed."""
    # A temporary folder may itself have been the path of another
    ours = re.compile(rf"\.+{re.escape(path.name)}(\.\d+{TEMPORARY})+({REPLACED})?")
    for left in [each for each in path.parent.iterdir() if ours.fullmatch(each.name)]:
        with suppress(UserError, OSError), locked(left, f"{left} is in use.") as alone:
            if alone and left.name.endswith(REPLACED) and not path.exists():
                left.rename(path)  # killed before the new one had its place
            elif alone:
                shutil.rmtree(left, ignore_errors=True)


def remove_temporary(folder: Path) -> None:
    """Remove what killed processes have left in a folder that no other process writes to."""
    for path in folder.glob("*" + TEMPORARY):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


@contextmanager
def locked(folder: Path, refusal: str) -> Iterator[bool]:
    """Lock a folder against other processes; the lock ends with the process.

    Yields whether it is locked: not every system can.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield False
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        alone = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(refusal) from None
        except OSError:
            alone = False  # a file system without locks
        yield alone
    finally:
        os.close(handle)


def is_disk_full(error: BaseException) -> bool:
    """Whether a file could not be written because the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    number = re.search(r"(?:os error|Errno) (\d+)", str(error))  # safetensors and shutil
    return number is not None and int(number[1]) in FULL
