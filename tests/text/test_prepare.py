"""Preparation: repeatable, resumable, careful with what is there."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from electra import files
from electra.errors import UserError
from electra.text import encode, readers
from electra.text import prepare as module
from electra.text.prepare import prepare, prepare_warnings
from electra.text.shards import Shards
from electra.text.tokenizer import load_tokenizer

CHUNK = 20_000


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several shards from little text."""
    defaults = readers.read_chunks.__kwdefaults__
    monkeypatch.setattr(readers.read_chunks, "__kwdefaults__", defaults | {"size": CHUNK})


@pytest.fixture
def run(corpus, tokenizer_folder, tmp_path):
    """prepare() with the usual arguments."""

    def run(out="shards", inputs=(corpus,), **options):
        options = {"tokenizer": tokenizer_folder, "length": 32, "workers": 1} | options
        return prepare(list(inputs), out=tmp_path / out, **options)

    return run


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


def rows_of(folder: Path) -> dict[str, np.ndarray]:
    shards = Shards.open(folder)
    return {s: shards.gather(s, np.arange(shards.rows(s))) for s in ("train", "held_out")}


@pytest.mark.parametrize("layout", ["pairs", "packed"])
def test_rows_hold_the_text(run, corpus, tokenizer_folder, tmp_path, layout):
    """All tokens of all documents are there, in order."""
    summary = run(layout=layout, held_out=0.1)
    tokenizer = load_tokenizer(tokenizer_folder)
    documents = corpus.read_text(encoding="utf-8").strip().split("\n\n")

    def ids_of(document):
        lines = tokenizer.encode_batch(document.split("\n"), add_special_tokens=False)
        return [i for line in lines for i in line.ids]

    expected = [ids_of(document) for document in documents]
    rows = rows_of(tmp_path / "shards")
    ids = np.concatenate([rows["held_out"], rows["train"]])[:, :32]
    flat = ids[~np.isin(ids, (0, 2, 3))]
    assert len(flat) == sum(map(len, expected)) == summary.text_tokens
    assert sorted(flat.tolist()) == sorted(i for d in expected for i in d)
    assert summary.documents == len(documents)
    assert summary.lost_tokens == 0
    assert summary.rows == len(ids)
    if layout == "packed":
        assert summary.padding < 0.1
    else:
        joined = ",".join(map(str, flat)) + ","
        assert all(",".join(map(str, d)) + "," in joined for d in expected)


def test_same_bytes_for_any_number_of_workers(run, tmp_path):
    for workers in (1, 2, 3):
        run(f"w{workers}", workers=workers)
    one, two, three = (content(tmp_path / f"w{w}") for w in (1, 2, 3))
    assert len([name for name in one if name.endswith(".bin")]) > 3
    assert one == two == three


def test_seed_and_options_change_the_rows(run, tmp_path):
    run("a", seed=1)
    run("b", seed=2)
    a, b = content(tmp_path / "a"), content(tmp_path / "b")
    assert a["shard-00000.bin"] != b["shard-00000.bin"]


def test_finished_target_is_untouched(run, tmp_path):
    first = run()
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "shards").rglob("*")}
    again = run()
    assert again.already
    assert (again.rows, again.tokens, again.padding) == (first.rows, first.tokens, first.padding)
    assert again.held_out_rows == first.held_out_rows
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "shards").rglob("*")} == before


def test_other_requests_are_refused(run, tmp_path):
    run()
    before = content(tmp_path / "shards")
    for change, named in (
        ({"length": 64}, "length 32 there, 64 here"),
        ({"layout": "packed"}, "layout"),
        ({"seed": 5}, "seed"),
        ({"held_out": 0.5}, "held_out"),
    ):
        with pytest.raises(UserError, match=named):
            run(**change)
    assert content(tmp_path / "shards") == before


def test_changed_input_is_refused_once_finished(run, tmp_path, make_text):
    text = tmp_path / "text.txt"
    text.write_text(make_text(30))
    run(inputs=[text])
    before = content(tmp_path / "shards")
    text.write_text(make_text(31))
    with pytest.raises(UserError, match="other versions of these files"):
        run(inputs=[text])
    assert content(tmp_path / "shards") == before


def test_input_that_changes_meanwhile_is_refused(run, tmp_path, make_text):
    """Not given out as whole; the same command then takes the text as it is."""
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
    assert content(tmp_path / "shards") == content(tmp_path / "fresh")


