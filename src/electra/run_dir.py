"""The run folder, locked by one process at a time, and signals that stop a run."""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from electra.errors import UserError
from electra.files import TEMPORARY, locked, make_folder, remove_temporary

PROCESS = "process"
"""The file in a run folder that names the process that uses it."""

SAME_STOP = 1.0
"""Signals that follow each other within so many seconds ask for the same stop."""


def check_out_dir(out: Path, what: str, *marks: str) -> None:
    """Refuse a path in use: a file, or a folder with content but none of `marks`."""
    existing = (path for path in (out, *out.parents) if path.exists())
    file = next((path for path in existing if not path.is_dir()), None)
    if file:
        raise UserError(f"'{file}' is a file, and --out must be a folder: choose another.")
    found = {path.name for path in out.iterdir()} - {PROCESS} if out.exists() else set()
    found = {name for name in found if not name.endswith(TEMPORARY)}  # of a process that was killed
    if found and found.isdisjoint(marks):
        raise UserError(f"{out} is not empty and holds no {what}: choose another --out.")


def check_new_dir(out: Path) -> None:
    """Refuse a path in use: a file, or a folder with content."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} already exists: choose another --out, or delete it.")


@contextlib.contextmanager
def lock_run_dir(run: Path) -> Iterator[None]:
    """Lock the run folder; the lock ends with the process.

    Temporary files that a killed process has left are removed.
    """
    make_folder(run)
    note = run / PROCESS
    holder = note.read_text(encoding="utf-8") if note.is_file() else "another process"
    refusal = f"{run} is in use by {holder}: wait for it, stop it, or choose another --out."
    with locked(run, refusal):
        remove_temporary(run)
        note.write_text(f"process {os.getpid()}", encoding="utf-8")
        yield


class GracefulStop:
    """On SIGTERM, Ctrl-C or a closed terminal, sets `signal`; the loop then saves and stops.

    A second Ctrl-C aborts, unless `patient`: a cluster sends the same signal to a launcher and to
    its processes, and the launcher passes it on. Other signals do not, nor does one that follows
    another within a second: nobody is impatient so soon.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self.patient = patient
        self.signal: signal.Signals | None = None
        self.last = -math.inf
        """When the last signal came."""
        self._before: dict[int, object] = {}

    def __enter__(self) -> "GracefulStop":
        numbers = [signal.SIGTERM, signal.SIGINT]
        hangup = getattr(signal, "SIGHUP", None)  # not on Windows; nohup ignores it
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            numbers.append(hangup)
        for number in numbers:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        pause, self.last = time.monotonic() - self.last, time.monotonic()
        if self.signal is None:
            self.signal = signal.Signals(number)
        elif number == signal.SIGINT and pause > SAME_STOP and not self.patient:
            raise KeyboardInterrupt
