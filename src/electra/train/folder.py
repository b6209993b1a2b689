"""The folder of a run, one process at a time, and the signals that end it politely."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from electra.errors import UserError


@contextlib.contextmanager
def locked(run: Path) -> Iterator[None]:
    """Hold the run folder; the lock dies with its process, however that ends."""
    run.mkdir(parents=True, exist_ok=True)
    with (run / "run.lock").open("a+", encoding="utf-8") as file:
        try:
            _lock(file.fileno())
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise UserError(
                f"{run} is in use by {holder}: wait for it, stop it, or choose another --out."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield


def _lock(handle: int) -> None:
    if os.name == "nt":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class StopRequest:
    """SIGTERM or Ctrl-C: the loop sees `signal` at the next step and saves; a second one aborts."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
