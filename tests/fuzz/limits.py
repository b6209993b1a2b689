"""Bounds on what a target may use: a hang or a bomb is a failure, not a full machine."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SECONDS = 10
MEMORY = 3 << 30
"""Bytes beyond what the process has already."""


class TooSlow(Exception):
    """A target did not end in time."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raise `TooSlow` or `MemoryError` where the limits are passed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow(f"no end after {SECONDS} seconds")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
