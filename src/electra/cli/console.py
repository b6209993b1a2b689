"""Where the verbs print: results on standard output, progress and warnings on standard error."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


def consoles() -> "tuple[Console, Console]":
    """Where results go (standard output) and where progress goes (standard error)."""
    from rich.console import Console

    return Console(), Console(stderr=True)


def warn(warnings: Sequence[str]) -> None:
    """Print warnings on standard error."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
