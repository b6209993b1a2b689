"""Read inputs of many formats as documents, in chunks of about 8 MB and in constant memory."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import UserError, nearest, require
from electra.text.sources import COMPRESSED, OnBytes, Source, find_sources, texts

CHUNK_BYTES = 8_000_000  # text in a chunk, which is the work for one shard
MAX_DOCUMENT_CHARS = 1_000_000  # a longer document is split
MAX_LINE_CHARS = 256_000_000  # a longer line of JSON or of a table is an error
MAX_FIELD_CHARS = 64_000_000  # a longer field of a table means a missing quotation mark

BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


@dataclass(slots=True)
class RecordCounts:
    """How many records of JSON lines, tables and datasets were read, and how many have no text."""

    records: int = 0
    empty: int = 0


def read_chunks(
    inputs: Sequence[str | Path],
    *,
    text_field: str = "text",
    on_bytes: OnBytes | None = None,
    size: int = CHUNK_BYTES,
    counts: RecordCounts | None = None,
) -> Iterator[list[str]]:
    """Yield lists of documents of about `size` bytes; the cuts depend only on the text."""
    sources = find_sources([str(name) for name in inputs])
    report = on_bytes or (lambda count: None)
    chunk: list[str] = []
    chunk_size = 0
    empty = True
    for document in read_documents(sources, text_field, report, counts or RecordCounts()):
        empty = False
        chunk.append(document)
        chunk_size += len(document) if document.isascii() else len(document.encode())
        if chunk_size >= size:
            yield chunk
            chunk, chunk_size = [], 0
    if chunk:
        yield chunk
    if empty:
        raise UserError(
            f"There is no text in {list_inputs(inputs)}: name inputs that contain text."
        )


def list_inputs(inputs: Sequence[str | Path]) -> str:
    """Format the first few inputs for an error."""
    names = ", ".join(f"'{name}'" for name in inputs[:3])
    return names + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")


def read_documents(
    sources: list[Source], field: str, on_bytes: OnBytes, counts: RecordCounts
) -> Iterator[str]:
    """Yield the documents of all sources; long ones are split, empty ones skipped."""
    for source in sources:
        read, found = reader_for(source), 0
        for document in read(source, field, on_bytes):
            before = found
            for piece in split_long(document):
                found += 1
                yield piece
            if read is not read_text:
                counts.records += 1
                counts.empty += found == before
        if not found and source.alone:
            raise UserError(f"'{source.name}' holds no text: leave it out or add text.")


def reader_for(source: Source) -> Callable[[Source, str, OnBytes], Iterable[str]]:
    """Return the function that reads this kind of source."""
    return {
        "hub": read_hub,
        "json": read_json,
        "jsonl": read_json,
        "ndjson": read_json,
        "csv": read_table,
        "tsv": read_table,
        "parquet": read_parquet,
    }.get(source.kind, read_text)


def split_long(document: str) -> Iterator[str]:
    """Strip the document and split it if it is too long."""
    start = 0
    while len(document) - start > MAX_DOCUMENT_CHARS:
        cut = find_cut(document, start)
        if piece := document[start:cut].strip():
            yield piece
        start = cut
    if piece := document[start:].strip():
        yield piece


def find_cut(document: str, start: int) -> int:
    """Return where to split: at the last newline, else at the last space, else at the limit."""
    end = start + MAX_DOCUMENT_CHARS
    cut = document.rfind("\n", start + 1, end)
    if cut < 0:
        cut = max(document.rfind(space, start + 1, end) for space in " \t\u00a0\u3000")
    return cut if cut > 0 else end


def read_text(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """Yield the documents of a text file, which are separated by blank lines."""
    rest = ""
    for text in texts(source, on_bytes):
        *complete, rest = BLANK_LINES.split(rest + text)
        yield from complete
        while len(rest) > MAX_DOCUMENT_CHARS:  # constant memory for documents of any size
            cut = find_cut(rest, 0)
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def read_lines(source: Source, on_bytes: OnBytes) -> Iterator[str]:
    """Yield the lines of a file with their line ends."""
    rest: list[str] = []
    size = 0
    for text in texts(source, on_bytes):
        first, *more = text.split("\n")
        rest.append(first)
        size += len(first)
        if size > MAX_LINE_CHARS:
            raise UserError(
                f"'{source.name}' has a line of more than {MAX_LINE_CHARS // 1_000_000} MB: "
                "split its record into several."
            )
        if more:
            yield "".join(rest) + "\n"
            yield from (line + "\n" for line in more[:-1])
            rest, size = [more[-1]], len(more[-1])
    yield "".join(rest)


def read_json(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """Yield the text field of each JSON object, one per line."""
    for number, line in enumerate(read_lines(source, on_bytes), start=1):
        if not line.strip():
            continue
        where = f"'{source.name}' line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(
                f"{where} is not valid JSON ({reason}): every line must be one JSON object."
            ) from None
        if not isinstance(record, dict):
            raise UserError(
                f"{where} is a JSON {type(record).__name__}, not an object: "
                'write one object per line, such as {"text": "…"}.'
            )
        yield field_text(record, field, where)


def read_table(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """Yield the text column of a CSV or TSV file with a header."""
    lines = read_lines(source, on_bytes)
    csv.field_size_limit(MAX_FIELD_CHARS)
    # TSV has no quoting: a quotation mark is text.
    rows = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if source.kind == "tsv"
        else csv.reader(lines, strict=True)
    )
    start = [1]  # the line at which the current row starts
    try:
        header = next(filter(None, _rows_from(rows, start)), [])
        if not header:
            return
        column = find_column(field, header, source.name)
        for row in _rows_from(rows, start):
            if len(row) > column:
                yield clean(row[column])
            elif row:
                raise UserError(
                    f"'{source.name}' line {rows.line_num} has {len(row)} columns, "
                    f"the header has {len(header)}: fix that line."
                )
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise UserError(
                f"'{source.name}' line {start[0]} opens a quotation mark that is never closed: "
                "close it, or double a quotation mark that belongs to the text."
            ) from None
        raise UserError(
            f"'{source.name}' line {rows.line_num} is not a valid table row ({error}): fix it."
        ) from None


def _rows_from(rows: Any, start: list[int]) -> Iterator[list[str]]:
    """Yield the rows of a `csv.reader` and keep in `start` the line at which each one starts."""
    while True:
        start[0] = rows.line_num + 1
        try:
            row = next(rows)
        except StopIteration:
            return
        yield row


def read_parquet(source: Source, field: str, on_bytes: OnBytes) -> Iterator[str]:
    """Yield the text column of a parquet file."""
    if source.name.lower().endswith(COMPRESSED):
        raise UserError(f"'{source.name}' is a compressed parquet file: decompress it first.")
    if source.pipe:
        raise UserError(f"'{source.name}' is a pipe, parquet needs a file: save it to one first.")
    arrow: Any = require("pyarrow", "data")
    parquet: Any = require("pyarrow.parquet", "data")
    try:
        with parquet.ParquetFile(source.name) as file:
            names = file.schema_arrow.names
            find_column(field, names, source.name)
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
    """Stream a dataset of the Hugging Face Hub and yield the text field of each record."""
    datasets: Any = require("datasets", "data")
    name, config, split = hub_parts(source.name)
    try:
        records = datasets.load_dataset(name, config, split=split, streaming=True)
        for number, record in enumerate(records, start=1):
            yield field_text(record, field, f"'{source.name}' record {number}")
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"'{source.name}' cannot be read from the Hub: {reason}.") from None


def hub_parts(name: str) -> tuple[str, str | None, str]:
    """Split `hub:NAME[:CONFIG[:SPLIT]]` into dataset, configuration and split."""
    dataset, _, rest = name.removeprefix("hub:").partition(":")
    config, _, split = rest.partition(":")
    if not dataset:
        raise UserError(f"'{name}' names no dataset: write hub:NAME or hub:NAME:CONFIG:SPLIT.")
    return dataset, config or None, split or "train"


def field_text(record: dict[str, Any], field: str, where: str) -> str:
    """Return the text of a record. A missing field is an error, null is empty text."""
    if field not in record:
        raise UserError(
            f"{where} has no field '{field}': {nearest(field, list(record))} "
            "Name the right one with --text-field."
        )
    value = record[field]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(
            f"{where}: the field '{field}' is not text but {type(value).__name__}: "
            "name another with --text-field."
        )
    return clean(value)


def find_column(field: str, header: list[str], name: str) -> int:
    """Return the index of the text column."""
    if field not in header:
        raise UserError(
            f"'{name}' has no column '{field}', it has: {', '.join(header)}. "
            "Name the right one with --text-field."
        )
    if header.count(field) > 1:
        raise UserError(f"'{name}' has two columns '{field}': give each its own name.")
    return header.index(field)


def clean(text: str) -> str:
    """Convert line ends to \\n and replace lone surrogates, which UTF-8 cannot encode."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
