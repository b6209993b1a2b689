"""The shard folder: what is refused, how a run resumes, and what the index records."""

import errno
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from electra import files
from electra.errors import UserError
from electra.text import encode
from electra.text.shards import Shards
from electra.text.tokenizer import load_tokenizer

CHUNK = 20_000


def test_finished_folder_is_unchanged(run, tmp_path):
    first = run()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "shards").rglob("*")}
    again = run()
    assert again.already
    assert (again.rows, again.tokens, again.padding) == (first.rows, first.tokens, first.padding)
    assert again.held_out_rows == first.held_out_rows
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "shards").rglob("*")} == before


def test_other_options_are_refused(run, tmp_path, read_files):
    run()
    before = read_files(tmp_path / "shards")
    for change, named in (
        ({"length": 64}, "length 32 there, 64 here"),
        ({"layout": "packed"}, "layout"),
        ({"seed": 5}, "seed"),
        ({"held_out": 0.5}, "held_out"),
    ):
        with pytest.raises(UserError, match=named):
            run(**change)
    assert read_files(tmp_path / "shards") == before


def test_changed_input_of_a_finished_folder_is_refused(run, tmp_path, make_text, read_files):
    text = tmp_path / "text.txt"
    text.write_text(make_text(30))
    run(inputs=[text])
    before = read_files(tmp_path / "shards")
    text.write_text(make_text(31))
    with pytest.raises(UserError, match="other versions of these files"):
        run(inputs=[text])
    assert read_files(tmp_path / "shards") == before


def test_input_that_changes_while_read_is_refused(run, tmp_path, make_text, read_files):
    """Running the same command again prepares the text as it is then."""
    text = tmp_path / "text.txt"
    text.write_text(make_text(300))

    def cut(state):
        if state.documents:
            os.truncate(text, 100_000)

    with pytest.raises(UserError, match="changed while it was read"):
        run(inputs=[text], progress=cut)
    assert not (tmp_path / "shards" / "index.json").exists()
    run(inputs=[text])
    run("fresh", inputs=[text])
    assert read_files(tmp_path / "shards") == read_files(tmp_path / "fresh")


def test_file_name_that_is_not_utf8(run, tmp_path, corpus):
    folder = tmp_path / "text"
    folder.mkdir()
    try:
        shutil.copy(corpus, folder / "caf\udce9.txt")
    except (OSError, UnicodeError):
        pytest.skip("this file system takes no such name")
    run(inputs=[folder])
    index = json.loads((tmp_path / "shards" / "index.json").read_text(encoding="utf-8"))
    assert [s["name"] for s in index["sources"]] == [str(folder / "caf\udce9.txt")]
    assert run(inputs=[folder]).already


def test_folder_with_other_files_is_refused(run, tmp_path, read_files):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "thesis.doc").write_text("precious")
    with pytest.raises(UserError, match=r"holds other files \('thesis\.doc'\)"):
        run()
    assert read_files(tmp_path / "shards") == {"thesis.doc": b"precious"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        run("file")


def test_interrupted_run_resumes(run, tmp_path, monkeypatch, read_files, stopping):
    """The result has the same bytes, and finished shards are not encoded again."""
    run("whole")
    real, calls = encode.encode_chunk, []
    for stop in (0, 1, 3):
        monkeypatch.setattr(encode, "encode_chunk", stopping(stop))
        with pytest.raises(KeyboardInterrupt):
            run(f"cut{stop}")
        assert not (tmp_path / f"cut{stop}" / "index.json").exists()
        monkeypatch.setattr(encode, "encode_chunk", lambda *a: (calls.append(a[2]), real(*a))[1])
        calls.clear()
        assert run(f"cut{stop}").skipped == stop
        assert stop == min(calls)
        assert read_files(tmp_path / f"cut{stop}") == read_files(tmp_path / "whole")


def test_damaged_journal_and_shard_are_redone(run, tmp_path, monkeypatch, read_files, stopping):
    run("whole")
    with monkeypatch.context() as patch:
        patch.setattr(encode, "encode_chunk", stopping(3))
        with pytest.raises(KeyboardInterrupt):
            run()
    journal = tmp_path / "shards" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])  # the third record is cut
    shard = tmp_path / "shards" / "shard-00000.bin"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    (tmp_path / "shards" / "shard-00001.bin.77.tmp").write_bytes(b"left over")
    (tmp_path / "shards" / "shard-00099.bin").write_bytes(b"of a longer text")
    assert run().skipped == 1
    assert read_files(tmp_path / "shards") == read_files(tmp_path / "whole")


