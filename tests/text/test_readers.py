"""Readers: all formats, no lost text, constant memory, and errors that name the line."""

import bz2
import csv
import gzip
import json
import lzma
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.errors import UserError
from electra.text import readers, sources
from electra.text.readers import read_chunks, split_long

DOCUMENTS = ["Första raden.\nZweite Zeile.", "Ένα", "第三の文書\nมีสองบรรทัด"]

# Without the time of day, so that the tests have the same names in every worker
ZIPPED = gzip.compress(b"text" * 999, mtime=0)


def documents(*inputs: object, **options: object) -> list[str]:
    return [d for chunk in read_chunks([str(i) for i in inputs], **options) for d in chunk]


def as_text(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def packed(ending: str, data: bytes) -> bytes:
    if ending == ".zst":
        arrow = pytest.importorskip("pyarrow")
        return arrow.compress(data, codec="zstd", asbytes=True)
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}[ending](
        data
    )


TEXT = "\n\n".join(DOCUMENTS).encode()
JSONL = "".join(json.dumps({"id": 1, "text": d}) + "\n" for d in DOCUMENTS).encode()
CSV = ("id,text\n" + "".join(f'1,"{d}"\n' for d in DOCUMENTS)).encode()


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".bz2", ".zst"])
@pytest.mark.parametrize(("kind", "data"), [("txt", TEXT), ("jsonl", JSONL), ("csv", CSV)])
def test_formats_and_compressions(tmp_path, ending, kind, data):
    path = as_text(tmp_path / f"a.{kind}{ending}", packed(ending, data))
    assert documents(path) == DOCUMENTS


def test_json_ending_and_text_field(tmp_path):
    path = as_text(tmp_path / "a.json", b'{"body": "one"}\n\n{"body": null}\n{"body": "two"}')
    assert documents(path, text_field="body") == ["one", "two"]


def test_tsv_has_no_quoting(tmp_path):
    path = as_text(tmp_path / "a.tsv", b'id\ttext\n1\t"Oh, he said\n2\ttwo\n')
    assert documents(path) == ['"Oh, he said', "two"]


def test_csv_keeps_line_breaks_in_quotes(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], ["one\ntwo"], ['th"ree']])
    assert documents(path) == ["one\ntwo", 'th"ree']


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"text": [*DOCUMENTS, None], "n": [1, 2, 3, 4]}), path)
    seen: list[int] = []
    assert documents(path, on_bytes=seen.append) == DOCUMENTS
    assert sum(seen) == path.stat().st_size
    with pytest.raises(UserError, match=r"no column 'body', it has: text, n"):
        documents(path, text_field="body")
    with pytest.raises(UserError, match="'n' is not text but int"):
        documents(path, text_field="n")
    with pytest.raises(UserError, match=r"b\.parquet' cannot be read as parquet"):
        documents(as_text(tmp_path / "b.parquet", path.read_bytes()[:-9]))


def test_hub_dataset_is_streamed(tmp_path, monkeypatch):
    seen = []

    class Datasets:
        @staticmethod
        def load_dataset(name, config, *, split, streaming):
            seen.append((name, config, split, streaming))
            return iter([{"text": "one"}, {"text": "two"}])

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    assert documents("hub:me/data", "hub:me/data:en:test") == ["one", "two"] * 2
    assert seen == [("me/data", None, "train", True), ("me/data", "en", "test", True)]
    with pytest.raises(UserError, match=r"record 1 has no field 'body'"):
        documents("hub:me/data", text_field="body")


def test_missing_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"electra\[data\]"):
        documents("hub:me/data")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"electra\[data\]"):
        documents(as_text(tmp_path / "a.txt.zst", b"x"))


def test_bom_and_line_ends(tmp_path):
    data = b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r \t\r\nfour"
    assert documents(as_text(tmp_path / "a.txt", data)) == ["one\ntwo", "three", "four"]


