"""Your own files of rows: CSV, TSV and JSON lines -> records that know their line."""

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
from electra.tasks.folder import ending
from electra.text.read import FIELD, clean
from electra.text.sources import blocks, file_source, refuse_binary

CSV = (".csv",)
TSV = (".tsv", ".tab", ".txt")
JSON = (".jsonl", ".ndjson", ".json")
ENDINGS = CSV + TSV + JSON

SHOWN = 40  # characters of a column's name in an error: without a header it may be a whole text
QUOTED = re.compile(r'"(?:[^"]|"")*"')
BLANK = re.compile(r"\s*")
JSON_START = re.compile(r'\s*(?:\[\s*)?\{\s*["}]')

Cells = tuple[int, list[str]]
"""A row of a CSV or TSV file: the line where it starts, and its cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One record of a file."""

    line: int
    """Where it starts, counted from 1."""
    values: dict[str, Any]
    """By column: texts, or in JSON anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The records of a file, at least one."""

    path: Path
    columns: tuple[str, ...]
    rows: list[Row]

    def place(self, row: Row) -> str:
        """Where a row stands, for an error."""
        return f"'{self.path}' line {row.line}"

    def name(self, row: Row) -> str:
        """The row's `id`, or its line number if it has none."""
        column = self.find("id")
        own = row.values.get(column) if column else None
        return str(row.line if own in (None, "") else own)

    def find(self, name: str) -> str | None:
        """The column called `name`; failing that, the only one that differs in case alone."""
        if name in self.columns:
            return name
        found = [column for column in self.columns if column.casefold() == name.casefold()]
        return found[0] if len(found) == 1 else None

    def need(self, column: str, option: str | None = None) -> None:
        """Refuse a column that is not there; `option` is how the user names another."""
        if column in self.columns:
            return
        hint = nearest(column, list(self.columns))
        hint = f"; {hint}" if hint.startswith("did") else "."
        named = f" Name the right one with {option}." if option else ""
        raise UserError(
            f"'{self.path}' has no column '{column}', it has: {self.listed()}{hint}{named}"
            + self.headless()
        )

    def listed(self) -> str:
        """The columns for an error."""
        return ", ".join(short(name) for name in self.columns)

    def headless(self) -> str:
        """A hint when the names of the columns look like texts."""
        if any(len(name) > SHOWN for name in self.columns):
            return " The first line of the file must name the columns."
        return ""

    def text(self, row: Row, column: str) -> str:
        """The text of a row in a column; missing, empty or no text at all is an error."""
        value = row.values.get(column)
        if value is None or (isinstance(value, str) and not value.strip()):
            raise UserError(
                f"{self.place(row)} has no text in the column '{column}': fill it or delete the "
                "row."
            )
        if not isinstance(value, str):
            raise UserError(
                f"{self.place(row)}: the column '{column}' is no text but a JSON "
                f"{json_kind(value)}: write it as a text in quotation marks."
            )
        return value


def read_table(path: Path, text: str | None = None) -> Table:
    """Read a CSV, TSV or JSON lines file, or parse its `text` if you have read it already.

    The first line of CSV and TSV names the columns. A .json file may also be one list of objects.
    In a TSV file quotation marks are text unless the file shows that they are not (`tsv_cells`).
    """
    check_extension(path)
    text = read_text(path) if text is None else text
    kind = table_format(path, text)
    if kind in JSON:
        rows = list(json_list(path, text) if text.lstrip()[:1] == "[" else json_lines(path, text))
        columns = tuple(dict.fromkeys(name for row in rows for name in row.values))
    else:
        cells = csv_cells(path, text) if kind in CSV else tsv_cells(path, text)
        columns, rows = with_header(path, cells)
    if not rows:
        raise UserError(f"'{path}' has no rows: fill it or name another file.")
    return Table(path=path, columns=columns, rows=rows)


def check_extension(path: Path) -> None:
    """Refuse a file whose extension is not that of a table."""
    if ending(path) not in ("", *ENDINGS):
        raise UserError(f"'{path}' is no table that can be read: name a file {', '.join(ENDINGS)}.")