def test_a_file_whose_name_is_not_utf8(run, tmp_path, corpus):
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


def test_foreign_files_are_refused(run, tmp_path):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "thesis.doc").write_text("precious")
    with pytest.raises(UserError, match=r"holds other files \('thesis\.doc'\)"):
        run()
    assert content(tmp_path / "shards") == {"thesis.doc": b"precious"}
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        run("file")


def stopping(at):
    """`encode_chunk`, with Ctrl-C at a chunk."""
    real = encode.encode_chunk

    def broken(job, tokenizer, number, documents):
        if number == at:
            raise KeyboardInterrupt
        return real(job, tokenizer, number, documents)

    return broken


def test_stopped_run_goes_on(run, tmp_path, monkeypatch):
    """Broken off at each shard: the same bytes, and finished shards are not done again."""
    run("whole")
    real, calls = encode.encode_chunk, []
    for stop in (0, 1, 3):
        monkeypatch.setattr(module, "encode_chunk", stopping(stop))
        with pytest.raises(KeyboardInterrupt):
            run(f"cut{stop}")
        assert not (tmp_path / f"cut{stop}" / "index.json").exists()
        monkeypatch.setattr(module, "encode_chunk", lambda *a: (calls.append(a[2]), real(*a))[1])
        calls.clear()
        assert run(f"cut{stop}").skipped == stop
        assert stop == min(calls)
        assert content(tmp_path / f"cut{stop}") == content(tmp_path / "whole")


def test_torn_journal_and_damaged_shard_are_redone(run, tmp_path, monkeypatch):
    run("whole")
    monkeypatch.setattr(module, "encode_chunk", stopping(3))
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()
    defaults = readers.read_chunks.__kwdefaults__
    monkeypatch.setattr(readers.read_chunks, "__kwdefaults__", defaults | {"size": CHUNK})
    journal = tmp_path / "shards" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-20])  # the third record is cut
    shard = tmp_path / "shards" / "shard-00000.bin"
    shard.write_bytes(b"x" + shard.read_bytes()[1:])
    (tmp_path / "shards" / "shard-00001.bin.77.tmp").write_bytes(b"left over")
    (tmp_path / "shards" / "shard-00099.bin").write_bytes(b"of a longer text")
    assert run().skipped == 1
    assert content(tmp_path / "shards") == content(tmp_path / "whole")


def test_text_changed_between_the_runs(run, tmp_path, monkeypatch, make_text):
    """An unfinished folder goes on with repaired text: only what changed is done again."""
    text = tmp_path / "text.txt"
    good = make_text(200)
    text.write_bytes(good[:60_000].encode() + b"\xff" + good[60_000:].encode())
    monkeypatch.setattr("electra.text.sources.BLOCK", 8192)
    with pytest.raises(UserError, match="not valid UTF-8"):
        run(inputs=[text])
    text.write_text(good)
    assert run(inputs=[text]).skipped >= 1
    run("fresh", inputs=[text])
    assert content(tmp_path / "shards") == content(tmp_path / "fresh")


SCRIPT = """
import signal
import sys
from pathlib import Path
from electra.text import readers
from electra.text.prepare import prepare, prepare_warnings
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored when run in the background
    readers.read_chunks.__kwdefaults__["size"] = {chunk}
    prepare([sys.argv[1]], tokenizer=Path(sys.argv[2]), out=Path(sys.argv[3]), length=32,
            workers=int(sys.argv[4]))
"""


@pytest.fixture
def start(tmp_path, tokenizer_folder, make_text):
    """Start a preparation of a larger text in another process."""
    text = tmp_path / "large.txt"
    text.write_text(make_text(2000, seed=3))
    script = tmp_path / "script.py"

    def start(out, workers=1, chunk=CHUNK, **options):
        script.write_text(SCRIPT.format(chunk=chunk))
        command = [sys.executable, script, text, tokenizer_folder, tmp_path / out, workers]
        return subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, **options)

    return start


def wait_for_shards(folder: Path, count: int) -> None:
    for _ in range(2000):
        if len(list(folder.glob("*.bin"))) >= count:
            return
        time.sleep(0.005)
    raise AssertionError("no shards came")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_killed_run_goes_on_to_the_same_bytes(start, tmp_path, workers, stop):
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
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