def test_lone_surrogates_are_replaced(tmp_path):
    path = as_text(tmp_path / "a.jsonl", b'{"text": "a\\ud800b \\ud83d\\ude00"}')
    assert documents(path) == ["a\ufffdb 😀"]


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.sampled_from("ab ö語\n\t"), max_size=400),
    st.integers(1, 7),
    st.integers(2, 40),
)
def test_no_text_is_lost_for_any_block_size(tmp_path_factory, text, block, piece):
    """Tiny blocks are split everywhere; everything but white space is kept in order."""
    path = tmp_path_factory.mktemp("blocks") / "a.txt"
    path.write_text(text, encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK", block)
        patch.setattr(readers, "MAX_DOCUMENT_CHARS", piece)
        if not text.strip():
            with pytest.raises(UserError, match="no text"):
                documents(path)
            return
        found = documents(path)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(0 < len(d) <= piece for d in found)
    assert all(d == d.strip() for d in found)


def test_documents_do_not_depend_on_the_block_size(tmp_path, monkeypatch):
    text = "\n\n".join("line one ö\nline two\n" * 3 for _ in range(50))
    path = as_text(tmp_path / "a.txt", text.encode())
    whole = documents(path)
    for block in (1, 2, 3, 5, 7):
        monkeypatch.setattr(sources, "BLOCK", block)
        assert documents(path) == whole


def test_long_documents_are_split_at_newlines_then_spaces(monkeypatch):
    monkeypatch.setattr(readers, "MAX_DOCUMENT_CHARS", 10)
    assert list(split_long("aaaa\nbb ccccc")) == ["aaaa", "bb ccccc"]
    assert list(split_long("aa\nbb\ncc dd ee ff")) == ["aa\nbb", "cc dd ee", "ff"]
    assert list(split_long("aaaa bbbb ccccc")) == ["aaaa bbbb", "ccccc"]
    assert list(split_long("a" * 25)) == ["a" * 10, "a" * 10, "a" * 5]


def test_giant_line_needs_constant_memory(tmp_path):
    import tracemalloc

    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        for _ in range(30):
            file.write(b"word " * 200_000)  # 1 MB each, one line of 30 MB
    tracemalloc.start()
    count = sum(d.count("word") for chunk in read_chunks([path], size=10**6) for d in chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 30 * 200_000
    assert peak < 15e6


def test_chunk_size_and_order(tmp_path):
    text = "\n\n".join(f"document {i} " + "x" * 90 for i in range(1000))
    path = as_text(tmp_path / "a.txt", text.encode())
    found = list(read_chunks([path], size=10_000))
    assert [d for chunk in found for d in chunk] == text.split("\n\n")
    assert all(10_000 <= sum(map(len, chunk)) < 10_200 for chunk in found[:-1])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"", r"a\.txt' holds no text"),
        ("a.txt", b" \n\n \n", r"a\.txt' holds no text"),
        ("a.txt", b"ab\ncd\0e", r"a\.txt' is not text: line 2 holds a NUL byte"),
        ("a.txt", b"\x89PNG\r\n\x1a\n\0\0", r"is a PNG image"),
        ("a.txt", b"PK\x03\x04\0\0", r"is a zip archive, whose name must end in .zip"),
        ("a.txt", ZIPPED, r"gzip-compressed; give its name the ending \.gz"),
        ("a.txt", "text".encode("utf-16"), r"UTF-16; convert it with `iconv"),
        ("a.txt", b"fine\nna\xefve", r"a\.txt' .* line 2 \(byte 0xef at offset 7\).*iconv"),
        ("a.txt", b"fine\ncut \xe2\x82", r"line 2 \(byte 0xe2 at offset 9\)"),
        ("a.txt.gz", ZIPPED[:-12], r"a\.txt\.gz' is truncated or damaged"),
        ("a.txt.gz", b"no gzip at all", r"a\.txt\.gz' is truncated or damaged"),
        ("a.txt.xz", lzma.compress(b"text" * 999)[:-30], r"a\.txt\.xz' is truncated or damaged"),
        ("a.txt.bz2", bz2.compress(b"text" * 999)[:-9], r"a\.txt\.bz2' is truncated or damaged"),
        ("a.jsonl", b'{"text": "a"}\n{"text": "b"', r"a\.jsonl' line 2 is not valid JSON"),
        ("a.jsonl", b'["a"]', r"line 1 is a JSON list, not an object"),
        ("a.jsonl", b'{"body": "a", "title": "b"}', r"line 1 has no field 'text'.*body, title"),
        ("a.jsonl", b'{"text": 3}', r"the field 'text' is not text but int"),
        ("a.csv", b"id,body\n1,a\n", r"a\.csv' has no column 'text', it has: id, body"),
        ("a.csv", b"id,text\n1\n", r"a\.csv' line 2 has 1 columns, the header has 2"),
        ("a.csv", b'text\n"open\nfor ever\n', r"a\.csv' line 2 opens a quotation mark"),
        ("a.csv", b"text,text\na,b\n", r"a\.csv' has two columns 'text'"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl' line 1 is not valid JSON"),
        ("a.parquet.gz", b"x", r"compressed parquet"),
    ],
)  # fmt: skip
def test_errors_name_the_file_and_the_remedy(tmp_path, name, data, message):
    with pytest.raises(UserError, match=message) as caught:
        documents(as_text(tmp_path / name, data))
    assert "\n" not in str(caught.value)


