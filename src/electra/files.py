"""Atomic file writes, checksums and locks."""

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from electra.errors import UserError

TEMPORARY = ".tmp"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomic(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file completely or not at all, even if the power fails."""
    # Separates two writers of one file; on two machines they can have the same process id.
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` at the end, or vanishes after an error.

    A folder that is there already is replaced.
    """
    path = path.absolute()  # "." has no name
    staging = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    old = staging.with_name(f"{staging.name}.old")
    try:
        staging.mkdir(parents=True)
        yield staging
        if path.exists():
            path.rename(old)
        try:
            staging.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def locked(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder against other processes; the lock ends with the process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(refusal) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(handle)


def is_disk_full(error: BaseException) -> bool:
    """Whether a file could not be written because the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    number = re.search(r"(?:os error|Errno) (\d+)", str(error))  # safetensors and shutil
    return number is not None and int(number[1]) in FULL