def test_dead_worker_is_told(start, tmp_path):
    process = start("dead", 2)
    wait_for_shards(tmp_path / "dead", 2)
    process.send_signal(signal.SIGSTOP)  # or it could be done before the worker is dead
    children = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)],
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    workers = [int(line.split()[0]) for line in children if "spawn_main" in line]
    os.kill(workers[0], signal.SIGKILL)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert b"UserError: A worker process ended unexpectedly" in errors
    assert not list((tmp_path / "dead").glob("*.tmp"))
    assert start("dead", 1).wait() == 0


def test_full_disk_is_told_and_the_run_goes_on(run, tmp_path, monkeypatch):
    run("whole")
    left = [40_000]
    real = Path.open

    class Full:
        """A file on a disk with little room."""

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
    assert content(tmp_path / "shards") == content(tmp_path / "whole")


@pytest.mark.parametrize("workers", [1, 2])
def test_file_size_limit_is_told(start, tmp_path, workers):
    """The system's own refusal to write, in the process and in workers."""
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


def test_two_runs_at_once_are_refused(start, tmp_path):
    process = start("busy", 1)
    wait_for_shards(tmp_path / "busy", 1)
    process.send_signal(signal.SIGSTOP)  # or it could be done before the second one has started
    second = start("busy", 1)
    _, errors = second.communicate(timeout=20)
    process.send_signal(signal.SIGCONT)
    assert b"Another `electra prepare` is writing" in errors
    assert process.wait() == 0


def test_equal_documents_are_held_out_together(run, tmp_path, make_text):
    unique = make_text(100, seed=9).split("\n\n")
    text = tmp_path / "twice.txt"
    text.write_text("\n\n".join(unique + unique[::-1]))
    run(inputs=[text], held_out=0.3)
    rows = rows_of(tmp_path / "shards")
    assert 0.15 < len(rows["held_out"]) / len(rows["train"]) < 0.9
    train, held = ({tuple(r[:-2]) for r in rows[s]} for s in ("train", "held_out"))
    assert held
    assert train
    assert not held & train


def test_held_out_follows_the_fraction(run, tmp_path):
    text = tmp_path / "many.txt"
    text.write_text("\n\n".join(f"kari {i}" for i in range(5000)))
    summary = run(inputs=[text], held_out=0.1)
    assert summary.held_out_rows == pytest.approx(500, abs=80)
    assert run("none", inputs=[text], held_out=0.0).held_out_rows == 0


def test_tiny_corpus_still_has_both_splits(run, tmp_path):
    text = tmp_path / "tiny.txt"
    text.write_text("kari\n\ntomen\n\nsulva")
    for fraction in (1e-9, 0.999999):
        summary = run(f"t{fraction}", inputs=[text], held_out=fraction)
        shards = Shards.open(tmp_path / f"t{fraction}")
        assert summary.held_out_rows == shards.rows("held_out") >= 1
        assert shards.rows("train") >= 1
        assert summary.rows == 3


def test_documents_shorter_than_a_row_are_padded(run, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("\n\n".join(["kari tomen", "sul va pe"] * 20))
    run(inputs=[text])
    for rows in rows_of(tmp_path / "shards").values():
        assert np.all(rows[:, -1] < 32)
        assert all(np.all(row[row[-1] : 32] == 0) for row in rows)


def test_too_little_text_is_refused_and_leaves_nothing(run, tmp_path):
    text = tmp_path / "tiny.txt"
    text.write_text("kari")
    with pytest.raises(UserError, match=r"gives 1 sequence of 32 tokens.*add text"):
        run(inputs=[text])
    assert not (tmp_path / "shards").exists()


def test_special_tokens_in_the_text_are_text(run, tmp_path):
    text = tmp_path / "marks.txt"
    text.write_text("\n\n".join(["kari [SEP] tomen [MASK] sul [PAD]"] * 5))
    run(inputs=[text])
    for row in rows_of(tmp_path / "shards")["train"]:
        ids = row[: row[-1]].tolist()
        assert ids.count(3) == (1 if row[-2] == row[-1] else 2)
        assert 4 not in ids
        assert 0 not in ids


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 7}, "--length is 7: choose 8"),
        ({"length": 65_536}, "--length"),
        ({"held_out": 1.0}, "--held-out"),
        ({"workers": 0}, "--workers"),
        ({"seed": -1}, "--seed"),
        ({"layout": "dense"}, "choose pairs or packed"),
        ({"inputs": ["none.txt"]}, "no file or folder 'none.txt'"),
        ({"tokenizer": Path("none")}, "no tokenizer 'none'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(run, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(**options)
    assert not (tmp_path / "shards").exists()


def test_tokenizer_without_special_tokens_is_refused(run, tokenizer_folder, tmp_path):
    content = (tokenizer_folder / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace("[MASK]", "[HIDE]"))
    with pytest.raises(UserError, match=r"no \[MASK\] token"):
        run(tokenizer=tmp_path / "tokenizer.json")


def test_large_vocabularies_have_wider_ids(run, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(70_000))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"w{i} w1" for i in range(69_900, 70_000)))
    summary = run(inputs=[text], tokenizer=tmp_path / "tokenizer.json")
    assert Shards.open(tmp_path / "shards").dtype == "uint32"
    assert 5 + 69_999 in rows_of(tmp_path / "shards")["train"]
    assert summary.unknown == 0


