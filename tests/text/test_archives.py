"""Archives: tar in any compression, zip, archives in archives, and damage that names the member."""

import bz2
import gzip
import io
import json
import lzma
import os
import random
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.text import readers
from electra.text.inspect import inspect_tokenizer
from electra.text.prepare import Summary
from electra.text.readers import read_chunks
from electra.text.tokenizer import load_tokenizer, train_tokenizer

# The second has a blank line: a text file in an archive is one document.
DOCUMENTS = ["Första raden.\nZweite Zeile.", "Ένα\n\nδύο", "第三の文書"]
MEMBERS = {f"owt/{i:07}-a.txt": text.encode() for i, text in enumerate(DOCUMENTS)}


def documents(*inputs: object, **options: object) -> list[str]:
    return [d for chunk in read_chunks([str(i) for i in inputs], **options) for d in chunk]


def tar(members: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def compress(ending: str, data: bytes) -> bytes:
    if ending == ".zst":
        return pytest.importorskip("pyarrow").compress(data, codec="zstd", asbytes=True)
    codecs = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
    return codecs.get(ending, bytes)(data)


def save(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.tar", ""),
        ("a.tar.gz", ".gz"),
        ("a.tgz", ".gz"),
        ("a.TAR.XZ", ".xz"),
        ("a.txz", ".xz"),
        ("a.tar.bz2", ".bz2"),
        ("a.tbz2", ".bz2"),
        ("a.tar.zst", ".zst"),
        ("urlsf_subset00-1_data.xz", ".xz"),
        ("no-ending", ""),
    ],
)
def test_tar_in_any_compression(tmp_path, name, ending):
    path = save(tmp_path / name, compress(ending, tar(MEMBERS)))
    seen: list[int] = []
    assert documents(path, on_bytes=seen.append) == DOCUMENTS
    assert sum(seen) == path.stat().st_size
    assert documents(tmp_path) == DOCUMENTS


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar_formats_with_long_names(tmp_path, form):
    name = "folder/" * 20 + "ö" * 40 + ".jsonl"
    path = save(tmp_path / "a.tar", tar({name: b'{"text": "one"}', "b.txt": b"two"}, form))
    assert documents(path) == ["one", "two"]


def test_tar_without_magic_is_found_by_its_checksum(tmp_path):
    data = bytearray(tar(MEMBERS, tarfile.USTAR_FORMAT))
    data[257:265] = bytes(8)  # the format of 1979
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 8 * 32 + sum(data[156:512]))
    assert documents(save(tmp_path / "old", bytes(data))) == DOCUMENTS


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_zip(tmp_path, method):
    path = save(tmp_path / "a.zip", zipped({"owt/": b"", **MEMBERS}, method))
    seen: list[int] = []
    assert documents(path, on_bytes=seen.append) == DOCUMENTS
    assert sum(seen) == path.stat().st_size
    assert min(seen) > 0


@pytest.mark.parametrize(("pack", "name"), [(tar, "a.tar"), (zipped, "a.zip")])
def test_members_are_read_by_their_ending(tmp_path, pack, name):
    members = {
        "./a.jsonl": b'{"text": "one"}\n{"text": "two"}\n',
        "b/b.csv": b"id,text\n1,three\n",
        "b/c.tsv": b"text\tid\nfour\t1\n",
        "d.txt.gz": gzip.compress(b"five"),
        "../e.jsonl.xz": lzma.compress(b'{"text": "six"}'),
        "AA/wiki_00": b'<doc id="1" url="u" title="t">\nseven\n</doc>\n',
        "empty.txt": b"",
        ".git/config": b"\0",
        "__MACOSX/._a.jsonl": b"\0",
    }
    expected = ["one", "two", "three", "four", "five", "six", "seven"]
    assert documents(save(tmp_path / name, pack(members))) == expected


def test_archives_in_an_archive(tmp_path):
    """The download of OpenWebText is a tar of compressed tars."""
    inner = {f"openwebtext/{i}_data.xz": compress(".xz", tar({"a.txt": i.encode()})) for i in "01"}
    assert documents(save(tmp_path / "a.tar.xz", compress(".xz", tar(inner)))) == ["0", "1"]
    assert documents(save(tmp_path / "b.zip", zipped(inner))) == ["0", "1"]
    nested = save(tmp_path / "c.tar", tar({"a.zip": zipped(MEMBERS)}))
    with pytest.raises(UserError, match=r"c\.tar:a\.zip' is a zip archive in an archive"):
        documents(nested)


