"""Read your own files of rows: CSV, TSV and JSON lines."""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from electra.errors import UserError, nearest
from electra.tasks.data_files import file_extension
from electra.text.readers import MAX_FIELD_CHARS, clean
from electra.text.sources import blocks, file_source, refuse_binary

CSV = (".csv",)
TSV = (".tsv", ".tab", ".txt")
JSON = (".jsonl", ".ndjson", ".json")
EXTENSIONS = CSV + TSV + JSON

MAX_BYTES = 2_000_000_000  # of a whole file, which is read into memory
MAX_SHOWN = 40  # characters of a column name in an error; without a header it may be a long text
QUOTED = re.compile(r'"(?:[^"]|"")*"')
WHITESPACE = re.compile(r"\s*")
JSON_START = re.compile(r'\s*(?:\[\s*)?\{\s*["}]')

Cells = tuple[int, list[str]]
"""A row of a CSV or TSV file: the line where it starts, and its cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record of a file."""

    line: int
    """The line where it starts, counted from 1."""
    values: dict[str, Any]
    """Values by column: strings, or in JSON any type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The rows of a file, at least one."""

    path: Path
    columns: tuple[str, ...]
    rows: list[Row]

    def location(self, row: Row) -> str:
        """The file and line of a row, for error messages."""
        return f"'{self.path}' line {row.line}"

    def row_id(self, row: Row) -> str:
        """The `id` of a row, or its line number if it has none."""
        column = self.find("id")
        given = row.values.get(column) if column else None
        return str(row.line if given in (None, "") else given)

    def find(self, name: str) -> str | None:
        """The column called `name`; failing that, the only one that differs in case alone."""
        if name in self.columns:
            return name
        found = [column for column in self.columns if column.casefold() == name.casefold()]
        return found[0] if len(found) == 1 else None

    def require(self, column: str, option: str | None = None) -> None:
        """Raise if the column is missing; `option` is the flag that names another one."""
        if column in self.columns:
            return
        hint = nearest(column, list(self.columns))
        hint = f"; {hint}" if hint.startswith("did") else "."
        named = f" Name the right one with {option}." if option else ""
        raise UserError(
            f"'{self.path}' has no column '{column}', it has: {self.list_columns()}{hint}{named}"
            + self.header_hint()
        )

    def list_columns(self) -> str:
        """The columns, for error messages."""
        return ", ".join(shorten(name) for name in self.columns)

    def header_hint(self) -> str:
        """A hint for error messages if the column names look like a row or like several names."""
        if len(self.columns) == 1 and "|" in self.columns[0]:
            return " Separate the columns by commas, semicolons or tabs."
        if any(len(name) > MAX_SHOWN or name.strip().isdigit() for name in self.columns):
            return " The first line of the file must name the columns."
        return ""

    def text(self, row: Row, column: str) -> str:
        """The text of a row in a column; anything else is an error."""
        value = row.values.get(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(
                f"{self.location(row)} has no text in the column '{column}': fill it or delete the "
                "row."
            )
        if not isinstance(value, str):
            raise UserError(
                f"{self.location(row)}: the column '{column}' holds a JSON {json_type(value)}, not "
                "a string: put it in quotation marks."
            )
        return value


def read_table(path: Path, text: str | None = None) -> Table:
    """Read a CSV, TSV or JSON lines file, or parse its `text` if you have read it already.

    The first line of CSV and TSV names the columns. A .json file may also be one list of objects.
    In TSV, quotation marks are part of the text unless the file shows otherwise (`tsv_cells`).
    """
    check_extension(path)
    text = read_text(path) if text is None else text
    table_type = table_format(path, text)
    if table_type in JSON:
        rows = list(json_list(path, text) if text.lstrip()[:1] == "[" else json_lines(path, text))
        columns = tuple(dict.fromkeys(name for row in rows for name in row.values))
    else:
        cells = csv_cells(path, text) if table_type in CSV else tsv_cells(path, text)
        columns, rows = parse_header(path, cells)
    if not rows:
        raise UserError(f"'{path}' has no rows: fill it or name another file.")
    return Table(path=path, columns=columns, rows=rows)


def check_extension(path: Path) -> None:
    """Refuse a file whose extension is not that of a table."""
    if file_extension(path) not in ("", *EXTENSIONS):
        raise UserError(
            f"'{path}' is not a table that can be read: use one of {', '.join(EXTENSIONS)}."
        )


def table_format(path: Path, text: str) -> str:
    """The file extension, or for a name without one (`/dev/stdin`) what the text looks like."""
    if extension := file_extension(path):
        return extension
    if JSON_START.match(text):
        return ".jsonl"
    return ".tsv" if "\t" in first_line(text) else ".csv"


def first_line(text: str) -> str:
    """The first line that is not empty."""
    return text.lstrip("\r\n").partition("\n")[0]


def header_cells(text: str) -> set[str]:
    """The cells of the first line, whichever separator it uses."""
    return {cell.strip(' "\r') for cell in re.split(r"[,;\t]", first_line(text))}


def drop_empty_rows(table: Table, columns: Sequence[str]) -> tuple[Table, list[str]]:
    """Drop the rows that lack a text in one of the columns, and warn if there are any."""
    kept: list[Row] = []
    dropped: list[Row] = []
    for row in table.rows:
        values = [row.values.get(column) for column in columns]
        empty = any(v is None or (isinstance(v, str) and not v.strip()) for v in values)
        (dropped if empty else kept).append(row)
    if not dropped:
        return table, []
    names = " or ".join(f"'{shorten(name)}'" for name in columns)
    if not kept:
        raise UserError(
            f"'{table.path}' has no row with a text in the column {names}: fill it, or name "
            "another column."
        )
    skipped = f"{len(dropped):,} of {len(table.rows):,} rows of '{table.path}'"
    return replace(table, rows=kept), [
        f"{skipped} are skipped: the column {names} is empty, first on line {dropped[0].line}."
    ]


def refuse_same_column(path: Path, columns: Mapping[str, str]) -> None:
    """Refuse two options that name the same column; keys are options such as `--text`."""
    options = list(columns)
    for index, option in enumerate(options):
        for other in options[index + 1 :]:
            if columns[option] == columns[other]:
                raise UserError(
                    f"{option} and {other} are both the column '{shorten(columns[option])}' of "
                    f"'{path}': name two different columns."
                )


def read_bytes(path: Path) -> bytes:
    """Read and decompress a file, or read a pipe, which is possible only once."""
    if path.is_file() or path.is_dir():
        content = bytearray()
        for block in blocks(file_source(path, alone=True), lambda count: None):
            content += block
            if len(content) > MAX_BYTES:
                raise UserError(
                    f"'{path}' has more than {MAX_BYTES // 10**9} GB, decompressed: split it."
                )
        return bytes(content)
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from None


def read_text(path: Path) -> str:
    """Read a UTF-8 file or pipe, with or without a byte order mark; empty is an error.

    Line ends are left as they are, because a text may contain a lone carriage return.
    """
    if not path.exists():
        raise UserError(f"There is no file '{path}': check the name.")
    content = read_bytes(path)
    refuse_binary(str(path), content[:8], first=True, line=1)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.start` counts from behind the byte order mark, as `error.object` does.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"'{path}' line {line} is not UTF-8 (byte 0x{error.object[error.start]:02x}): if the "
            "whole file has another encoding, convert it, as with  iconv -f WINDOWS-1252 -t UTF-8; "
            "if only some lines have, repair those."
        ) from None
    if not text.strip():
        raise UserError(f"'{path}' is empty: fill it or name another file.")
    return text


def split_cells(text: str) -> list[Cells]:
    """Split a TSV file at tabs and line ends only; quotation marks are text."""
    # not splitlines, because a text may contain U+2028
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(n, line.split("\t")) for n, line in enumerate(lines, start=1) if line.strip()]


def parse_cells(path: Path, text: str, delimiter: str) -> Iterator[Cells]:
    """Parse a file with CSV quoting; a quoted cell may contain line ends."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    while True:
        line = rows.line_num + 1
        try:
            cells = next(rows, None)
        except csv.Error as error:
            if "end of data" in str(error):
                raise UserError(
                    f"'{path}' line {open_quote(text, line, delimiter)} opens a quotation mark "
                    "that is never closed: close it, or remove it."
                ) from None
            raise UserError(
                f"'{path}' line {line} starts a row that is not valid ({error}): repair its "
                'quotation marks; inside a quoted cell, write "" for each.'
            ) from None
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield line, cells


def open_quote(text: str, line: int, delimiter: str) -> int:
    """The line of the unclosed quotation mark in the row that starts at `line`."""
    start = sum(len(each) for each in islice(io.StringIO(text, newline=""), line - 1))
    cell = rf'(?:"(?:[^"]|"")*"|[^"{delimiter}][^{delimiter}]*)?{delimiter}'
    complete = re.compile(f"(?:{cell})*").match(text, start)
    return line + text.count("\n", start, complete.end() if complete else start)


def csv_cells(path: Path, text: str) -> Iterable[Cells]:
    """Parse a CSV file; many spreadsheets separate by semicolons."""
    header = text.lstrip().partition("\n")[0]
    delimiter = next((mark for mark in ",;\t" if mark in header), ",")
    return parse_cells(path, text, delimiter)


def tsv_cells(path: Path, text: str) -> Iterable[Cells]:
    """Parse a TSV file, quoted or plain.

    Quotation marks are text, as in the GLUE files, unless the header is quoted, every cell with a
    quotation mark has the form "…""…", or only CSV quoting gives all rows the same number of cells.
    """
    plain = split_cells(text)
    marked = [cell for _, cells in plain for cell in cells if '"' in cell]
    if all(QUOTED.fullmatch(cell) for cell in plain[0][1]):
        return parse_cells(path, text, "\t")
    if same_width(plain):
        proper = all(QUOTED.fullmatch(cell) for cell in marked)
        escaped = any('""' in cell[1:-1] for cell in marked)
        return parse_cells(path, text, "\t") if proper and escaped else plain
    try:
        quoted = list(parse_cells(path, text, "\t")) if marked else plain
    except UserError:
        return plain
    return quoted if same_width(quoted) else plain


def same_width(rows: list[Cells]) -> bool:
    """Whether all rows have the same number of cells."""
    return len({len(cells) for _, cells in rows}) == 1


def parse_header(path: Path, cells: Iterable[Cells]) -> tuple[tuple[str, ...], list[Row]]:
    """Return the columns named by the first row, and the other rows."""
    rows = iter(cells)
    line, header = next(rows, (1, []))
    header = [name.strip() for name in header]
    for name in header:
        if name and header.count(name) > 1:  # spreadsheets leave columns without a name
            raise UserError(
                f"'{path}' line {line} names the column '{shorten(name)}' twice: the first line "
                "must be a header that gives every column its own name."
            )
    found = []
    for line, values in rows:
        if len(values) != len(header):
            raise UserError(
                f"'{path}' line {line} has {len(values)} cells where the header has "
                f"{len(header)}: repair that row."
            )
        found.append(Row(line=line, values=dict(zip(header, map(clean, values), strict=True))))
    return tuple(name for name in header if name), found


def json_lines(path: Path, text: str) -> Iterator[Row]:
    """Parse a file with one JSON object per line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise json_error(path, number, error) from None
        yield json_row(path, number, value)


def json_list(path: Path, text: str) -> Iterator[Row]:
    """Parse a file that is one JSON list of objects."""
    decoder = json.JSONDecoder()
    position, line = text.index("[") + 1, 1
    counted = 0  # line ends before this position are counted in `line`
    try:
        while True:
            position = skip_whitespace(text, position)
            if text[position : position + 1] == "]":
                break
            line, counted = line + text.count("\n", counted, position), position
            value, position = decoder.raw_decode(text, position)
            yield json_row(path, line, value)
            position = skip_whitespace(text, position)
            if text[position : position + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, position)
            position += text[position] == ","
    except json.JSONDecodeError as error:
        raise json_error(path, error.lineno, error) from None
    except (ValueError, RecursionError) as error:  # ValueError: a number of thousands of digits
        raise json_error(path, line, error) from None
    if (rest := text[position + 1 :]).strip():
        line = text.count("\n", 0, len(text) - len(rest.lstrip())) + 1
        raise json_error(path, line, ValueError("text after the end of the list"))


def skip_whitespace(text: str, position: int) -> int:
    """The position of the first character that is not white space."""
    match = WHITESPACE.match(text, position)
    return match.end() if match else position


def json_row(path: Path, line: int, value: Any) -> Row:
    """Make a row from a JSON value, which must be an object."""
    if not isinstance(value, dict):
        raise UserError(
            f"'{path}' line {line} is a JSON {json_type(value)}, not an object: write one object "
            'per row, as {"text": "…", "label": "…"}.'
        )
    values = {name: clean(v) if isinstance(v, str) else v for name, v in value.items()}
    return Row(line=line, values=values)


def json_type(value: Any) -> str:
    """The JSON name of a value's type."""
    names = {list: "list", dict: "object", bool: "boolean", str: "string", type(None): "null"}
    return names.get(type(value), "number")


def json_error(path: Path, line: int, error: Exception) -> UserError:
    """The error for text that is not valid JSON."""
    reason = getattr(error, "msg", str(error))
    return UserError(
        f"'{path}' line {line} is not valid JSON ({reason}): every line must be one JSON object, "
        "or the file one list of them."
    )


def shorten(name: str) -> str:
    """A column name, truncated if it is long."""
    return name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "…"
