"""benchmarks/record.py: every step on invented text, in this process, and again without work."""

import json

import pytest

from benchmarks import record


@pytest.fixture
def tasks(tmp_path):
    """CoLA, two pairs of BLiMP's form."""
    words = ["the old farmer sold the bread .", "bread the sold old the farmer ."]
    (tmp_path / "glue" / "CoLA").mkdir(parents=True)
    for split, count in (("train", 32), ("dev", 8)):
        rows = [f"x\t{n % 2}\t\t{words[1 - n % 2]}" for n in range(count)]
        (tmp_path / "glue" / "CoLA" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    pair = {"sentence_good": words[0], "sentence_bad": words[1]}
    pair |= {"linguistics_term": "order", "UID": "order_1"}
    (tmp_path / "blimp").mkdir()
    (tmp_path / "blimp" / "order.jsonl").write_text((json.dumps(pair) + "\n") * 2)
    return tmp_path


@pytest.fixture
def call(tasks, corpus, electra, monkeypatch):
    """Run the script with more options; returns its commands and its summary."""
    commands: list[str] = []

    def in_process(command, quiet=False):
        assert command[1:3] == ["-m", "electra"]
        commands.append(command[3])
        code, out, err = electra(*command[3:])
        assert code == 0, err
        return out

    monkeypatch.setattr(record, "run", in_process)

    def run(*options: str) -> tuple[list[str], dict]:
        commands.clear()
        words = ["record.py", str(tasks / "out"), "--text", str(corpus), "--recipe", "toy"]
        words += ["--glue", str(tasks / "glue"), "--blimp", str(tasks / "blimp")]
        words += ["--budget", "3steps", "--length", "32", "--vocab-size", "300", "--tasks", "cola"]
        words += ["--seeds", "2", "--tuning", "epochs=1"]
        for setting in (
            "data.seq_length=32",
            "train.report_every=1",
            "model.hidden=32",
            "model.embedding=16",
        ):
            words += ["--set", setting]
        monkeypatch.setattr("sys.argv", [*words, *options])
        record.main()
        return list(commands), json.loads((tasks / "out" / "summary.json").read_text())

    return run


def test_a_record_step_by_step(call, tasks):
    commands, found = call("--until", "package")
    assert commands == ["tokenizer", "prepare", "pretrain", "release"]
    assert found["validation"]["step"] == found["step"] == 3
    assert found["kernels"] == "plain modules"
    assert "glue" not in found
    weights = tasks / "out" / "electra-record-en" / "electra_record_en"
    assert (weights / "generator" / "model.safetensors").is_file()

    commands, found = call()
    assert commands == ["glue", "probe", "release"], "the rest is there already"
    seeds = found["glue"]["seeds"]["cola"]
    assert len(seeds) == 2
    assert found["glue"]["mean"] == pytest.approx(sum(seeds) / 2)
    assert list(found["blimp"]) == [
        *("discriminator", "generator", "combined"),
        *("frequency", "length"),
    ]
    assert found["recipe"] == "toy"
    assert found["settings"][0] == "data.seq_length=32"


def test_the_card_has_the_scores(call, tasks):
    call()
    package = tasks / "out" / "scored" / "electra-record-en"
    card = (package / "README.md").read_text()
    assert "BLiMP, combined" in card
    assert "Token frequency alone gives" in card
    assert "BLiMP, frequency" not in card
    assert "| mean |" not in card  # of the three networks
    assert "cola" in card.lower()
    weights = "electra_record_en/discriminator/model.safetensors"
    first = tasks / "out" / "electra-record-en"
    assert (package / weights).read_bytes() == (first / weights).read_bytes()
    assert "BLiMP" not in (first / "README.md").read_text()


MISTAKES = {
    "no text": ("--text", "none.txt"),
    "a setting": ("--set", "optim.rate=1"),
    "a setting of fine-tuning": ("--tuning", "rate=1"),
    "the budget": ("--budget", "17"),
    "the task": ("--tasks", "cola,none"),
    "no BLiMP": ("--blimp", "none"),
    "the name": ("--name", "No Name"),
    "no card": ("--card", "none.yaml"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_the_record_before_it_begins(name, call, tasks):
    with pytest.raises(SystemExit) as ended:
        call(*MISTAKES[name])
    assert isinstance(ended.value.code, str), "a sentence"
    assert not (tasks / "out").exists()


def test_a_failure_ends_the_record(tasks, corpus, monkeypatch, capfd):
    (tasks / "empty.txt").touch()
    words = ["record.py", str(tasks / "out"), "--text", str(tasks / "empty.txt")]
    words += ["--glue", str(tasks / "glue"), "--blimp", str(tasks / "blimp"), "--tasks", "cola"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        record.main()
    assert ended.value.code == 2
    assert "empty.txt" in capfd.readouterr().err
    assert not (tasks / "out" / "summary.json").exists()