def test_links_and_folders_are_skipped(tmp_path):
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "a.txt", b"one")
    (tmp_path / "in" / "b.txt").symlink_to("a.txt")
    os.link(tmp_path / "in" / "a.txt", tmp_path / "in" / "c.txt")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "in")
    assert documents(tmp_path / "a.tar") == ["one"]


def test_archives_one_after_the_other(tmp_path):
    data = tar({"a.txt": b"one"}) + tar({"b.txt": b"two"})
    assert documents(save(tmp_path / "a.tar", data)) == ["one", "two"]


def test_long_text_files_are_split_at_blank_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MAX_DOCUMENT_CHARS", 100)
    short, long = "a\n\nb", "\n\n".join(f"number {i}" for i in range(20))
    path = save(tmp_path / "a.tar", tar({"a.txt": short.encode(), "b.txt": long.encode()}))
    assert documents(path) == [short, *long.split("\n\n")]


def test_tar_through_a_pipe(tmp_path, piped):
    assert documents(piped(tar(MEMBERS))) == DOCUMENTS


def test_zip_through_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.zip")
    with pytest.raises(UserError, match="is a pipe, zip needs a file: save it"):
        documents(tmp_path / "a.zip")


def test_archive_without_text(tmp_path):
    with pytest.raises(UserError, match=r"a\.tar' holds no text"):
        documents(save(tmp_path / "a.tar", tar({"a.txt": b" \n"})))
    with pytest.raises(UserError, match=r"b\.zip' holds no text"):
        documents(save(tmp_path / "b.zip", zipped({})))
    assert documents(tmp_path, save(tmp_path / "c.txt", b"one")) == ["one", "one"]


ENCRYPTED = bytearray(zipped({"x.txt": b"secret"}))
ENCRYPTED[ENCRYPTED.index(b"PK\1\2") + 8] |= 1  # the flag in the directory


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.tar", tar({"x.txt": b"caf\xe9"}), r"a\.tar:x\.txt' is not valid UTF-8 .*UTF-8 FILE`"),
        ("a.tar", tar({"x.jsonl": b"{}\n"}), r"a\.tar:x\.jsonl' line 1 has no field 'text'"),
        ("a.zip", zipped({"x.csv": b"a\n1\n"}), r"a\.zip:x\.csv' has no column 'text'"),
        ("a.tar", tar({"x.png": b"\x89PNG"}), r"a\.tar:x\.png' .* a PNG image"),
        ("a.zip", zipped({"x.docx": b"PK\3\4"}), "x.docx' .* an office document"),
        ("a.zip", zipped({"x.parquet": b"PAR1"}), "x.parquet' is a parquet file in an archive"),
        ("a.tar", tar({"x\ny.jsonl": b"3"}), "a.tar:x\ufffdy.jsonl' line 1"),
        ("a.zip", bytes(ENCRYPTED), r"a\.zip:x\.txt' is encrypted"),
        ("a.tar", gzip.compress(tar({}), mtime=0), r"a\.tar' .* gzip-compressed; give its name"),
        ("a.tar", b"text", r"a\.tar' is truncated or damaged at its beginning"),
        ("a.tar", b"", r"a\.tar' is truncated or damaged at its beginning \(the end of the"),
        ("a.zip", b"text", r"a\.zip' is truncated or damaged \(File is not a zip file\)"),
        ("a.txt", b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    ],
)  # fmt: skip
def test_errors_name_the_archive_and_the_member(tmp_path, name, data, message):
    with pytest.raises(UserError, match=message) as caught:
        documents(save(tmp_path / name, data))
    assert "\n" not in str(caught.value)


def many(count: int = 60) -> dict[str, bytes]:
    dice = random.Random(1)
    return {f"{i:03}.txt": dice.randbytes(3000).hex().encode() for i in range(count)}


