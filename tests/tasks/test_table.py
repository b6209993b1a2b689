"""Reading CSV, TSV and JSON lines, and the errors for invalid files."""

import bz2
import csv
import gzip
import json
import lzma
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import UserError
from electra.tasks.table import read_table


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def values(path: Path) -> list[list[str]]:
    table = read_table(path)
    return [[row.values[name] for name in table.columns] for row in table.rows]


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as error:
        read_table(path)
    message = str(error.value)
    assert str(path) in message
    return message


def test_csv_with_quotes_and_line_ends_in_cells(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\n"two\nlines, ""so""",1\n\nplain,0\n')
    table = read_table(path)
    assert table.columns == ("text", "label")
    assert [row.values["text"] for row in table.rows] == ['two\nlines, "so"', "plain"]
    assert [row.line for row in table.rows] == [2, 5]
    assert table.location(table.rows[1]) == f"'{path}' line 5"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("name", "separator"), [("a.csv", ","), ("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", "\t")]
)
def test_line_ends_and_byte_order_mark(tmp_path, end, mark, name, separator):
    text = end.join(
        [separator.join(row) for row in (("text", "label"), ("grün", "1"), ("ab", "0"))]
    )
    path = write(tmp_path, name, mark + (text + end).encode())
    assert read_table(path).columns == ("text", "label")
    assert values(path) == [["grün", "1"], ["ab", "0"]]


def test_line_ends_inside_cells_are_normalized(tmp_path):
    path = write(tmp_path, "a.csv", 'text,label\r\n"two\r\nlines",1\r\nlast,0\r\n')
    assert values(path) == [["two\nlines", "1"], ["last", "0"]]
    assert [row.line for row in read_table(path).rows] == [2, 4]


def test_unusual_line_ends_are_text_in_tsv(tmp_path):
    path = write(tmp_path, "a.tsv", "text\tlabel\none\u2028two\x85three\t1\n")
    assert values(path) == [["one\u2028two\x85three", "1"]]


@pytest.mark.parametrize(
    "cells",
    [
        [['"quoted"', "1"]],
        [['"Come in', "1"], ['he said."', "0"]],  # a quotation that goes on in the next row
        [['"Come" he said', "1"]],
        [['a 5" pipe', "1"], ['"', "0"]],
        [['"a ""b"" c"', "1"], ['5" pipe', "0"]],  # the second cell is not valid CSV quoting
    ],
)
def test_quotation_marks_are_text_in_plain_tsv(tmp_path, cells):
    lines = ["text\tlabel", *("\t".join(row) for row in cells)]
    assert values(write(tmp_path, "a.tsv", "\n".join(lines))) == cells


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("odd", ["two\nlines", "a\ttab", 'he said "so"', '"'])
def test_tsv_written_by_the_csv_module(tmp_path, quoting, odd):
    path = tmp_path / "a.tsv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", quoting=quoting)
        rows.writerows([("text", "label"), ("plain", "0"), (odd, "1"), ("last", "0")])
    assert values(path) == [["plain", "0"], [odd, "1"], ["last", "0"]]


@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs", "Cc"]))] * 2).filter(
            lambda row: any(cell.strip() for cell in row)
        ),
        min_size=1,
        max_size=5,
    )
)
def test_csv_and_json_round_trip(rows):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("a", "b"), *rows])
        assert values(path) == [list(row) for row in rows]
        records = [{"a": a, "b": b} for a, b in rows]
        whole = write(Path(folder), "a.json", json.dumps(records, indent=1, ensure_ascii=False))
        lines = write(Path(folder), "a.jsonl", "\n".join(json.dumps(r) for r in records))
        assert values(whole) == values(lines) == [list(row) for row in rows]


def test_json_lines_and_json_list(tmp_path):
    lines = write(tmp_path, "a.json", '{"text": "one", "n": 1}\n\n{"text": "two", "m": [2]}\n')
    table = read_table(lines)
    assert table.columns == ("text", "n", "m")
    assert [(row.line, row.values) for row in table.rows] == [
        (1, {"text": "one", "n": 1}),
        (3, {"text": "two", "m": [2]}),
    ]
    listed = write(tmp_path, "b.json", '\n[\n {"text":\n  "one"},\n {"text": "two"}\n]\n')
    assert [(row.line, row.values["text"]) for row in read_table(listed).rows] == [
        (3, "one"),
        (5, "two"),
    ]


def test_lone_surrogate_is_replaced(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text": "a \\ud83d b"}')
    read_table(path).rows[0].values["text"].encode()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "\ufeff \n", "is empty"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.json", "[]", "has no rows"),
        ("a.csv", "text,label\na,1\nb,1,2\n", "line 3 has 3 cells where the header has 2"),
        ("a.tsv", "text\tlabel\na\n", "line 2 has 1 cells"),
        (
            "a.csv",
            'text,label\na,1\n"b,1\nc,0\n',
            "line 3 opens a quotation mark that is never closed",
        ),
        ("a.csv", "a,a\n1,2\n", "line 1 names the column 'a' twice"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "line 2 is not valid JSON"),
        ("a.jsonl", '{"a": 1}\n[1]\n', "line 2 is a JSON list, not an object"),
        ("a.json", '[{"a": 1},\n 3]', "line 2 is a JSON number"),
        ("a.json", '[{"a": 1}\n {"a": 2}]', "line 2 is not valid JSON"),
        ("a.json", '[{"a": 1},\n', "line 2 is not valid JSON"),
        ("a.json", '[{"a": 1}]\n\nmore', "line 3 is not valid JSON"),
        ("a.jsonl", "[" * 100_000, "line 1 is not valid JSON"),
        ("a.csv", b"text,label\nabc,1\ncaf\xe9,1\n", "line 3 is not UTF-8 (byte 0xe9)"),
        ("a.csv", b"\xef\xbb\xbftext\n\xff\n", "line 2 is not UTF-8"),
        ("a.csv", "text\na\n".encode("utf-16"), "UTF-16"),
        ("a.xlsx", "text\n", "is not a table"),
    ],
)
def test_errors_name_file_and_line(tmp_path, name, content, words):
    assert words in refusal(write(tmp_path, name, content))


