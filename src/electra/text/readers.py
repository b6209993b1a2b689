"""Read inputs of many formats as documents, in chunks of about 8 MB and in constant memory."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from electra.errors import UserError, nearest, require
from electra.text.archives import open_files
from electra.text.sources import COMPRESSED, InputFile, OnBytes, Source, find_sources, texts
from electra.text.wiki_dump import is_dump, read_dump, refuse_index
from electra.text.wikitext import WikiPage

CHUNK_BYTES = 8_000_000  # text in a chunk, which is the work for one shard
MAX_DOCUMENT_CHARS = 1_000_000  # a longer document is split
MAX_LINE_CHARS = 256_000_000  # a longer line of JSON or of a table is an error
MAX_FIELD_CHARS = 64_000_000  # a longer field of a table means a missing quotation mark

BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")
# The first line of each document that WikiExtractor writes, and the start of its --json form.
WIKI_DOC = re.compile(r'<doc id="[^"\n]*"[^\n]* title="[^\n]*">[ \t\r]*\n')
WIKI_JSON = re.compile(r'\{"id": "[^"\n]*", (?:"revid": "[^"\n]*", )?"url": "')

Document = str | WikiPage
"""A text, or an article of a Wikipedia dump that is still to be parsed."""
Item = TypeVar("Item")


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
) -> Iterator[list[Document]]:
    """Yield the documents of the inputs in chunks; no text at all is an error."""
    sources = find_sources([str(name) for name in inputs])
    report = on_bytes or (lambda count: None)
    documents = read_documents(sources, text_field, report, counts or RecordCounts())
    empty = True
    for chunk in chunk_documents(documents, size=size):
        empty = False
        yield chunk
    if empty:
        raise no_text(inputs)


def chunk_documents(
    documents: Iterable[Document], *, size: int = CHUNK_BYTES
) -> Iterator[list[Document]]:
    """Yield lists of documents of about `size` bytes; the cuts depend only on the text."""
    return batched(documents, size, size_in_bytes)


def batched(
    items: Iterable[Item], size: int, size_of: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Yield lists of items; each but the last ends with the item that brings it to `size`."""
    batch: list[Item] = []
    total = 0
    for item in items:
        batch.append(item)
        total += size_of(item)
        if total >= size:
            yield batch
            batch, total = [], 0
    if batch:
        yield batch


def no_text(inputs: Sequence[str | Path]) -> UserError:
    """Return the error for inputs that are all empty."""
    return UserError(f"There is no text in {list_inputs(inputs)}: name inputs that contain text.")


def size_in_bytes(document: Document) -> int:
    """Return the size of a document as UTF-8."""
    if isinstance(document, WikiPage):
        return len(document.text)
    return len(document) if document.isascii() else len(document.encode())


def list_inputs(inputs: Sequence[str | Path]) -> str:
    """Format the first few inputs for an error."""
    names = ", ".join(f"'{name}'" for name in inputs[:3])
    return names + (f" and {len(inputs) - 3} more" if len(inputs) > 3 else "")


def read_documents(
    sources: list[Source], field: str, on_bytes: OnBytes, counts: RecordCounts
) -> Iterator[Document]:
    """Yield the documents of all sources; long ones are split, empty ones skipped."""
    for source in sources:
        found = False
        for document in read_source(source, field, on_bytes, counts):
            pieces = [document] if isinstance(document, WikiPage) else split_long(document)
            for piece in pieces:
                found = True
                yield piece
        if not found and source.alone:
            raise UserError(f"'{source.name}' holds no text: leave it out or add text.")


def read_source(
    source: Source, field: str, on_bytes: OnBytes, counts: RecordCounts
) -> Iterator[Document]:
    """Yield the documents of one source, which may be an archive of many files."""
    if source.kind == "hub":
        yield from count_records(read_hub(source, field), counts)
    elif source.kind == "parquet":
        yield from count_records(read_parquet(source, field, on_bytes), counts)
    else:
        for file in open_files(source, on_bytes):
            yield from read_file(file, field, counts)


def read_file(file: InputFile, field: str, counts: RecordCounts) -> Iterator[Document]:
    """Return the documents of one file, in the format of its ending or, for text, its content."""
    if file.kind in ("json", "jsonl", "ndjson"):
        return count_records(read_json(file, field), counts)
    if file.kind in ("csv", "tsv"):
        return count_records(read_table(file, field), counts)
    if file.kind == "parquet":
        raise UserError(f"'{file.name}' is a parquet file in an archive: unpack it first.")
    refuse_index(file.name)
    start = file.head()[:10_000].decode(errors="replace")
    if is_dump(start):
        return read_dump(file)
    if WIKI_DOC.match(start):
        return read_wiki(file)
    if WIKI_JSON.match(start):
        return count_records(read_json(file, field), counts)
    return read_text(file)