@pytest.mark.parametrize("ending", ["", ".gz", ".xz", ".zst"])
def test_truncated_tar_names_the_member(tmp_path, ending):
    """Text in front of the damage is read, so that the error names the right member."""
    data = compress(ending, tar(many()))
    path = save(tmp_path / f"a.tar{ending}", data[: len(data) * 2 // 3])
    with pytest.raises(UserError, match=r"a\.tar.*truncated or damaged") as caught:
        documents(path)
    near = range(25, 43) if ending == ".zst" else range(38, 43)  # zstd loses a piece
    assert any(f"{i:03}.txt'" in str(caught.value) for i in near)


def test_truncated_bz2_of_one_block_is_damaged_at_its_beginning(tmp_path):
    data = compress(".bz2", tar(many()))
    with pytest.raises(UserError, match=r"truncated or damaged"):
        documents(save(tmp_path / "a.tar.bz2", data[: len(data) // 2]))


def test_tar_cut_between_members_is_damaged(tmp_path):
    """`tarfile` takes this, and a header that is damaged, for the end."""
    members = {"a.txt": b"one", "b.txt": b"two"}
    data = tar(members, tarfile.USTAR_FORMAT)
    path = save(tmp_path / "a.tar", data[:1024])
    with pytest.raises(UserError, match=r"after the member 'a.txt' \(the end of the archive is"):
        documents(path)
    save(path, data[:1200])
    with pytest.raises(UserError, match=r"after the member 'a.txt' \(truncated header"):
        documents(path)
    save(path, data[:1030] + b"?" + data[1031:])
    with pytest.raises(UserError, match=r"after the member 'a.txt' \(bad checksum"):
        documents(path)


def test_wrong_checksums(tmp_path):
    data = bytearray(zipped({"a.txt": b"one", "b.txt": b"two" * 9}, zipfile.ZIP_STORED))
    data[data.index(b"twotwo")] ^= 1
    with pytest.raises(UserError, match=r"a\.zip:b\.txt' is truncated or damaged \(Bad CRC-32"):
        documents(save(tmp_path / "a.zip", bytes(data)))
    packed = bytearray(gzip.compress(tar(MEMBERS)))
    packed[-6] ^= 1  # the checksum at the end, after the last member
    with pytest.raises(UserError, match=r"a\.tgz' is truncated or damaged .*CRC check failed"):
        documents(save(tmp_path / "a.tgz", bytes(packed)))


@pytest.mark.parametrize("where", [0, -1])
def test_damaged_name_in_a_zip(tmp_path, where):
    """In the header of the member, and in the directory at the end."""
    data = zipped({"é.txt": b"one"})
    start = data.find("é".encode()) if where == 0 else data.rfind("é".encode())
    data = data[:start] + b"\xff" + data[start + 1 :]
    with pytest.raises(UserError, match=r"a\.zip.* is truncated or damaged"):
        documents(save(tmp_path / "a.zip", data))


@pytest.mark.parametrize("pack", [tar, zipped])
def test_any_damage_is_one_sentence(tmp_path, pack):
    """Every byte sequence is text or a `UserError`, never another exception."""
    whole = pack({"a" * 120 + ".txt": b"one", "b.jsonl": b'{"text": "two"}'})
    dice = random.Random(0)
    errors = []
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            data[dice.randrange(min(len(data), 3500))] = dice.randrange(256)
        data = data[: dice.choice([len(data), dice.randrange(len(data))])]
        path = save(tmp_path / ("a.tar" if pack is tar else "a.zip"), bytes(data))
        try:
            documents(path)
        except UserError as error:
            errors.append(str(error))
    assert len(errors) > 100
    assert not any("\n" in error for error in errors)


def test_constant_memory_for_many_members(tmp_path):
    """Neither the members nor their headers are kept."""

    def peak(count: int) -> int:
        path = tmp_path / f"{count}.tar"
        path.write_bytes(tar({f"{i:06}.txt": b"some text" for i in range(count)}))
        tracemalloc.start()
        found = sum(len(chunk) for chunk in read_chunks([path], size=1000))
        _, top = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found == count
        return top

    peak(100)  # imports
    assert peak(9000) < peak(3000) + 300_000


def test_constant_memory_for_a_large_member(tmp_path):
    text = ("word " * 199 + "\n\n") * 40_000  # 40 MB
    path = save(tmp_path / "a.tar.gz", gzip.compress(tar({"a.txt": text.encode()}), 1))
    del text
    tracemalloc.start()
    found = sum(len(chunk) for chunk in read_chunks([path], size=1_000_000))
    _, top = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == 40_000
    assert top < 16_000_000


def test_archives_give_the_shards_of_plain_files(run, corpus, tmp_path, read_files):
    texts = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    members = {f"{i:05}.txt": text.encode() for i, text in enumerate(texts)}
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    blocks = "".join(f'<doc id="{i}" url="" title="a">\n{t}\n</doc>\n' for i, t in enumerate(texts))
    inputs = {
        "owt_data.xz": compress(".xz", tar(members)),
        "a.tar": tar(members),
        "a.zip": zipped(members),
        "b.zip": zipped({"all.jsonl": lines}),
        "wiki_00": blocks.encode(),
        "c.tgz": gzip.compress(tar({"AA/wiki_00": blocks.encode()})),
    }
    run("plain")
    plain = read_files(tmp_path / "plain")
    del plain["index.json"]  # which names the input
    for number, (name, data) in enumerate(inputs.items()):
        run(str(number), inputs=[save(tmp_path / name, data)], workers=1 + number % 2)
        found = read_files(tmp_path / str(number))
        del found["index.json"]
        assert found == plain, name


@pytest.mark.parametrize("name", ["a.tar.xz", "a.zip"])
def test_resume_and_progress(run, corpus, tmp_path, read_files, stopping, monkeypatch, name):
    texts = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    members = {f"{i:05}.txt": text.encode() for i, text in enumerate(texts)}
    data = zipped(members) if name == "a.zip" else compress(".xz", tar(members))
    path = save(tmp_path / name, data)
    run("whole", inputs=[path])
    with monkeypatch.context() as patch:
        patch.setattr("electra.text.encode.encode_chunk", stopping(2))
        with pytest.raises(KeyboardInterrupt):
            run("resumed", inputs=[path])
    states: list[Summary] = []
    assert run("resumed", inputs=[path], progress=states.append).skipped == 2
    assert read_files(tmp_path / "resumed") == read_files(tmp_path / "whole")
    assert states[-1].read_bytes == states[-1].total_bytes == len(data)
    assert run("resumed", inputs=[path]).already
    os.utime(path, (1, 1))
    with pytest.raises(UserError, match="other versions of these files"):
        run("resumed", inputs=[path])


def test_damaged_archive_leaves_nothing_behind(run, tmp_path):
    data = compress(".xz", tar(many(5)))
    path = save(tmp_path / "a_data.xz", data[: len(data) // 2])
    with pytest.raises(UserError, match=r"a_data\.xz.* is truncated or damaged"):
        run(inputs=[path])
    assert not (tmp_path / "shards").exists()


def test_tokenizer_of_an_archive(corpus, tmp_path, tokenizer_folder):
    texts = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    members = {f"{i:05}.txt": text.encode() for i, text in enumerate(texts)}
    path = save(tmp_path / "a.tar.gz", gzip.compress(tar(members)))
    train_tokenizer([path], tmp_path / "t", vocab_size=300)
    there = (tokenizer_folder / "tokenizer.json").read_bytes()
    assert (tmp_path / "t" / "tokenizer.json").read_bytes() == there
    tokenizer = load_tokenizer(tokenizer_folder)
    assert inspect_tokenizer(tokenizer, [path]) == inspect_tokenizer(tokenizer, [corpus])


def test_archives_in_too_many_others_are_refused(tmp_path):
    content = tar({"a.txt": b"text"})
    for _ in range(3):
        content = tar({"inner.tar": content})
    assert documents(save(tmp_path / "a.tar", content)) == ["text"]
    for _ in range(50):
        content = tar({"inner.tar": content})
    with pytest.raises(UserError, match="is an archive in 5 others"):
        documents(save(tmp_path / "b.tar", content))


@pytest.mark.parametrize(("kind", "size"), [(b"L", 10**10), (b"x", 10**10), (b"0", -512)])
def test_headers_that_would_fill_the_memory_are_refused(tmp_path, kind, size):
    header = tarfile.TarInfo("a.txt")
    header.type, header.size = kind, size
    content = header.tobuf(tarfile.GNU_FORMAT) + bytes(10_000)
    with pytest.raises(UserError, match="truncated or damaged"):
        documents(save(tmp_path / "a.tar", content))


def test_a_zip_member_without_a_name_is_skipped(tmp_path):
    content = zipped({"a.txt": b"text", "b": b"other"}, zipfile.ZIP_STORED)
    central = content.rindex(b"PK\x01\x02")
    content = content[: central + 28] + b"\0\0" + content[central + 30 :]  # the name's length
    with pytest.raises(UserError, match="truncated or damaged"):
        documents(save(tmp_path / "a.zip", content))