def test_progress_reaches_the_end(run, corpus):
    states: list[module.Summary] = []
    summary = run(progress=states.append)
    assert states[-1].read_bytes == states[-1].total_bytes == corpus.stat().st_size
    assert states[-1].tokens == summary.tokens


def test_index_tells_where_the_data_came_from(run, corpus, tmp_path):
    run()
    index = json.loads((tmp_path / "shards" / "index.json").read_text())
    assert index["sources"][0]["name"] == str(corpus)
    assert index["totals"]["lost_tokens"] == 0
    assert index["held_out"] == 0.01
    tokenizer = load_tokenizer(tmp_path / "shards" / "tokenizer")
    assert tokenizer.get_vocab_size() == index["vocabulary_size"]


def test_a_recorded_chunk_whose_text_has_changed_is_done_again(run, tmp_path, monkeypatch, corpus):
    text, real = tmp_path / "text.txt", encode.encode_chunk
    text.write_bytes(corpus.read_bytes())
    monkeypatch.setattr(module, "encode_chunk", stopping(2))
    with pytest.raises(KeyboardInterrupt):
        run(inputs=[text])
    first, rest = text.read_bytes()[:60], text.read_bytes()[60:]
    text.write_bytes(first.translate(bytes.maketrans(b"aeiou", b"eioua")) + rest)
    monkeypatch.setattr(module, "encode_chunk", real)
    assert run(inputs=[text]).skipped == 1
    run("fresh", inputs=[text])
    assert content(tmp_path / "shards") == content(tmp_path / "fresh")


def test_a_folder_that_was_there_stays_when_nothing_was_done(run, tmp_path):
    (tmp_path / "tiny.txt").write_text("kari")
    (tmp_path / "shards").mkdir()
    with pytest.raises(UserError, match="add text"):
        run(inputs=[tmp_path / "tiny.txt"])
    assert list((tmp_path / "shards").iterdir()) == []


@pytest.mark.parametrize("value", ["true", None])
def test_the_environment_is_as_before(run, monkeypatch, value):
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    run()
    assert os.environ.get(name) == value


def test_the_size_of_a_dataset_of_the_hub_is_not_known(run, corpus, monkeypatch):
    class Datasets:
        @staticmethod
        def load_dataset(name, config, *, split, streaming):
            return iter([{"text": "kari tomen " * 30}])

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    states: list[module.Summary] = []
    run(inputs=[corpus, "hub:me/data"], progress=states.append)
    assert {state.total_bytes for state in states} == {None}


def test_a_finished_folder_gives_the_same_summary(run, tmp_path, corpus):
    """Also with a chunk that has no tokens, and so no shard."""
    nothing = tmp_path / "nothing.txt"
    nothing.write_text("\u200b" * CHUNK, encoding="utf-8")
    fresh, again = (run(inputs=[corpus, nothing, nothing, corpus]) for _ in range(2))
    assert fresh.shards == len(list((tmp_path / "shards").glob("*.bin")))
    told = {"seconds": 0.0, "already": True, "read_bytes": 0, "total_bytes": None}
    assert again == replace(fresh, **told)


def test_the_field_of_the_text_can_be_named(run, tmp_path, corpus):
    documents = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    lines = [json.dumps({"text": "kari", "body": document}) for document in documents]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    run("named", inputs=[tmp_path / "a.jsonl"], text_field="body")
    run("plain")
    named, plain = (rows_of(tmp_path / name) for name in ("named", "plain"))
    assert all(np.array_equal(named[split], plain[split]) for split in plain)