def test_text_repaired_before_resuming(run, tmp_path, monkeypatch, make_text, read_files):
    """Only the chunks that changed are encoded again."""
    text = tmp_path / "text.txt"
    good = make_text(200)
    text.write_bytes(good[:60_000].encode() + b"\xff" + good[60_000:].encode())
    monkeypatch.setattr("electra.text.sources.BLOCK", 8192)
    with pytest.raises(UserError, match="not valid UTF-8"):
        run(inputs=[text])
    text.write_text(good)
    assert run(inputs=[text]).skipped >= 1
    run("fresh", inputs=[text])
    assert read_files(tmp_path / "shards") == read_files(tmp_path / "fresh")


def test_changed_chunk_is_redone(run, tmp_path, monkeypatch, corpus, read_files, stopping):
    text, real = tmp_path / "text.txt", encode.encode_chunk
    text.write_bytes(corpus.read_bytes())
    monkeypatch.setattr(encode, "encode_chunk", stopping(2))
    with pytest.raises(KeyboardInterrupt):
        run(inputs=[text])
    first, rest = text.read_bytes()[:60], text.read_bytes()[60:]
    text.write_bytes(first.translate(bytes.maketrans(b"aeiou", b"eioua")) + rest)
    monkeypatch.setattr(encode, "encode_chunk", real)
    assert run(inputs=[text]).skipped == 1
    run("fresh", inputs=[text])
    assert read_files(tmp_path / "shards") == read_files(tmp_path / "fresh")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_resumes_to_the_same_bytes(
    start, tmp_path, workers, stop, read_files, wait_for_shards
):
    process = start("cut", workers, start_new_session=True)
    wait_for_shards(tmp_path / "cut", 3)
    os.killpg(process.pid, stop)
    process.communicate()
    assert process.returncode != 0
    assert not (tmp_path / "cut" / "index.json").exists()
    if stop == signal.SIGINT:
        assert not list((tmp_path / "cut").glob("*.tmp"))
    for out in ("cut", "whole"):
        assert start(out, 2).wait() == 0
    assert read_files(tmp_path / "cut") == read_files(tmp_path / "whole")


def test_full_disk_is_reported_and_the_run_resumes(run, tmp_path, monkeypatch, read_files):
    run("whole")
    left = [40_000]
    real = Path.open

    class Full:
        """A file on an almost full disk."""

        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            left[0] -= len(data)
            if left[0] < 0:
                self.file.write(data[:10])
                raise OSError(errno.ENOSPC, "No space left on device")
            return self.file.write(data)

    def small_disk(path, mode="r", *args, **options):
        file = real(path, mode, *args, **options)
        return Full(file) if "w" in mode else file

    monkeypatch.setattr(files.Path, "open", small_disk)
    with pytest.raises(UserError, match=r"The disk is full.*run the same command again"):
        run()
    assert not list((tmp_path / "shards").glob("*.tmp"))
    left[0] = 10**9
    assert run().skipped > 0
    assert read_files(tmp_path / "shards") == read_files(tmp_path / "whole")


