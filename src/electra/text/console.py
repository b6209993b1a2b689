"""What the text commands print: progress while they run, tables at the end."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from electra.text.inspect import Report
    from electra.text.prepare import Summary

EVERY = 15.0  # seconds between two lines where there is no terminal


@contextmanager
def show_prepare(console: Console) -> Iterator["Callable[[Summary], None]"]:
    """A function that shows how far a preparation is."""
    began = last = time.monotonic()

    def words(state: "Summary") -> str:
        seconds = max(1e-6, time.monotonic() - began)
        whole = f" of {state.total_bytes / 1e6:,.0f}" if state.total_bytes else ""
        return (
            f"{state.read_bytes / 1e6:,.0f}{whole} MB read, {state.documents:,} documents, "
            f"{state.tokens:,} tokens, {state.text_bytes / 1e6 / seconds:,.1f} MB/s"
        )

    if not console.is_terminal:

        def plain(state: "Summary") -> None:
            nonlocal last
            if time.monotonic() - last >= EVERY:
                last = time.monotonic()
                print(words(state), file=sys.stderr, flush=True)

        yield plain
        return
    with bar(console) as progress:
        task = progress.add_task("", total=None)

        def live(state: "Summary") -> None:
            progress.update(
                task,
                completed=state.read_bytes,
                total=state.total_bytes,
                description=words(state),
            )

        yield live


@contextmanager
def show_bytes(console: Console, what: str) -> Iterator[Callable[[int], None]]:
    """A function that shows how many bytes were read."""
    if not console.is_terminal:
        yield lambda count: None
        return
    with bar(console) as progress:
        task = progress.add_task(what, total=None)
        done = 0

        def live(count: int) -> None:
            nonlocal done
            done += count
            progress.update(task, description=f"{what}, {done / 1e6:,.0f} MB read")

        yield live


def bar(console: Console) -> Progress:
    """A progress bar that leaves nothing behind."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def two_columns(rows: list[tuple[str, str]]) -> Table:
    """A plain table of names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"


def prepare_table(state: "Summary") -> Table:
    """The summary at the end of a preparation."""
    rows = [
        ("documents", f"{state.documents:,}"),
        ("rows", f"{state.rows:,}"),
        ("tokens", f"{state.tokens:,}"),
        ("padding", f"{state.padding:.1%}"),
        ("held-out rows", f"{state.held_out_rows:,}"),
        ("unknown tokens", f"{state.unknown_rate:.3%}"),
        ("tokens lost", f"{state.lost_tokens:,}"),
        ("size", f"{state.size / 1e6:,.1f} MB in {_shards(state.shards)}"),
    ]
    if state.skipped:
        rows.append(("from an earlier run", _shards(state.skipped)))
    if not state.already:
        speed = state.text_bytes / 1e6 / max(state.seconds, 1e-6)
        rows.append(("time", f"{state.seconds:,.1f} s ({speed:,.1f} MB/s)"))
    return two_columns(rows)


def inspect_table(report: "Report") -> Table:
    """The figures of an inspection."""
    return two_columns(
        [
            ("kind", report.kind),
            ("vocabulary", f"{report.vocabulary_size:,} tokens"),
            ("text looked at", f"{report.text_bytes / 1e6:,.1f} MB, {report.words:,} words"),
            ("unknown tokens", f"{report.unknown_rate:.3%}"),
            ("tokens per word", f"{report.pieces_per_word:.2f}"),
            ("continuation tokens", f"{report.continuation_rate:.1%}"),
            ("words that change", f"{report.changed_rate:.2%}"),
            ("vocabulary used", f"{report.used_rate:.1%}"),
        ]
    )