@pytest.mark.parametrize("pack", [gzip, lzma, bz2])
def test_compressed_tables(tmp_path, pack):
    ends = {gzip: ".gz", lzma: ".xz", bz2: ".bz2"}[pack]
    content = b'text,label\n"a\rb",1\n'
    path = write(tmp_path, f"a.csv{ends}", pack.compress(content))
    assert read_table(path).rows == read_table(write(tmp_path, "a.csv", content)).rows
    path.write_bytes(path.read_bytes()[:-4])
    assert "truncated or damaged" in refusal(path)


def test_missing_files_are_refused(tmp_path):
    assert "There is no file" in refusal(tmp_path / "a.csv")
    (tmp_path / "b.csv").mkdir()
    assert "cannot be read" in refusal(tmp_path / "b.csv")


def test_missing_column_error_lists_the_columns(tmp_path):
    table = read_table(write(tmp_path, "a.csv", "text,label\na,1\n"))
    table.require("label")
    with pytest.raises(
        UserError, match="no column 'txt', it has: text, label; did you mean 'text'"
    ):
        table.require("txt", "--text")
    with pytest.raises(UserError, match=r"it has: text, label\. Name the right one with --pair"):
        table.require("qqqqqq", "--pair")


def test_missing_header_hint(tmp_path):
    table = read_table(write(tmp_path, "a.tsv", f"{'a long text ' * 9}\tx\nanother\ty\n"))
    with pytest.raises(UserError, match=r"a long text a.{,40}….*first line of the file must name"):
        table.require("text")
    table = read_table(write(tmp_path, "b.csv", "good bread,1\nstale bread,0\n"))
    with pytest.raises(UserError, match="first line of the file must name"):
        table.require("text")
    table = read_table(write(tmp_path, "c.csv", "text|label\ngood bread|1\n"))
    with pytest.raises(UserError, match="Separate the columns by commas"):
        table.require("text")


def test_missing_or_wrong_type_of_text_is_refused(tmp_path):
    table = read_table(write(tmp_path, "a.jsonl", '{"t": "x"}\n{"t": " "}\n{"u": 1}\n{"t": 3}'))
    assert table.text(table.rows[0], "t") == "x"
    for row, words in zip(
        table.rows[1:], ("has no text", "has no text", "JSON number"), strict=True
    ):
        with pytest.raises(UserError, match=f"line {row.line}.*{words}"):
            table.text(row, "t")


def test_empty_rows_and_columns_are_ignored(tmp_path):
    path = write(tmp_path, "a.csv", "text,,label,\none,,1,\n,,,\n , ,,\ntwo,,0,\n,,,\n")
    assert read_table(path).columns == ("text", "label")
    assert values(path) == [["one", "1"], ["two", "0"]]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (["text,label", *["plain,a"] * 50, '"never closed,a', *["plain,b"] * 50], 52),
        (["text,label", "x,a", '"two', 'lines","never closed', "x,a", "x,b"], 4),
        (["text,label", "x,a", '"a ""word"" and', 'two lines",b', 'x,"open', "x,b"], 5),
    ],
)
def test_an_unclosed_quotation_mark_is_reported_where_it_opens(tmp_path, rows, line):
    path = write(tmp_path, "a.csv", "\n".join(rows) + "\n")
    assert f"line {line} opens a quotation mark that is never closed" in refusal(path)


def test_a_broken_quoted_cell_is_reported_at_its_row(tmp_path):
    rows = ["text,label", *['"plain",a'] * 50, '"never closed,a', *['"plain",b'] * 50]
    path = write(tmp_path, "a.csv", "\n".join(rows) + "\n")
    assert "line 52 starts a row that is not valid" in refusal(path)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", "a\tb\n1\t2\n", '{"a": "1", "b": "2"}\n'])
def test_the_format_of_a_file_without_extension_is_detected(tmp_path, content):
    assert values(write(tmp_path, "data", content)) == [["1", "2"]]


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", " ,\u2003\n"), ("a.csv", '" ",""\n'), ("a.json", '[{"a": ' + "9" * 5000 + "}]")],
)
def test_hostile_tables_are_refused(name, text, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=name):
        read_table(tmp_path / name)


def test_a_file_that_grows_too_large_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("electra.tasks.table.MAX_BYTES", 10_000_000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,label\n" + b"a" * 30_000_000))
    with pytest.raises(UserError, match="decompressed: split it"):
        read_table(tmp_path / "a.csv.gz")