@pytest.mark.parametrize("workers", [1, 2])
def test_file_size_limit_is_reported(start, tmp_path, workers):
    """The operating system refuses to write, in this process and in workers."""
    import resource

    process = start(
        "small",
        workers,
        chunk=500_000,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    _, errors = process.communicate(timeout=30)
    assert b"UserError: The disk is full" in errors
    assert not (tmp_path / "small").exists()  # nothing was finished, nothing is left


def test_concurrent_runs_are_refused(start, tmp_path, wait_for_shards):
    process = start("busy", 1)
    wait_for_shards(tmp_path / "busy", 1)
    process.send_signal(signal.SIGSTOP)  # or it could be done before the second one has started
    second = start("busy", 1)
    _, errors = second.communicate(timeout=20)
    process.send_signal(signal.SIGCONT)
    assert b"Another `electra prepare` is writing" in errors
    assert process.wait() == 0


def test_index_records_the_sources(run, corpus, tmp_path):
    run()
    index = json.loads((tmp_path / "shards" / "index.json").read_text())
    assert index["sources"][0]["name"] == str(corpus)
    assert index["totals"]["lost_tokens"] == 0
    assert index["held_out"] == 0.01
    tokenizer = load_tokenizer(tmp_path / "shards" / "tokenizer")
    assert tokenizer.get_vocab_size() == index["vocabulary_size"]


def test_existing_folder_stays_if_nothing_was_written(run, tmp_path):
    (tmp_path / "tiny.txt").write_text("kari")
    (tmp_path / "shards").mkdir()
    with pytest.raises(UserError, match="add text"):
        run(inputs=[tmp_path / "tiny.txt"])
    assert list((tmp_path / "shards").iterdir()) == []


def test_finished_folder_gives_the_same_summary(run, tmp_path, corpus):
    """Also with a chunk that has no tokens and therefore no shard."""
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("\u200b" * CHUNK, encoding="utf-8")
    fresh, again = (run(inputs=[corpus, nothing, nothing, corpus]) for _ in range(2))
    assert fresh.shards == len(list((tmp_path / "shards").glob("*.bin")))
    ignored = {"seconds": 0.0, "already": True, "read_bytes": 0, "total_bytes": None}
    assert again == replace(fresh, **ignored)


def test_tiny_corpus_has_both_splits(run, tmp_path):
    text = tmp_path / "tiny.txt"
    text.write_text("kari\n\ntomen\n\nsulva")
    for fraction in (1e-9, 0.999999):
        summary = run(f"t{fraction}", inputs=[text], held_out=fraction)
        shards = Shards.open(tmp_path / f"t{fraction}")
        assert summary.held_out_rows == shards.rows("held_out") >= 1
        assert shards.rows("train") >= 1
        assert summary.rows == 3


def test_too_little_text_leaves_no_folder(run, tmp_path):
    text = tmp_path / "tiny.txt"
    text.write_text("kari")
    with pytest.raises(UserError, match=r"gives 1 sequence of 32 tokens.*add text"):
        run(inputs=[text])
    assert not (tmp_path / "shards").exists()


def test_pipe_into_a_finished_folder_is_refused(run, piped, corpus, tmp_path, read_files):
    run(inputs=[piped(corpus.read_bytes())])
    before = read_files(tmp_path / "shards")
    with pytest.raises(UserError, match=r"is already prepared.*pipe.*cannot be compared"):
        run(inputs=[tmp_path / "pipe"])
    assert read_files(tmp_path / "shards") == before


def test_interrupted_pipe_resumes_with_the_same_text(
    run, piped, corpus, tmp_path, monkeypatch, read_files, stopping
):
    """Chunks are compared by their text; other text is encoded again."""
    run("whole")
    real, data = encode.encode_chunk, corpus.read_bytes()
    for text, skipped in ((data, 2), (data.swapcase(), 0)):
        monkeypatch.setattr(encode, "encode_chunk", stopping(2))
        with pytest.raises(KeyboardInterrupt):
            run(f"cut{skipped}", inputs=[piped(data)])
        monkeypatch.setattr(encode, "encode_chunk", real)
        assert run(f"cut{skipped}", inputs=[piped(text)]).skipped == skipped
    cut, whole = read_files(tmp_path / "cut2"), read_files(tmp_path / "whole")
    del cut["index.json"], whole["index.json"]
    assert cut == whole


def test_a_disk_without_room_for_the_folder_is_named(run, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("electra.text.shard_writer.make_folder", full)
    with pytest.raises(UserError, match="cannot be created: the disk is full"):
        run()
