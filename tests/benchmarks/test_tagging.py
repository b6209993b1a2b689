"""benchmarks/tagging.py and its data, on invented text, in this process."""

import json
import lzma
import shutil
from collections import Counter

import pytest

from benchmarks import tagging, tagging_data
from electra.jsonl import read_jsonl

SENTENCE = [("the", "O"), ("baker", "B-WHO"), ("sold", "O"), ("bread", "B-WHAT"), (".", "O")]


@pytest.fixture
def call(corpus, electra, tmp_path, monkeypatch):
    """Run the script with more options; returns its commands and its summary."""
    commands: list[str] = []

    def in_process(*words, quiet=False):
        commands.append(str(words[0]))
        code, out, err = electra(*words)
        assert code == 0, err
        return out

    monkeypatch.setattr(tagging, "electra", in_process)
    for split, count in (("train", 16), ("dev", 8)):
        tagging_data.write_task(tmp_path / "task", split, [SENTENCE] * count)

    def run(*options: str) -> tuple[list[str], dict]:
        commands.clear()
        words = ["tagging.py", str(tmp_path / "out"), "--text", str(corpus), "--recipe", "toy"]
        words += ["--task", str(tmp_path / "task"), "--budget", "3steps", "--length", "32"]
        words += ["--seeds", "2", "--tuning", "epochs=1", "--set", "data.seq_length=32"]
        monkeypatch.setattr("sys.argv", [*words, *options])
        tagging.main()
        return list(commands), json.loads((tmp_path / "out" / "summary.json").read_text())

    return run


def test_a_language(call, tmp_path):
    commands, found = call("--tokenizer", "--vocab-size 300 --keep-accents")
    assert commands == ["tokenizer", "tokenizer", "prepare", "pretrain", "finetune", "finetune"]
    assert list(found["scores"]) == ["pre-trained", "random weights"]
    assert len(found["scores"]["pre-trained"]["seeds"]["f1"]) == 2
    assert found["run"]["step"] == 3
    assert "tokens per word" in (tmp_path / "out" / "inspect.txt").read_text()
    results = {
        path.parent.name: read_jsonl(path)[0]
        for path in (tmp_path / "out" / "tuned").glob("*/results.jsonl")
    }
    digests = {name: result["model_sha256"] for name, result in results.items()}
    assert digests["pre-trained"] != digests["random-weights"]
    decays = {name: result["settings"]["layer_decay"] for name, result in results.items()}
    assert decays == {"pre-trained": 0.8, "random-weights": 1.0}
    again, same = call("--tokenizer", "--vocab-size 300 --keep-accents")
    assert again == commands[1:]  # the tokenizer is there; the others find nothing to do
    assert same["scores"] == found["scores"]


def test_a_run_that_was_killed_before_its_first_checkpoint_continues(call, tmp_path):
    call()
    shutil.rmtree(tmp_path / "out" / "run" / "checkpoints")
    _, found = call()
    assert found["run"]["step"] == 3


def test_a_domain(call, finished):
    _, found = call("--model", str(finished), "--adapt-set", "data.batch_size=8")
    assert list(found["scores"]) == ["pre-trained", "not adapted", "adapted", "random weights"]
    assert found["adapted"]["step"] == 3


def test_spaces_inside_of_words_are_restored(tmp_path):
    text = "hải quân và Raymond ở Hà Nội\n" * 20 + "hảiq uân\n"
    with lzma.open(tmp_path / "text.xz", "wt", encoding="utf-8") as file:
        file.write(text)
    for split in ("train", "dev"):
        rows = "hảiquân\tNOUN\nHàNội\tPROPN\n\nVN\tNOUN\nXoan\tPROPN\n2.0\tNUM\nở\tADP\n"
        (tmp_path / f"{split}-vi.tsv").write_text(rows, encoding="utf-8")
    options = ["vietnamese", tmp_path / "text.xz", tmp_path, tmp_path / "out"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tagging_data.py", *map(str, options)])
        tagging_data.main()
    first, second = read_jsonl(tmp_path / "out" / "task" / "dev.jsonl")
    assert first == {"words": ["hải quân", "Hà Nội"], "tags": ["NOUN", "PROPN"]}
    assert second["words"] == ["VN", "Xoan", "2.0", "ở"]
    assert tagging_data.restore_spaces("mách", Counter(m=99, ách=99)) == "mách"  # m has no vowel


def test_the_text_of_a_domain_leaves_out_what_is_scored(tmp_path):
    for name in ("BC5CDR-IOB", "BC5CDR-chem-IOB", "NCBI-disease-IOB"):
        (tmp_path / name).mkdir()
        for split in ("train", "devel", "test"):
            own = "" if name == "BC5CDR-IOB" else f"in\tO\n{name}\tO\n"
            rows = f"a\tO\n{split}\tB-Disease\n\nthe\tO\n{split}\tO\n{own}"
            (tmp_path / name / f"{split}.tsv").write_text(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tagging_data.py", "biomedical", str(tmp_path), str(tmp_path)])
        tagging_data.main()
    lines = (tmp_path / "text.txt").read_text().split("\n")
    assert sorted(filter(None, lines)) == [
        *("a train", "the devel in NCBI-disease-IOB", "the test in NCBI-disease-IOB"),
        *("the train", "the train in BC5CDR-chem-IOB", "the train in NCBI-disease-IOB"),
    ]
    assert len(read_jsonl(tmp_path / "task" / "test.jsonl")) == 2


def test_a_machine_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert tagging.git_commit() == ""
