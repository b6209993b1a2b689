"""Console output: results on standard output, progress and warnings on standard error."""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, Any, TextIO, cast

import typer

if TYPE_CHECKING:
    from rich.console import Console

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, changes of the writing direction, and halves of characters."""
GONE = (errno.EPIPE, errno.EIO)
"""Errors of a write to a closed pipe and to a closed terminal."""


def consoles() -> "tuple[Console, Console]":
    """Consoles for results (standard output) and for progress (standard error)."""
    from rich.console import Console

    return Console(), Console(stderr=True)


def warn(warnings: Sequence[str]) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        typer.echo(f"warning: {plain(warning)}", err=True)


def plain(text: str) -> str:
    """Replace what a file's content in a message could do to a terminal: control characters."""
    return CONTROL.sub("\ufffd", " ".join(text.splitlines()))


@contextmanager
def resumable() -> Iterator[None]:
    """On Ctrl-C, say that the same command continues the work."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Run the same command again to continue.", err=True)
        raise


@contextmanager
def lasting() -> Iterator[None]:
    """Keep a command running, silently, after the reader of its output has gone."""
    # A stream that was closed from the start is None and stays None.
    out, err = (cast(TextIO, stream and Lasting(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        yield


class Lasting:
    """A stream whose writes succeed even if its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, write: Callable[..., object], *text: str) -> None:
        try:
            write(*text)
        except OSError as error:
            if error.errno not in GONE:
                raise
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self.stream.fileno())  # also for what its buffer still holds
            os.close(devnull)