def test_truncated_zst(tmp_path):
    data = packed(".zst", b"".join(b"%d " % (i * i) for i in range(200_000)))
    with pytest.raises(UserError, match="truncated or damaged"):
        documents(as_text(tmp_path / "a.txt.zst", data[: len(data) // 2]))


def test_position_of_invalid_utf8_in_a_later_block(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 10)
    data = "é\n".encode() * 101 + b"abc\xff"
    with pytest.raises(UserError, match=r"line 102 \(byte 0xff at offset 306\)"):
        documents(as_text(tmp_path / "a.txt", data))


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_table_that_starts_with_blank_lines(tmp_path, kind):
    mark = "\t" if kind == "tsv" else ","
    as_text(tmp_path / f"a.{kind}", f"\n\nid{mark}text\n1{mark}one\n\n2{mark}two\n".encode())
    as_text(tmp_path / "b.txt", b"three")
    assert documents(tmp_path) == ["one", "two", "three"]


def test_line_length_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "BLOCK", 50)
    monkeypatch.setattr(readers, "MAX_LINE_CHARS", 100)
    lines = [json.dumps({"text": f"number {i}"}) for i in range(40)]
    path = as_text(tmp_path / "a.jsonl", "\n".join(lines).encode())
    assert documents(path) == [f"number {i}" for i in range(40)]
    as_text(path, "\n".join([*lines, json.dumps({"text": "x" * 200})]).encode())
    with pytest.raises(UserError, match="a line of more than"):
        documents(path)


def test_progress_of_a_parquet_file(tmp_path):
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    for rows in (1, 1500, 2600, 3700, 4800):
        path = tmp_path / f"{rows}.parquet"
        parquet.write_table(arrow.table({"text": [f"number {i}" for i in range(rows)]}), path)
        reported = []
        assert len(documents(path, on_bytes=reported.append)) == rows
        assert sum(reported) == path.stat().st_size


def wiki(*documents: str) -> bytes:
    """The form in which WikiExtractor writes articles."""
    first = '<doc id="{}" url="https://xx.wikipedia.org/wiki?curid=1" title="A &quot;title&quot;">'
    blocks = (f"{first.format(i)}\n{d}\n\n</doc>\n" for i, d in enumerate(documents))
    return "".join(blocks).encode()


@pytest.mark.parametrize("name", ["wiki_00", "wiki_01.bz2", "articles.txt"])
def test_wikiextractor_output_is_found_by_its_content(tmp_path, name):
    texts = ["Title\n\nFirst paragraph.\n\nSecond <doc> one.", "", "第三の文書"]
    data = wiki(*texts)
    path = as_text(tmp_path / name, packed(".bz2" if name.endswith(".bz2") else "", data))
    counts = readers.RecordCounts()
    assert documents(path, counts=counts) == [texts[0], texts[2]]
    assert counts.empty == 0


@pytest.mark.parametrize("revision", [{}, {"revid": "3"}])
def test_json_output_of_wikiextractor(tmp_path, revision):
    lines = [
        json.dumps({"id": "12", **revision, "url": "u", "title": "t", "text": text})
        for text in DOCUMENTS
    ]
    assert documents(as_text(tmp_path / "wiki_00", "\n".join(lines).encode())) == DOCUMENTS


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (wiki("one") + b"two\n" + wiki("three"), "line 5 is outside of the <doc> blocks"),
        (wiki("one") + wiki("two")[:-8], "line 5 opens a <doc> block that is never closed"),
        (wiki("one")[:-8] + wiki("two"), "line 1 opens a <doc> block that is never closed"),
    ],
)
def test_damaged_wikiextractor_output(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        documents(as_text(tmp_path / "wiki_00", data))


def test_text_that_resembles_wikiextractor_output(tmp_path):
    for data in (b'<doc id="1">\none\n</doc>', b'{"id": 1}\none', b"<doc>\none"):
        assert documents(as_text(tmp_path / "a.txt", data)) == [data.decode()]
