"""Progress lines and summary tables."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from electra.text import progress
from electra.text.prepare import Summary


def printed(table) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    return console.file.getvalue()


def test_progress_lines_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_INTERVAL", 0.0)
    with progress.show_prepare(Console(file=io.StringIO())) as show:
        show(Summary(total_bytes=20_000_000, read_bytes=5_000_000, documents=1200, tokens=34_000))
    assert "5 of 20 MB read, 1,200 documents, 34,000 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("already", "skipped"), [(False, 0), (False, 1), (True, 0)])
def test_prepare_table(already, skipped):
    summary = Summary(rows=4, tokens=24, places=32, text_tokens=16, unknown=4, shards=2)
    summary = replace(summary, already=already, skipped=skipped)
    table = printed(progress.prepare_table(summary))
    values = dict(line.strip().rsplit("  ", 1) for line in table.splitlines() if "  " in line)
    values = {name.strip(): value.strip() for name, value in values.items()}
    assert values["padding"] == "25.0%"
    assert values["unknown tokens"] == "25.000%"
    assert values["size"] == "0.0 MB in 2 shards"
    assert ("time" in values) is not already
    assert values.get("from an earlier run") == ("1 shard" if skipped else None)