def table_format(path: Path, text: str) -> str:
    """The file extension, or for a name without one (`/dev/stdin`) what the text looks like."""
    if extension := ending(path):
        return extension
    if JSON_START.match(text):
        return ".jsonl"
    return ".tsv" if "\t" in first_line(text) else ".csv"


def first_line(text: str) -> str:
    """The first line that is not blank."""
    return text.lstrip("\r\n").partition("\n")[0]


def header_cells(text: str) -> set[str]:
    """The cells of the first line, whichever separator it uses."""
    return {cell.strip(' "\r') for cell in re.split(r"[,;\t]", first_line(text))}


def drop_empty_rows(table: Table, columns: Sequence[str]) -> tuple[Table, list[str]]:
    """The table without rows that lack a text in one of the columns, and a warning if any do."""
    kept: list[Row] = []
    dropped: list[Row] = []
    for row in table.rows:
        values = [row.values.get(column) for column in columns]
        empty = any(v is None or (isinstance(v, str) and not v.strip()) for v in values)
        (dropped if empty else kept).append(row)
    if not dropped:
        return table, []
    names = " or ".join(f"'{short(name)}'" for name in columns)
    if not kept:
        raise UserError(
            f"'{table.path}' has no row with a text in the column {names}: fill it, or name "
            "another column."
        )
    skipped = f"{len(dropped):,} of {len(table.rows):,} rows of '{table.path}'"
    return replace(table, rows=kept), [
        f"{skipped} are skipped: the column {names} is empty, first on line {dropped[0].line}."
    ]


def read_bytes(path: Path) -> bytes:
    """The bytes of a file after decompression, or of a pipe, which can be read only once."""
    if path.is_file() or path.is_dir():
        return b"".join(blocks(file_source(path, alone=True), lambda count: None))
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"'{path}' cannot be read: {error.strerror}.") from None


def read_text(path: Path) -> str:
    """The text of a UTF-8 file or pipe, with or without a byte order mark; empty is an error.

    Line ends are left as they are, because a text may contain a lone carriage return.
    """
    if not path.exists():
        raise UserError(f"There is no file '{path}': check the name.")
    content = read_bytes(path)
    refuse_binary(str(path), content[:8], first=True, line=1)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # The codec counts from behind the byte order mark, and hands over what it counts in.
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"'{path}' line {line} is not UTF-8 (byte 0x{error.object[error.start]:02x}): if the "
            "whole file has another encoding, convert it, as with  iconv -f WINDOWS-1252 -t UTF-8; "
            "if only some lines have, repair those."
        ) from None
    if not text.strip():
        raise UserError(f"'{path}' is empty: fill it or name another file.")
    return text


def plain_cells(text: str) -> list[Cells]:
    """The rows of a TSV file in which every character but tab and line end is text."""
    # Not splitlines: a text may hold U+2028 and its like.
    lines = (line.removesuffix("\r") for line in text.split("\n"))
    return [(n, line.split("\t")) for n, line in enumerate(lines, start=1) if line.strip()]


def parsed_cells(path: Path, text: str, delimiter: str) -> Iterator[Cells]:
    """The rows of a file with the rule of quoting; a cell in quotation marks may hold line ends."""
    csv.field_size_limit(FIELD)
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
    """The line of the quotation mark that is never closed, in the row that starts at a line."""
    start = sum(len(each) for each in islice(io.StringIO(text, newline=""), line - 1))
    cell = rf'(?:"(?:[^"]|"")*"|[^"{delimiter}][^{delimiter}]*)?{delimiter}'
    closed = re.compile(f"(?:{cell})*").match(text, start)
    return line + text.count("\n", start, closed.end() if closed else start)


def csv_cells(path: Path, text: str) -> Iterable[Cells]:
    """The rows of a CSV file; spreadsheets of many countries separate by semicolons."""
    header = text.lstrip().partition("\n")[0]
    delimiter = next((mark for mark in ",;\t" if mark in header), ",")
    return parsed_cells(path, text, delimiter)


