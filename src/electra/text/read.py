"""Inputs of many formats -> documents -> chunks of about 8 MB, in flat memory and a fixed order."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import UserError, nearest, require
from electra.text.sources import COMPRESSED, OnBytes, Source, find_sources, texts

CHUNK = 8_000_000  # bytes of text in a chunk: one unit of work, one shard
PIECE = 1_000_000  # characters; a longer document is cut
RECORD = 256_000_000  # characters; a longer line of JSON is refused
FIELD = 64_000_000  # characters; a longer field of a table is a lost quotation mark

BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


@dataclass(slots=True)
class RecordCounts:
    """How many records of JSON lines, tables and datasets were read, and how many had no text."""

    records: int = 0
    empty: int = 0


def read_chunks(
    inputs: Sequence[str | Path],
    *,
    text_field: str = "text",
    on_bytes: OnBytes | None = None,
    size: int = CHUNK,
    counts: RecordCounts | None = None,
) -> Iterator[list[str]]:
    """Lists of documents of about `size` bytes; the cuts depend on the text alone."""
    sources = find_sources([str(name) for name in inputs])
    report = on_bytes or (lambda count: None)
    chunk: list[str] = []
    held = 0
    empty = True
    for document in read_documents(sources, text_field, report, counts or RecordCounts()):
        empty = False
        chunk.append(document)
        held += len(document) if document.isascii() else len(document.encode())
        if held >= size:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
    if empty:
        raise UserError(f"There is no text in {listed(inputs)}: name inputs that hold some.")


def listed(inputs: Sequence[str | Path]) -> str:
    """The inputs' names for an error, the first few of many."""
    names = ", ".join(f"'{name}'" for name in inputs[:3])
    return names + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")


def read_documents(
    sources: list[Source], field: str, on_bytes: OnBytes, counts: RecordCounts
) -> Iterator[str]:
    """The documents of all sources, the long ones in pieces, none empty."""
    for source in sources:
        read, found = reader(source), 0
        for document in read(source, field, on_bytes):
            before = found
            for piece in pieces(document):
                found += 1
                yield piece
            if read is not read_text:
                counts.records += 1
                counts.empty += found == before
        if not found and source.alone:
            raise UserError(f"'{source.name}' holds no text: leave it out or fill it.")


def reader(source: Source) -> Callable[[Source, str, OnBytes], Iterable[str]]:
    """The function that reads this kind of source."""
    return {
        "hub": read_hub,
        "json": read_json,
        "jsonl": read_json,
        "ndjson": read_json,
        "csv": read_table,
        "tsv": read_table,
        "parquet": read_parquet,
    }.get(source.kind, read_text)


def pieces(document: str) -> Iterator[str]:
    """The document without outer blanks, in several pieces when it is too long."""
    start = 0
    while len(document) - start > PIECE:
        cut = cut_place(document, start)
        if piece := document[start:cut].strip():
            yield piece
        start = cut
    if piece := document[start:].strip():
        yield piece


def cut_place(document: str, start: int) -> int:
    """Where to cut a piece: at the last newline of its room, else at a space, else at its end."""
    end = start + PIECE
    cut = document.rfind("\n", start + 1, end)
    if cut < 0:
        cut = max(document.rfind(space, start + 1, end) for space in " \t\u00a0\u3000")
    return cut if cut > 0 else end


