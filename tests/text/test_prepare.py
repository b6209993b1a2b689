"""`prepare`: content of the shards, options, warnings and progress."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from electra.errors import UserError
from electra.text import prepare as module
from electra.text.inspect import inspect_tokenizer
from electra.text.prepare import prepare_warnings
from electra.text.shards import Shards
from electra.text.tokenizer import load_tokenizer


@pytest.mark.parametrize("layout", ["pairs", "packed"])
def test_rows_contain_all_tokens(run, corpus, tokenizer_folder, tmp_path, layout, read_rows):
    """All tokens of all documents are in the rows, in order."""
    summary = run(layout=layout, held_out=0.1)
    tokenizer = load_tokenizer(tokenizer_folder)
    documents = corpus.read_text(encoding="utf-8").strip().split("\n\n")

    def ids_of(document):
        lines = tokenizer.encode_batch(document.split("\n"), add_special_tokens=False)
        return [i for line in lines for i in line.ids]

    expected = [ids_of(document) for document in documents]
    rows = read_rows(tmp_path / "shards")
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


def test_same_bytes_for_any_number_of_workers(run, tmp_path, read_files):
    for workers in (1, 2, 3):
        run(f"w{workers}", workers=workers)
    one, two, three = (read_files(tmp_path / f"w{w}") for w in (1, 2, 3))
    assert len([name for name in one if name.endswith(".bin")]) > 3
    assert one == two == three


def test_seed_changes_the_rows(run, tmp_path, read_files):
    run("a", seed=1)
    run("b", seed=2)
    a, b = read_files(tmp_path / "a"), read_files(tmp_path / "b")
    assert a["shard-00000.bin"] != b["shard-00000.bin"]


def test_duplicate_documents_share_a_split(run, tmp_path, make_text, read_rows):
    unique = make_text(100, seed=9).split("\n\n")
    text = tmp_path / "twice.txt"
    text.write_text("\n\n".join(unique + unique[::-1]))
    run(inputs=[text], held_out=0.3)
    rows = read_rows(tmp_path / "shards")
    assert 0.15 < len(rows["held_out"]) / len(rows["train"]) < 0.9
    train, held = ({tuple(r[:-2]) for r in rows[s]} for s in ("train", "held_out"))
    assert held
    assert train
    assert not held & train


def test_held_out_share(run, tmp_path):
    text = tmp_path / "many.txt"
    text.write_text("\n\n".join(f"kari {i}" for i in range(5000)))
    summary = run(inputs=[text], held_out=0.1)
    assert summary.held_out_rows == pytest.approx(500, abs=80)
    assert run("none", inputs=[text], held_out=0.0).held_out_rows == 0


def test_short_documents_are_padded(run, tmp_path, read_rows):
    text = tmp_path / "short.txt"
    text.write_text("\n\n".join(["kari tomen", "sul va pe"] * 20))
    run(inputs=[text])
    for rows in read_rows(tmp_path / "shards").values():
        assert np.all(rows[:, -1] < 32)
        assert all(np.all(row[row[-1] : 32] == 0) for row in rows)


def test_special_tokens_in_documents_are_text(run, tmp_path, read_rows):
    text = tmp_path / "marks.txt"
    text.write_text("\n\n".join(["kari [SEP] tomen [MASK] sul [PAD]"] * 5))
    run(inputs=[text])
    for row in read_rows(tmp_path / "shards")["train"]:
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
def test_invalid_options_leave_no_folder(run, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        run(**options)
    assert not (tmp_path / "shards").exists()


def test_tokenizer_without_special_tokens_is_refused(run, tokenizer_folder, tmp_path):
    content = (tokenizer_folder / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(content.replace("[MASK]", "[HIDE]"))
    with pytest.raises(UserError, match=r"no \[MASK\] token"):
        run(tokenizer=tmp_path / "tokenizer.json")


def test_large_vocabulary_uses_uint32(run, tmp_path, read_rows):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(70_000))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"w{i} w1" for i in range(69_900, 70_000)))
    summary = run(inputs=[text], tokenizer=tmp_path / "tokenizer.json")
    assert Shards.open(tmp_path / "shards").dtype == "uint32"
    assert 5 + 69_999 in read_rows(tmp_path / "shards")["train"]
    assert summary.unknown == 0


def test_progress_reaches_the_end(run, corpus):
    states: list[module.Summary] = []
    summary = run(progress=states.append)
    assert states[-1].read_bytes == states[-1].total_bytes == corpus.stat().st_size
    assert states[-1].tokens == summary.tokens


@pytest.mark.parametrize("value", ["true", None])
def test_environment_is_restored(run, monkeypatch, value):
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    run()
    assert os.environ.get(name) == value


def test_total_size_is_unknown_with_a_hub_dataset(run, corpus, monkeypatch):
    class Datasets:
        @staticmethod
        def load_dataset(name, config, *, split, streaming):
            return iter([{"text": "kari tomen " * 30}])

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    states: list[module.Summary] = []
    run(inputs=[corpus, "hub:me/data"], progress=states.append)
    assert {state.total_bytes for state in states} == {None}


def test_text_field(run, tmp_path, corpus, read_rows):
    documents = corpus.read_text(encoding="utf-8").strip().split("\n\n")
    lines = [json.dumps({"text": "kari", "body": document}) for document in documents]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    run("named", inputs=[tmp_path / "a.jsonl"], text_field="body")
    run("plain")
    named, plain = (read_rows(tmp_path / name) for name in ("named", "plain"))
    assert all(np.array_equal(named[split], plain[split]) for split in plain)


def test_incomplete_tokenizer_folder_is_refused(run, tokenizer_folder, tmp_path):
    """`tokenizer.json` is the last file to be written."""
    incomplete = shutil.copytree(tokenizer_folder, tmp_path / "incomplete")
    (incomplete / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="holds neither"):
        run(tokenizer=incomplete)
    assert not (tmp_path / "shards").exists()


@pytest.mark.parametrize(("share", "warned"), [(0.0, False), (0.004, False), (0.4, True)])
def test_warning_for_unknown_tokens(run, tmp_path, make_text, share, warned):
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


def test_pipe_gives_the_shards_of_a_file(run, piped, corpus, tmp_path, read_files):
    run("file")
    run("piped", inputs=[piped(corpus.read_bytes())])
    plain, through = (read_files(tmp_path / name) for name in ("file", "piped"))
    del plain["index.json"], through["index.json"]  # which name the input
    assert plain == through


def test_own_unigram_without_pre_tokenizer(run, tmp_path, read_rows):
    """A SentencePiece-like tokenizer.json for text without spaces, with its own special tokens."""
    pieces = ["<pad>", "<s>", "</s>", "<mask>", "<unk>", "東京", "の", "駅", "で", "カメラ", "を"]
    model = models.Unigram([(piece, -float(n)) for n, piece in enumerate(pieces)], 4)
    own = Tokenizer(model)
    own.add_special_tokens(pieces[:5])
    (tmp_path / "own").mkdir()
    own.save(str(tmp_path / "own" / "tokenizer.json"))
    text = tmp_path / "ja.txt"
    text.write_text("東京の駅でカメラを\n駅の東京\n\n" * 40, encoding="utf-8")
    summary = run(inputs=[text], tokenizer=tmp_path / "own", length=16)
    assert (summary.unknown, summary.lost_tokens, summary.text_tokens) == (0, 0, 40 * 9)
    rows = read_rows(tmp_path / "shards")
    row = np.concatenate([rows["held_out"], rows["train"]])[0, :16].tolist()
    assert [i for i in row if i > 4] == [5, 6, 7, 8, 9, 10, 7, 6, 5]
    report = inspect_tokenizer(load_tokenizer(tmp_path / "own"), [text])
    assert (report.kind, report.unknown_rate, report.changed_rate) == ("Unigram", 0, 0)
    assert report.tokens_per_character == 9 / 13


def test_several_lengths_have_a_folder_each(tmp_path):
    folders = module.folders_of_lengths
    assert folders("32", tmp_path, ["text.txt"]) == {32: tmp_path}
    expected = {32: tmp_path / "32", 64: tmp_path / "64"}
    assert folders("32, 64", tmp_path, ["text.txt"]) == expected
    (tmp_path / "32").mkdir()  # an earlier, interrupted preparation
    assert folders("32,64", tmp_path, ["text.txt"]) == expected
    for wrong in ("", "32,", "32,32", "32;64", "1e3", "32,--5", "²", "٣", "9" * 5000):
        with pytest.raises(UserError, match="--length is"):
            folders(wrong, tmp_path, ["text.txt"])
    other = tmp_path / "other"
    other.mkdir()
    (other / "index.json").touch()
    with pytest.raises(UserError, match="is not empty"):
        folders("32,64", other, ["text.txt"])


@pytest.mark.skipif(os.name == "nt", reason="no named pipes there")
def test_a_pipe_has_one_length(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="can be read only once"):
        module.folders_of_lengths("32,64", tmp_path / "out", [str(tmp_path / "pipe")])
    assert module.folders_of_lengths("32", tmp_path, [str(tmp_path / "pipe")]) == {32: tmp_path}