def tsv_cells(path: Path, text: str) -> Iterable[Cells]:
    """The rows of a TSV file, quoted or plain.

    Quotation marks are text, as in GLUE's files, except where the file shows that they are not:
    the header stands in them, or every cell with a quotation mark has the form "…""…", or only
    the rule of quoting gives all rows the same number of cells.
    """
    plain = plain_cells(text)
    marked = [cell for _, cells in plain for cell in cells if '"' in cell]
    if all(QUOTED.fullmatch(cell) for cell in plain[0][1]):
        return parsed_cells(path, text, "\t")
    if even(plain):
        proper = all(QUOTED.fullmatch(cell) for cell in marked)
        inner = any('""' in cell[1:-1] for cell in marked)
        return parsed_cells(path, text, "\t") if proper and inner else plain
    try:
        quoted = list(parsed_cells(path, text, "\t")) if marked else plain
    except UserError:
        return plain
    return quoted if even(quoted) else plain


def even(rows: list[Cells]) -> bool:
    """Whether all rows have the same number of cells."""
    return len({len(cells) for _, cells in rows}) == 1


def with_header(path: Path, cells: Iterable[Cells]) -> tuple[tuple[str, ...], list[Row]]:
    """The columns that the first row names, and the other rows."""
    rows = iter(cells)
    line, header = next(rows)
    header = [name.strip() for name in header]
    for name in header:
        if name and header.count(name) > 1:  # spreadsheets leave columns without a name
            raise UserError(
                f"'{path}' line {line} names the column '{short(name)}' twice: the first line "
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
    """The objects of a file with one JSON object per line."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise no_json(path, number, error) from None
        yield json_row(path, number, value)


def json_list(path: Path, text: str) -> Iterator[Row]:
    """The objects of a file that is one JSON list."""
    decoder = json.JSONDecoder()
    place, line = text.index("[") + 1, 1
    counted = 0  # characters whose line ends are in `line`
    try:
        while True:
            place = blank_end(text, place)
            if text[place : place + 1] == "]":
                break
            line, counted = line + text.count("\n", counted, place), place
            value, place = decoder.raw_decode(text, place)
            yield json_row(path, line, value)
            place = blank_end(text, place)
            if text[place : place + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, place)
            place += text[place] == ","
    except json.JSONDecodeError as error:
        raise no_json(path, error.lineno, error) from None
    except RecursionError as error:
        raise no_json(path, line, error) from None
    if (rest := text[place + 1 :]).strip():
        line = text.count("\n", 0, len(text) - len(rest.lstrip())) + 1
        raise no_json(path, line, ValueError("text after the list's end"))


def blank_end(text: str, place: int) -> int:
    """Where the white space that starts at a place ends."""
    match = BLANK.match(text, place)
    return match.end() if match else place


def json_row(path: Path, line: int, value: Any) -> Row:
    """The row of one JSON value, which must be an object."""
    if not isinstance(value, dict):
        raise UserError(
            f"'{path}' line {line} is a JSON {json_kind(value)}, not an object: write one object "
            'per row, as {"text": "…", "label": "…"}.'
        )
    values = {name: clean(v) if isinstance(v, str) else v for name, v in value.items()}
    return Row(line=line, values=values)


def json_kind(value: Any) -> str:
    """What JSON calls a value."""
    names = {list: "list", dict: "object", bool: "boolean", str: "string", type(None): "null"}
    return names.get(type(value), "number")


def no_json(path: Path, line: int, error: Exception) -> UserError:
    """The error for something that cannot be read as JSON."""
    reason = getattr(error, "msg", str(error))
    return UserError(
        f"'{path}' line {line} is no valid JSON ({reason}): every line must be one JSON object, or "
        "the file one list of them."
    )


def refuse_same_column(path: Path, columns: Mapping[str, str]) -> None:
    """Refuse two options that name the same column; `columns` is by option, as `--text`."""
    options = list(columns)
    for number, option in enumerate(options):
        for other in options[number + 1 :]:
            if columns[option] == columns[other]:
                raise UserError(
                    f"{option} and {other} are both the column '{short(columns[option])}' of "
                    f"'{path}': name two different columns."
                )


def short(name: str) -> str:
    """A column's name, cut when it is long."""
    return name if len(name) <= SHOWN else name[:SHOWN] + "…"