def read_text(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """Documents of a text file: what stands between blank lines."""
    rest = ""
    for text in texts(source, on_bytes):
        *whole, rest = BLANK_LINES.split(rest + text)
        yield from whole
        while len(rest) > PIECE:  # a document of any size passes through in flat memory
            cut = cut_place(rest, 0)
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def read_jsonl(source: Source, on_bytes: OnBytes) -> Iterator[str]:
    """The lines of a file, each with its end."""
    rest: list[str] = []
    held = 0
    for text in texts(source, on_bytes):
        first, *more = text.split("\n")
        rest.append(first)
        held += len(first)
        if held > RECORD:
            raise UserError(
                f"'{source.name}' has a line of more than {RECORD // 1_000_000} MB: "
                "split its record into several."
            )
        if more:
            yield "".join(rest) + "\n"
            yield from (line + "\n" for line in more[:-1])
            rest, held = [more[-1]], len(more[-1])
    yield "".join(rest)


def read_json(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """The field of each line of JSON."""
    for number, line in enumerate(read_jsonl(source, on_bytes), start=1):
        if not line.strip():
            continue
        place = f"'{source.name}' line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(
                f"{place} is no valid JSON ({reason}): every line must be one JSON object."
            ) from None
        if not isinstance(record, dict):
            raise UserError(
                f"{place} is a JSON {type(record).__name__}, not an object: "
                'write one object per line, as {"text": "…"}.'
            )
        yield field_text(record, field, place)


def read_table(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """The column of each row of a CSV or TSV file with a header."""
    lines = read_jsonl(source, on_bytes)
    csv.field_size_limit(FIELD)
    # A TSV file has no quotation rule: a lone quotation mark is text.
    rows = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if source.kind == "tsv"
        else csv.reader(lines, strict=True)
    )
    try:
        header = next(filter(None, rows), [])
        if not header:
            return
        column = column_of(field, header, source.name)
        for row in rows:
            if len(row) > column:
                yield clean(row[column])
            elif row:
                raise UserError(
                    f"'{source.name}' line {rows.line_num} has {len(row)} columns, "
                    f"the header has {len(header)}: repair that line."
                )
    except csv.Error as error:
        raise UserError(
            f"'{source.name}' line {rows.line_num} is no valid table row ({error}): repair it."
        ) from None


def read_parquet(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """The column of each row of a parquet file."""
    if source.name.lower().endswith(COMPRESSED):
        raise UserError(f"'{source.name}' is a compressed parquet file: unpack it first.")
    if source.pipe:
        raise UserError(f"'{source.name}' is a pipe, parquet needs a file: save it to one first.")
    arrow: Any = require("pyarrow", "data")
    parquet: Any = require("pyarrow.parquet", "data")
    try:
        with parquet.ParquetFile(source.name) as file:
            names = file.schema_arrow.names
            column_of(field, names, source.name)
            share = (source.size or 0) / max(1, file.metadata.num_rows)
            row = 0
            for batch in file.iter_batches(batch_size=1024, columns=[field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield field_text({field: value}, field, f"'{source.name}' row {row}")
                on_bytes(round(share * row) - round(share * (row - batch.num_rows)))
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"'{source.name}' cannot be read as parquet: {reason}.") from None


def read_hub(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """The field of each record of a dataset of the hub, streamed."""
    datasets: Any = require("datasets", "data")
    name, config, split = hub_parts(source.name)
    try:
        records = datasets.load_dataset(name, config, split=split, streaming=True)
        for number, record in enumerate(records, start=1):
            yield field_text(record, field, f"'{source.name}' record {number}")
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"'{source.name}' cannot be read from the hub: {reason}.") from None


def hub_parts(name: str) -> tuple[str, str | None, str]:
    """Dataset, configuration and split of `hub:NAME[:CONFIG[:SPLIT]]`."""
    dataset, _, rest = name.removeprefix("hub:").partition(":")
    config, _, split = rest.partition(":")
    if not dataset:
        raise UserError(f"'{name}' names no dataset: write hub:NAME or hub:NAME:CONFIG:SPLIT.")
    return dataset, config or None, split or "train"


def field_text(record: dict[str, Any], field: str, place: str) -> str:
    """The text of a record; a missing field is an error, a null is no text."""
    if field not in record:
        raise UserError(
            f"{place} has no field '{field}': {nearest(field, list(record))} "
            "Name the right one with --text-field."
        )
    value = record[field]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(
            f"{place}: the field '{field}' is no text but {type(value).__name__}: "
            "name another with --text-field."
        )
    return clean(value)


def column_of(field: str, header: list[str], name: str) -> int:
    """The place of the column with the text."""
    if field not in header:
        raise UserError(
            f"'{name}' has no column '{field}', it has: {', '.join(header)}. "
            "Name the right one with --text-field."
        )
    if header.count(field) > 1:
        raise UserError(f"'{name}' names the column '{field}' twice: give each its own name.")
    return header.index(field)


def clean(text: str) -> str:
    """The text with \\n as line end and without halves of surrogate pairs, which have no UTF-8."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
