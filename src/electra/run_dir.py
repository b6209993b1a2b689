"""The folder of a run, one process at a time, and the signals that end it politely."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from electra.errors import UserError
from electra.files import locked

PROCESS = "process"
"""The file in a run's folder that says who holds it."""


def check_out_dir(out: Path, what: str, *marks: str) -> None:
    """Refuse a file, and a folder with other things than `what`, which one of `marks` shows."""
    if out.exists() and not out.is_dir():
        raise UserError(f"'{out}' is a file: name a folder with --out.")
    found = {path.name for path in out.iterdir()} - {PROCESS} if out.exists() else set()
    if found and found.isdisjoint(marks):
        raise UserError(f"{out} is not empty and holds no {what}: choose another --out.")


@contextlib.contextmanager
def lock_run_dir(run: Path) -> Iterator[None]:
    """Hold the run folder; the lock dies with its process, however that ends."""
    run.mkdir(parents=True, exist_ok=True)
    note = run / PROCESS
    holder = note.read_text(encoding="utf-8") if note.is_file() else "another process"
    refusal = f"{run} is in use by {holder}: wait for it, stop it, or choose another --out."
    with locked(run, refusal):
        note.write_text(f"process {os.getpid()}", encoding="utf-8")
        yield


class GracefulStop:
    """SIGTERM, Ctrl-C or a closed terminal: the loop sees `signal` at the next step and saves.

    A second one aborts.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "GracefulStop":
        numbers = [signal.SIGTERM, signal.SIGINT]
        hangup = getattr(signal, "SIGHUP", None)  # Windows has none, and nohup ignores it
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            numbers.append(hangup)
        for number in numbers:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
