"""Files and pipes for the tests of tasks."""

import csv
import json
import os
import threading
from pathlib import Path

import pytest


@pytest.fixture
def write_rows():
    """Write rows as CSV, TSV or JSON lines, by the extension: `write_rows(path, row, row)`."""

    def write(path: Path, *rows: dict) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".jsonl", ".json"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            return path
        with path.open("w", encoding="utf-8", newline="") as file:
            separator = "," if path.suffix == ".csv" else "\t"
            writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(rows)
        return path

    return write


@pytest.fixture
def pipe(tmp_path):
    """Write bytes into a named pipe, which can be read only once: `pipe(name, content)`."""
    writers = []

    def make(name: str, content: bytes) -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        writers.append(threading.Thread(target=path.write_bytes, args=(content,)))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join(timeout=10)
        assert not writer.is_alive()
