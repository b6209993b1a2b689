"""Wikipedia dumps: which pages are read, damage that names the page, hostile XML, workers."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import tracemalloc
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from electra.errors import UserError
from electra.text import plain_text, readers, wiki_dump
from electra.text.inspect import inspect_tokenizer
from electra.text.plain_text import read_texts
from electra.text.prepare import Summary
from electra.text.tokenizer import load_tokenizer, train_tokenizer

pytest.importorskip("mwparserfromhell")

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <namespaces>
      <namespace key="-2" case="first-letter">Medium</namespace>
      <namespace key="0" case="first-letter" />
      <namespace key="1" case="first-letter">Diskussion</namespace>
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(title: str, text: str, *, ns: int = 0, extra: str = "", model: str = "wikitext") -> str:
    return f"""  <page>
    <title>{escape(title)}</title>
    <ns>{ns}</ns>
    <id>1</id>{extra}
    <revision>
      <id>2</id>
      <contributor><username>A &amp; B</username></contributor>
      <comment>text of a comment</comment>
      <model>{model}</model>
      <format>text/x-wiki</format>
      <text bytes="9" xml:space="preserve">{escape(text)}</text>
      <sha1>x</sha1>
    </revision>
  </page>
"""


PAGES = [
    page("Lampe", "Die '''Lampe''' ist [[Licht|hell]].\n\n[[Datei:L.jpg|mini]]\nSie & er < 3."),
    page("Leuchte", "#WEITERLEITUNG [[Lampe]]"),
    page("Laterne", "Unsinn", extra='\n    <redirect title="Lampe" />'),
    page("Diskussion:Lampe", "Ein Streit", ns=1),
    page("Lampe (Begriffsklärung)", "Lampe steht für vieles"),
    page("Licht", "Licht steht für:\n* [[a]]\n{{Begriffsklärung}}"),
    page("Daten", "{}", model="json"),
    page("Leer", "{{nichts}}"),
    page("Ölofen", "Größe: „viel“.[[Medium:Ton]]\n[[Kategorie:Ofen]]\n== Titel ==\nEnde."),
]
DOCUMENTS = ["Die Lampe ist hell.\nSie & er < 3.", "Größe: „viel“.\nEnde."]
DUMP = (HEAD + "".join(PAGES) + TAIL).encode()


def multistream(pages: list[str], each: int = 2) -> bytes:
    """A dump as distributed: a bzip2 stream for the head, some for the pages, one for the end."""
    parts = [pages[i : i + each] for i in range(0, len(pages), each)]
    return b"".join(bz2.compress("".join(p).encode()) for p in [[HEAD], *parts, [TAIL]])


def documents(*inputs: object, **options: object) -> list[str]:
    return [d for chunk in read_texts([str(i) for i in inputs], **options) for d in chunk]


def save(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("dewiki-20260101-pages-articles.xml", bytes),
        ("dewiki-20260101-pages-articles.xml.bz2", bz2.compress),
        ("dewiki-20260101-pages-articles-multistream.xml.bz2", lambda _: multistream(PAGES)),
        ("dewiki-20260101-pages-articles1.xml-p1p2.bz2", bz2.compress),
        ("dump.xml.gz", gzip.compress),
        ("dump.xml.xz", lzma.compress),
        ("bom.xml", lambda data: b'\xef\xbb\xbf<?xml version="1.0" encoding="utf-8"?>\n' + data),
        ("comment.xml", lambda data: b"<!-- made by hand -->\n" + data),
    ],
)
def test_articles_are_documents(tmp_path, name, compress):
    path = save(tmp_path / name, compress(DUMP))
    seen: list[int] = []
    assert documents(path, on_bytes=seen.append) == DOCUMENTS
    assert sum(seen) == path.stat().st_size


def test_zstandard(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    data = arrow.compress(DUMP, codec="zstd", asbytes=True)
    assert documents(save(tmp_path / "a.xml.zst", data)) == DOCUMENTS


def test_a_dump_in_an_archive(tmp_path):
    data = multistream(PAGES)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("dumps/dewiki-pages-articles.xml.bz2")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    assert documents(tmp_path / "a.tar.gz") == DOCUMENTS


def test_the_last_of_several_revisions(tmp_path):
    two = page("A", "new").replace("<revision>", "<revision><text>old</text></revision><revision>")
    slots = page("B", "main").replace("<sha1>", "<content><text>other slot</text></content><sha1>")
    assert documents(save(tmp_path / "a.xml", (HEAD + two + slots + TAIL).encode())) == [
        "new",
        "main",
    ]


def test_small_blocks_give_the_same_text(tmp_path, monkeypatch):
    monkeypatch.setattr("electra.text.sources.BLOCK", 7)
    monkeypatch.setattr(wiki_dump, "is_dump", lambda start: True)
    monkeypatch.setattr(readers, "is_dump", lambda start: True)
    assert documents(save(tmp_path / "a.xml", DUMP)) == DOCUMENTS


def test_long_articles_are_split(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_DOCUMENT_CHARS", 100)
    text = "\n".join(f"line number {i}" for i in range(40))
    path = save(tmp_path / "a.xml", (HEAD + page("A", text) + TAIL).encode())
    found = documents(path)
    assert len(found) > 4
    assert "\n".join(found) == text


def test_lone_surrogates_are_replaced(tmp_path):
    """UTF-8 cannot encode them."""
    path = save(tmp_path / "a.xml", (HEAD + page("A", "a&#xD800;b") + TAIL).encode())
    assert documents(path) == ["a\ufffdb"]


def test_other_xml_stays_text(tmp_path):
    assert documents(save(tmp_path / "a.xml", b"<a>b</a>")) == ["<a>b</a>"]
    assert documents(save(tmp_path / "a.txt", b"the <mediawiki tag")) == ["the <mediawiki tag"]


# --------------------------------------------------------------------- errors


@pytest.mark.parametrize("ending", ["", ".gz", ".bz2"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_truncated_dump_names_the_page(tmp_path, ending, share):
    pages = [page(f"Seite {i}", os.urandom(20_000).hex()) for i in range(40)]
    whole = (HEAD + "".join(pages) + TAIL).encode()
    data = {"": bytes, ".gz": gzip.compress, ".bz2": lambda _: multistream(pages)}[ending](whole)
    path = save(tmp_path / f"a.xml{ending}", data[: max(200, int(len(data) * share))])
    with pytest.raises(UserError, match=r"a\.xml.*is truncated or damaged") as caught:
        documents(path)
    if share:
        near = range(int(40 * share) - 4, int(40 * share) + 2)
        assert any(f"the page 'Seite {i}'" in str(caught.value) for i in near)
    assert "\n" not in str(caught.value)


BOMB = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (BOMB + HEAD + page("A", "x").replace("x</text>", "&c;</text>") + TAIL, "type declaration"),
        (
            '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + HEAD + "&b;" + TAIL,
            "type decl",
        ),
        ('<!DOCTYPE a SYSTEM "http://localhost:9/a.dtd">' + HEAD + TAIL, "type declaration before"),
        (HEAD + PAGES[0] + "&undefined;" + TAIL, "after the page 'Lampe' .undefined entity"),
        (HEAD + page("A", "x").replace("</text>", "") + TAIL, "in the page 'A' .mismatched tag"),
        (HEAD + page("A\n\x85B", "x") + "<", "after the page 'A\ufffd\ufffdB'"),
        (HEAD + page("A", "x\0y") + TAIL, "in the page 'A' .not well-formed"),
        (HEAD + PAGES[0] + TAIL + "junk", "after the page 'Lampe' .junk after document"),
        (HEAD + PAGES[3] + TAIL, "is a dump without articles"),
        (HEAD + "<a>" * 60, "more than 50 nested elements"),
        (HEAD + PAGES[1] + TAIL, "holds no text"),
    ],
)
def test_bad_and_hostile_dumps_are_one_sentence(tmp_path, data, message):
    with pytest.raises(UserError, match=message) as caught:
        documents(save(tmp_path / "a.xml", data.encode()))
    assert "a.xml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("open_end", ["<a b='", "<!--", "<page><title>", "<a>"])
def test_endless_input_does_not_fill_the_memory(tmp_path, monkeypatch, open_end):
    monkeypatch.setattr(wiki_dump, "MAX_TOKEN_BYTES", 2_000_000)
    monkeypatch.setattr(wiki_dump, "MAX_PAGE_CHARS", 2_000_000)
    data = gzip.compress((HEAD + open_end).encode() + b"x" * 30_000_000, 1)
    path = save(tmp_path / "a.xml.gz", data)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"a\.xml\.gz'"):
        documents(path)
    _, top = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert top < 16_000_000


def test_the_index_of_a_multistream_dump_is_refused(tmp_path):
    name = "dewiki-20260101-pages-articles-multistream-index.txt.bz2"
    path = save(tmp_path / name, bz2.compress(b"616:1:Lampe\n"))
    with pytest.raises(UserError, match="is the index of a Wikipedia dump, not text"):
        documents(path)


def test_missing_library(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mwparserfromhell", None)
    with pytest.raises(UserError, match=r"pip install 'electra\[wiki\]'"):
        documents(save(tmp_path / "a.xml", DUMP))


@settings(max_examples=150, deadline=None)
@given(
    start=st.integers(0, len(DUMP) - 1),
    count=st.integers(0, 60),
    new=st.binary(max_size=20) | st.sampled_from([b"<page>", b"</text>", b"&lt;", b"]]>", b"<"]),
)
def test_any_damage_is_text_or_one_sentence(tmp_path_factory, start, count, new):
    folder = tmp_path_factory.getbasetemp()
    path = save(folder / "fuzzed.xml", DUMP[:start] + new + DUMP[start + count :])
    try:
        found = documents(path)
    except UserError as error:
        found = [str(error)]
        found = [] if "\n" in found[0] else found
    assert found
    assert all(text.strip() and text.encode() for text in found)


def test_constant_memory(tmp_path):
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.xml.gz"
        text = "Some [[words]] of text. " * 40
        pages = "".join(page(f"Page {i}", text) for i in range(count))
        path.write_bytes(gzip.compress((HEAD + pages + TAIL).encode(), 1))
        del pages
        tracemalloc.start()
        found = sum(len(chunk) for chunk in readers.read_chunks([path], size=100_000))
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found == count
        return top

    peak(10)  # imports
    assert peak(20_000) < 10_000_000  # of 22 MB; how late garbage is collected varies


# ------------------------------------------------------------ prepare, tokenizer


@pytest.fixture
def dump(corpus, tmp_path) -> Path:
    """The documents of `corpus` as the articles of a multistream dump."""
    texts = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    pages = [
        page(f"Page {i}", f"{{{{box|{i}}}}}\n'''{t}'''<ref>{i}</ref>") for i, t in enumerate(texts)
    ]
    return save(tmp_path / "dewiki-pages-articles-multistream.xml.bz2", multistream(pages, 10))


def test_shards_do_not_depend_on_workers(run, dump, corpus, tmp_path, read_files):
    one = run("one", inputs=[dump])
    run("two", inputs=[dump], workers=2)
    assert read_files(tmp_path / "one") == read_files(tmp_path / "two")
    plain = run("plain", inputs=[corpus])
    assert (one.documents, one.text_tokens) == (plain.documents, plain.text_tokens)
    assert one.text_bytes == plain.text_bytes
    assert one.shards > 2


def test_resume_and_progress(run, dump, tmp_path, read_files, stopping, monkeypatch):
    run("whole", inputs=[dump])
    with monkeypatch.context() as patch:
        patch.setattr("electra.text.encode.encode_chunk", stopping(2))
        with pytest.raises(KeyboardInterrupt):
            run("resumed", inputs=[dump])
    states: list[Summary] = []
    assert run("resumed", inputs=[dump], progress=states.append).skipped == 2
    assert read_files(tmp_path / "resumed") == read_files(tmp_path / "whole")
    assert states[-1].read_bytes == states[-1].total_bytes == dump.stat().st_size


def test_damaged_dump_leaves_nothing_behind(run, tmp_path):
    with pytest.raises(UserError, match="after the page 'Ölofen'"):
        run(inputs=[save(tmp_path / "a.xml", DUMP[: -len(TAIL)])])
    assert not (tmp_path / "shards").exists()


def test_tokenizer_of_a_dump(dump, tmp_path, tokenizer_folder, monkeypatch):
    """The workers of `tokenizer train` return the text in its order."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    defaults = plain_text.read_texts.__kwdefaults__
    monkeypatch.setattr(plain_text.read_texts, "__kwdefaults__", defaults | {"size": 5000})
    train_tokenizer([dump], tmp_path / "t", vocab_size=300)
    there = (tokenizer_folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "t" / "tokenizer.json").read_bytes() == there
    report = inspect_tokenizer(load_tokenizer(tokenizer_folder), [dump])
    assert report.unknown_rate == 0


def test_workers_keep_the_order(dump, corpus):
    texts = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    assert documents(dump, size=2000, workers=2) == texts
    assert documents(corpus, dump, size=2000, workers=2) == texts * 2
