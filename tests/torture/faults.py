"""A layer over the functions that change files: it counts what a command does, and interferes.

Operations are those through which Python changes files, and the writer of safetensors, which is
not Python: opening a file to write, copying, mkdir, fsync, rename, unlink, rmdir. What safetensors
writes in between is seen by what lies on the disk at the next operation.
"""

import builtins
import errno
import io
import os
import random
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.hub import folders

WATCHED = ("fsync", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "sendfile")
Act = Callable[[], None]


def kill() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def disk_full() -> None:
    """Fail as on a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class HalfWritten(io.FileIO):
    """A file whose first write is cut short by the fault."""

    act: Act

    def write(self, data: Any) -> int:
        super().write(memoryview(data).cast("B")[: len(data) // 2])
        self.act()
        return len(data)


class Layer:
    """Counts the operations below `folder`, and calls `act` at number `at` (0: never)."""

    def __init__(self, folder: Path, at: int = 0, act: Act = kill) -> None:
        self.folder, self.at, self.act = str(folder), at, act
        self.count = 0
        self.after: Callable[[str, tuple[Any, ...]], None] = lambda name, given: None
        self._open = io.open

    def install(self) -> None:
        """Replace the functions; for a process that ends with its command."""
        for name in WATCHED:
            if hasattr(os, name):
                setattr(os, name, self.wrap(name, getattr(os, name)))
        io.open = builtins.open = self.open  # type: ignore[assignment]
        original = folders.save_file

        def save_file(tensors: Any, path: Path, **options: Any) -> None:
            if self.due():
                Path(path).write_bytes(b"\0" * 1000)
                self.act()
            original(tensors, path, **options)

        folders.save_file = save_file

    def due(self) -> bool:
        self.count += 1
        return self.count == self.at

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            frees = name in ("unlink", "remove", "rmdir")
            if self.due() and not (self.act is disk_full and frees):
                self.act()
            result = function(*given, **options)
            self.after(name, given)
            return result

        return call

    def open(self, file: Any, mode: str = "r", *given: Any, **options: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        if not writes or not str(file).startswith(self.folder) or not self.due():
            return self._open(file, mode, *given, **options)
        raw = HalfWritten(file, mode.replace("b", "").replace("t", ""))
        raw.act = self.act
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")


@dataclass(frozen=True)
class Moment:
    """What lies below a folder after an operation; files and folders have numbers."""

    folders: dict[int, dict[str, int]]
    """For each folder: name -> number."""
    changed: dict[int, bytes]
    """The content of files that are new or were written to."""
    synced: int | None
    """What the operation has flushed to the disk."""


class Recorder:
    """Notes each moment of a command, to lose the power there later."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[int, tuple[int, tuple[int, int, int]]] = {}
        self.next_number = 1
        self.history: list[Moment] = []
        self.scan(None)

    def after(self, name: str, given: tuple[Any, ...]) -> None:
        self.scan(os.fstat(given[0]).st_ino if name == "fsync" else None)

    def scan(self, synced: int | None) -> None:
        """Note all directories, the content of files that changed, and what was synced."""
        folders: dict[int, dict[str, int]] = {}
        changed: dict[int, bytes] = {}
        alive: dict[int, tuple[int, tuple[int, int, int]]] = {}

        def visit(path: Path) -> int:
            state = os.lstat(path)
            number, before = self.known.get(state.st_ino, (0, (0, 0, 0)))
            if not number:
                number, self.next_number = self.next_number, self.next_number + 1
            mark = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            alive[state.st_ino] = number, mark
            if stat.S_ISDIR(state.st_mode):
                folders[number] = {p.name: visit(p) for p in sorted(path.iterdir())}
            elif mark != before:
                handle = os.open(path, os.O_RDONLY)
                changed[number] = os.read(handle, state.st_size)
                os.close(handle)
            return number

        visit(self.folder)
        self.known = alive  # a number that is used again is another file
        number = alive[synced][0] if synced in alive else None
        self.history.append(Moment(folders, changed, number))


class PowerLoss:
    """What is on the disk if the power fails after moment `at` of a history.

    Data is safe once its file was synced, a name once its folder was: this is all that POSIX
    promises. Whatever else happened may be on the disk or not; a rename happens as a whole.
    """

    def __init__(self, history: list[Moment], at: int) -> None:
        first, last = history[0], history[at]
        self.root = next(iter(sorted(first.folders)))
        self.now = last.folders
        self.names = {n: first.folders.get(n, {}) for n in last.folders}
        self.data: dict[int, bytes] = {}
        self.safe: dict[int, bytes] = dict(first.changed)
        for moment in history[: at + 1]:
            self.data |= moment.changed
            if moment.synced in moment.folders:
                self.names[moment.synced] = moment.folders[moment.synced]
            elif moment.synced is not None:
                self.safe[moment.synced] = self.data[moment.synced]

    def write(self, target: Path, kind: str, dice: random.Random) -> None:
        """Write what is left: with all names 'lost' or 'kept' since the last sync, or 'mixed'."""
        arrived: dict[int, bool] = {}

        def came(number: int) -> bool:
            options = {"lost": False, "kept": True, "mixed": dice.random() < 0.5}
            return arrived.setdefault(number, options[kind])

        def left(number: int) -> dict[str, int]:
            before, now = self.names.get(number, {}), self.now.get(number)
            if now is None:  # the folder was deleted
                return before
            found = {}
            for name in sorted(before.keys() | now.keys()):
                old, new = before.get(name), now.get(name)
                if new is not None and (new == old or came(new)):
                    found[name] = new
                elif old is not None and not (new is None and came(old)):
                    found[name] = old
            return found

        def data(number: int) -> bytes:
            if kind == "mixed" and dice.random() < 0.5:
                return self.data[number][: dice.randrange(len(self.data[number]) + 1)]
            return self.safe.get(number, b"")

        def visit(number: int, path: Path) -> None:
            if number in self.data:
                safe = self.safe.get(number)
                path.write_bytes(safe if safe == self.data[number] else data(number))
                return
            path.mkdir(parents=True, exist_ok=True)
            for name, member in left(number).items():
                visit(member, path / name)

        visit(self.root, target)
