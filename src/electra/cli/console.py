"""Where the verbs print: results on standard output, progress and warnings on standard error."""

import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

if TYPE_CHECKING:
    from rich.console import Console

GONE = (errno.EPIPE, errno.EIO)
"""What a write fails with when the reader of a pipe has left, and when a terminal is closed."""


def consoles() -> "tuple[Console, Console]":
    """Where results go (standard output) and where progress goes (standard error)."""
    from rich.console import Console

    return Console(), Console(stderr=True)


def warn(warnings: Sequence[str]) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


@contextmanager
def resumable() -> Iterator[None]:
    """Around work of which what is done is kept: says so to who stops it."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("The same command goes on where this one stops.", err=True)
        raise


@contextmanager
def lasting() -> Iterator[None]:
    """For the verbs that fill a folder: they go on, in silence, when nobody reads any more."""
    # A stream that was closed from the start is None, and stays it.
    out, err = (cast(TextIO, stream and Lasting(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


class Lasting:
    """A stream that never fails for want of a reader."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, what: Callable[..., object], *given: str) -> None:
        try:
            what(*given)
        except OSError as error:
            if error.errno not in GONE:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # also for what its buffer still holds
            os.close(nowhere)
