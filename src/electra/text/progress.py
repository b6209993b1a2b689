"""Progress and summary tables of the text commands."""

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

LOG_INTERVAL = 15.0  # seconds between progress lines if there is no terminal


@contextmanager
def show_prepare(console: Console) -> Iterator["Callable[[Summary], None]"]:
    """Yield a function that shows the progress of a preparation."""
    start = last = time.monotonic()

    def describe(summary: "Summary") -> str:
        seconds = max(1e-6, time.monotonic() - start)
        total = f" of {summary.total_bytes / 1e6:,.0f}" if summary.total_bytes else ""
        return (
            f"{summary.read_bytes / 1e6:,.0f}{total} MB read, {summary.documents:,} documents, "
            f"{summary.tokens:,} tokens, {summary.text_bytes / 1e6 / seconds:,.1f} MB/s"
        )

    if not console.is_terminal:

        def log(summary: "Summary") -> None:
            nonlocal last
            if time.monotonic() - last >= LOG_INTERVAL:
                last = time.monotonic()
                print(describe(summary), file=sys.stderr, flush=True)

        yield log
        return
    with progress_bar(console) as progress:
        task = progress.add_task("", total=None)

        def update(summary: "Summary") -> None:
            progress.update(
                task,
                completed=summary.read_bytes,
                total=summary.total_bytes,
                description=describe(summary),
            )

        yield update


@contextmanager
def show_bytes(console: Console, description: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows how many bytes were read."""
    if not console.is_terminal:
        yield lambda count: None
        return
    with progress_bar(console) as progress:
        task = progress.add_task(description, total=None)
        total = 0

        def update(count: int) -> None:
            nonlocal total
            total += count
            progress.update(task, description=f"{description}, {total / 1e6:,.0f} MB read")

        yield update


def progress_bar(console: Console) -> Progress:
    """Return a progress bar that disappears at the end."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def two_columns(rows: list[tuple[str, str]]) -> Table:
    """Return a plain table of names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"


def prepare_table(summary: "Summary") -> Table:
    """Return the summary that `electra prepare` prints at the end."""
    rows = [
        ("documents", f"{summary.documents:,}"),
        ("sequences", f"{summary.rows:,}"),
        ("tokens", f"{summary.tokens:,}"),
        ("padding", f"{summary.padding:.1%}"),
        ("held-out sequences", f"{summary.held_out_rows:,}"),
        ("unknown tokens", f"{summary.unknown_rate:.3%}"),
        ("tokens lost", f"{summary.lost_tokens:,}"),
        ("size", f"{summary.size / 1e6:,.1f} MB in {_shards(summary.shards)}"),
    ]
    if summary.skipped:
        rows.append(("from an earlier run", _shards(summary.skipped)))
    if not summary.already:
        speed = summary.text_bytes / 1e6 / max(summary.seconds, 1e-6)
        rows.append(("time", f"{summary.seconds:,.1f} s ({speed:,.1f} MB/s)"))
    return two_columns(rows)


def inspect_table(report: "Report") -> Table:
    """Return the table that `electra tokenizer inspect` prints."""
    return two_columns(
        [
            ("kind", report.kind),
            ("vocabulary", f"{report.vocabulary_size:,} tokens"),
            ("text sample", f"{report.text_bytes / 1e6:,.1f} MB, {report.words:,} words"),
            ("unknown tokens", f"{report.unknown_rate:.3%}"),
            ("tokens per word", f"{report.tokens_per_word:.2f}"),
            ("tokens per character", f"{report.tokens_per_character:.2f}"),
            ("continuation tokens", f"{report.continuation_rate:.1%}"),
            ("words changed", f"{report.changed_rate:.2%}"),
            ("accents lost", f"{report.accents_lost_rate:.2%} of the letters"),
            ("vocabulary used", f"{report.used_rate:.1%}"),
        ]
    )