def test_unfinished_tokenizer_folder_is_refused(run, tokenizer_folder, tmp_path):
    """`tokenizer.json` is the last file to be written."""
    incomplete = shutil.copytree(tokenizer_folder, tmp_path / "incomplete")
    (incomplete / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="holds neither"):
        run(tokenizer=incomplete)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize(("share", "warned"), [(0.0, False), (0.004, False), (0.4, True)])
def test_many_unknown_tokens_are_a_warning(run, tmp_path, make_text, share, warned):
    lines = make_text(60).split("\n\n")
    words = sum(len(line.split()) for line in lines)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join([*lines, "ω " * int(share * words)]), encoding="utf-8")
    for _ in range(2):  # also when it is already prepared
        found = prepare_warnings(run(inputs=[text]), "text")
        assert [w.partition(":")[0] for w in found] == ["high unknown rate"] * warned


def test_records_without_text_are_counted(run, tmp_path):
    records = [None if i % 3 else "kari tomen sul" for i in range(900)]
    lines = [json.dumps({"text": text}) for text in (*records, "", " \n")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    summary = run(inputs=[tmp_path / "a.jsonl"])
    assert (summary.records, summary.empty_records) == (902, 602)
    (warning,) = prepare_warnings(summary, "text")
    assert "602 of 902 were skipped" in warning
    assert "--text-field" in warning


def test_parquet_rows_without_text_are_counted(run, tmp_path):
    arrow, parquet = (pytest.importorskip(name) for name in ("pyarrow", "pyarrow.parquet"))
    table = arrow.table({"text": ["kari tomen", None, None] * 300})
    parquet.write_table(table, tmp_path / "a.parquet")
    summary = run(inputs=[tmp_path / "a.parquet"])
    assert (summary.records, summary.empty_records) == (900, 600)


@pytest.fixture
def piped(tmp_path):
    """Write bytes to a named pipe from another thread."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write(data):
        with suppress(BrokenPipeError):
            path.write_bytes(data)

    def pipe(data):
        threading.Thread(target=write, args=(data,), daemon=True).start()
        return path

    return pipe


def test_pipe_gives_the_shards_of_a_file(run, piped, corpus, tmp_path):
    run("file")
    run("piped", inputs=[piped(corpus.read_bytes())])
    plain, through = (content(tmp_path / name) for name in ("file", "piped"))
    del plain["index.json"], through["index.json"]  # which name the input
    assert plain == through


def test_finished_folder_is_not_taken_for_what_a_pipe_brings(run, piped, corpus, tmp_path):
    run(inputs=[piped(corpus.read_bytes())])
    before = content(tmp_path / "shards")
    with pytest.raises(UserError, match=r"is already prepared.*pipe.*cannot be compared"):
        run(inputs=[tmp_path / "pipe"])
    assert content(tmp_path / "shards") == before


def test_interrupted_pipe_resumes_if_the_same_text_comes_again(
    run, piped, corpus, tmp_path, monkeypatch
):
    """Chunks are compared by their text; another text is prepared anew."""
    run("whole")
    real, data = encode.encode_chunk, corpus.read_bytes()
    for text, skipped in ((data, 2), (data.swapcase(), 0)):
        monkeypatch.setattr(module, "encode_chunk", stopping(2))
        with pytest.raises(KeyboardInterrupt):
            run(f"cut{skipped}", inputs=[piped(data)])
        monkeypatch.setattr(module, "encode_chunk", real)
        assert run(f"cut{skipped}", inputs=[piped(text)]).skipped == skipped
    cut, whole = content(tmp_path / "cut2"), content(tmp_path / "whole")
    del cut["index.json"], whole["index.json"]
    assert cut == whole


@pytest.mark.parametrize("after", [0.0, 0.2, 0.4, 0.6, None])
def test_workers_of_a_killed_process_exit_silently(start, tmp_path, after):
    process = start("cut", 2, chunk=1_000_000)
    if after is None:
        wait_for_shards(tmp_path / "cut", 1)
    else:
        time.sleep(after)  # while the workers start
    process.kill()
    _, errors = process.communicate(timeout=30)  # until the workers have closed it, too
    assert errors == b""