def count_records(documents: Iterable[str], counts: RecordCounts) -> Iterator[str]:
    """Yield the documents and count them and the empty ones."""
    for document in documents:
        counts.records += 1
        counts.empty += not document.strip()
        yield document


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


def read_text(file: InputFile) -> Iterator[str]:
    """Yield the documents of a text file, which are separated by blank lines.

    A text file in an archive is one document, unless it is too long for one.
    """
    rest = ""
    parts = texts(file)
    if file.archived:
        for text in parts:
            rest += text
            if len(rest) > MAX_DOCUMENT_CHARS:
                break
        else:
            yield rest
            return
    for text in chain([""], parts):
        *complete, rest = BLANK_LINES.split(rest + text)
        yield from complete
        while len(rest) > MAX_DOCUMENT_CHARS:  # constant memory for documents of any size
            cut = find_cut(rest, 0)
            yield rest[:cut]
            rest = rest[cut:]
    yield rest


def read_wiki(file: InputFile) -> Iterator[str]:
    """Yield the text of each `<doc …> … </doc>` block in the output of WikiExtractor."""
    document: list[str] | None = None
    opened = size = 0
    for number, line in enumerate(read_lines(file), start=1):
        if document is None:
            if WIKI_DOC.match(line):
                document, opened, size = [], number, 0
            elif line.strip():
                raise UserError(
                    f"'{file.name}' line {number} is outside of the <doc> blocks of WikiExtractor: "
                    "extract the file again."
                )
        elif line.strip() == "</doc>":
            yield "".join(document)
            document = None
        elif size > MAX_FIELD_CHARS or WIKI_DOC.match(line):
            break
        else:
            document.append(line)
            size += len(line)
    if document is not None:
        raise UserError(
            f"'{file.name}' line {opened} opens a <doc> block that is never closed: "
            "extract the file again."
        )


def read_lines(file: InputFile) -> Iterator[str]:
    """Yield the lines of a file with their line ends."""
    rest: list[str] = []
    size = 0
    for text in texts(file):
        first, *more = text.split("\n")
        rest.append(first)
        size += len(first)
        if size > MAX_LINE_CHARS:
            raise UserError(
                f"'{file.name}' has a line of more than {MAX_LINE_CHARS // 1_000_000} MB: "
                "split its record into several."
            )
        if more:
            yield "".join(rest) + "\n"
            yield from (line + "\n" for line in more[:-1])
            rest, size = [more[-1]], len(more[-1])
    yield "".join(rest)


def read_json(file: InputFile, field: str) -> Iterator[str]:
    """Yield the text field of each JSON object, one per line."""
    for number, line in enumerate(read_lines(file), start=1):
        if not line.strip():
            continue
        where = f"'{file.name}' line {number}"
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


def read_table(file: InputFile, field: str) -> Iterator[str]:
    """Yield the text column of a CSV or TSV file with a header."""
    lines = read_lines(file)
    csv.field_size_limit(MAX_FIELD_CHARS)
    # TSV has no quoting: a quotation mark is text.
    rows = (
        csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if file.kind == "tsv"
        else csv.reader(lines, strict=True)
    )
    header: list[str] = []
    column, start = 0, 1
    try:
        for row in rows:
            start = rows.line_num + 1  # the line at which the next row starts
            if not header:
                header = row
                column = find_column(field, header, file.name) if header else 0
            elif len(row) > column:
                yield clean(row[column])
            elif row:
                raise UserError(
                    f"'{file.name}' line {rows.line_num} has {len(row)} columns, "
                    f"the header has {len(header)}: fix that line."
                )
    except csv.Error as error:
        if "unexpected end of data" in str(error):
            raise UserError(
                f"'{file.name}' line {start} opens a quotation mark that is never closed: "
                "close it, or double a quotation mark that belongs to the text."
            ) from None
        raise UserError(
            f"'{file.name}' line {rows.line_num} is not a valid table row ({error}): fix it."
        ) from None


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
    except (arrow.ArrowException, OSError, ValueError) as error:  # ValueError: a name in no UTF-8
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UserError(f"'{source.name}' cannot be read as parquet: {reason}.") from None


def read_hub(source: Source, field: str) -> Iterator[str]:
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
