"""`electra predict`: every kind of model and file."""

import csv
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from electra.errors import UserError
from electra.finetune import predict as predict_module
from electra.finetune.kinds import make_kind
from electra.finetune.predict import predict
from electra.finetune.run import finetune
from electra.finetune.task_model import new_task_model, save_task_model
from electra.hub.folders import load_encoder
from electra.hub.heads import TaskCard, read_card
from electra.tasks.load import load_task
from electra.text.tokenizer import load_tokenizer, save_tokenizer

TEXTS = (
    "the old bread",
    "cargo was brought from the harbour to the ship of the sailor and the judge and the miner",
    "dig",
    "a clever weaver , quiet and tired , would spin the bread",
    "verdict of the court",
)
CARDS = {
    "classify": TaskCard(
        name="c", kind="classify", labels=["no", "yes"], columns={"text": "text", "label": "label"}
    ),
    "pair": TaskCard(
        name="p",
        kind="classify",
        labels=["no", "yes"],
        columns={"text": "a", "pair": "b", "label": "label"},
        pairs=True,
    ),
    "regress": TaskCard(name="r", kind="regress", columns={"text": "text", "label": "label"}),
    "choice": TaskCard(
        name="o",
        kind="choice",
        columns={"text": "text", "pair": "choices", "label": "label"},
        pairs=True,
    ),
    "tag": TaskCard(
        name="t",
        kind="tag",
        labels=["O", "B-X", "E-X", "I-X", "S-X"],
        metric="f1",
        columns={"scheme": "IOB2"},
    ),
    "qa": TaskCard(name="q", kind="qa", has_unanswerable=True, beam_size=4),
}


@pytest.fixture
def model(model_folder, tmp_path):
    """Save a model with a random head: `model("classify")`."""

    def made(kind: str, **changes) -> str:
        card, folder = replace(CARDS[kind], max_length=64, **changes), tmp_path / f"model-{kind}"
        encoder = load_encoder(model_folder)
        torch.manual_seed(0)
        save_task_model(new_task_model(card, encoder), folder, card, 0)
        save_tokenizer(load_tokenizer(model_folder), folder, max_length=64)
        return str(folder)

    return made


def said(model: str, source: Path) -> list[dict]:
    return list(predict(model, source, device="cpu"))


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def nearly(one: dict, two: dict) -> None:
    """Equal up to rounding."""
    assert one.keys() == two.keys()
    for key, value in one.items():
        if isinstance(value, dict | float):
            assert two[key] == pytest.approx(value, abs=1e-5)
        elif key == "n_best":
            for first, second in zip(value, two[key], strict=True):
                nearly(first, second)
        elif key != "id":
            assert two[key] == value


def inputs(kind: str) -> list[dict]:
    """Rows of a table of that kind."""
    if kind in ("classify", "regress"):
        return [{"text": text} for text in TEXTS]
    if kind == "pair":
        return [{"a": text, "b": other} for text in TEXTS[:3] for other in TEXTS]
    if kind == "choice":
        return [{"text": text, "choices": [f"{text} dig", "old oven", TEXTS[1]]} for text in TEXTS]
    if kind == "tag":
        return [{"words": text.split()} for text in TEXTS]
    return [{"question": "what", "context": f"{a} {b}"} for a in TEXTS for b in TEXTS]


@pytest.mark.parametrize("kind", CARDS)
def test_predictions_do_not_depend_on_the_batch(kind, model, tmp_path):
    folder, rows = model(kind), inputs(kind)
    together = said(folder, write_jsonl(tmp_path / "all.jsonl", rows))
    assert len(together) == len(rows)
    for record, row in zip(together, rows, strict=True):
        (alone,) = said(folder, write_jsonl(tmp_path / "one.jsonl", [row]))
        nearly(record, alone)


@pytest.mark.parametrize("kind", CARDS)
def test_predictions_do_not_depend_on_the_chunk_size(kind, model, tmp_path, monkeypatch):
    folder, source = model(kind), write_jsonl(tmp_path / "all.jsonl", inputs(kind))
    whole = said(folder, source)
    monkeypatch.setattr(predict_module, "CHUNK", 2)
    for one, two in zip(whole, said(folder, source), strict=True):
        nearly(one, two)
        assert one["id"] == two["id"]


def test_text_files_and_tables(tuned, tmp_path):
    texts = [text.replace(",", "") for text in TEXTS]
    (tmp_path / "a.txt").write_text("\n".join(["", texts[0], "  ", *texts[1:]]) + "\n\n")
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("number", "text"), *enumerate(texts)])
    write_jsonl(tmp_path / "a.jsonl", [{"id": f"x{i}", "text": t} for i, t in enumerate(texts)])
    lines, table, objects = (
        said(str(tuned), tmp_path / f"a.{end}") for end in ("txt", "csv", "jsonl")
    )
    assert [r["id"] for r in lines] == ["2", "4", "5", "6", "7"]  # the number of the line
    assert [r["id"] for r in objects] == ["x0", "x1", "x2", "x3", "x4"]
    for some in (table, objects):
        for one, two in zip(lines, some, strict=True):
            nearly(one, two)
    assert [lines[i]["label"] for i in (0, 1, 3)] == ["bread", "cargo", "bread"]  # it has learned
    for record in lines:
        assert set(record) == {"id", "label", "probabilities"}
        assert record["label"] == max(record["probabilities"], key=record["probabilities"].get)


def test_labels_in_the_input_are_ignored(tuned, reviews, tmp_path):
    rows = (reviews / "dev.csv").read_text()
    flipped = rows.replace(",bread", ",x").replace(",cargo", ",bread").replace(",x", ",cargo")
    (tmp_path / "flipped.csv").write_text(flipped)
    (tmp_path / "none.csv").write_text("\n".join(r.rpartition(",")[0] for r in rows.splitlines()))
    wanted = [r["label"] for r in said(str(tuned), reviews / "dev.csv")]
    for name in ("none.csv", "flipped.csv"):
        assert [r["label"] for r in said(str(tuned), tmp_path / name)] == wanted


def test_regression_records(model, tmp_path):
    found = said(model("regress"), write_jsonl(tmp_path / "x.jsonl", inputs("regress")))
    assert all(set(r) == {"id", "value"} and isinstance(r["value"], float) for r in found)
    assert len({r["value"] for r in found}) == 5


def test_choice_records(model, tmp_path):
    found = said(model("choice"), write_jsonl(tmp_path / "x.jsonl", inputs("choice")))
    for record in found:
        assert set(record["probabilities"]) == {"0", "1", "2"}
        assert sum(record["probabilities"].values()) == pytest.approx(1)
    # the same options in another order
    turned = [{**row, "choices": row["choices"][::-1]} for row in inputs("choice")]
    again = said(model("choice"), write_jsonl(tmp_path / "y.jsonl", turned))
    for one, two in zip(found, again, strict=True):
        first, second = one["probabilities"], two["probabilities"]
        assert [second[str(2 - i)] for i in range(3)] == pytest.approx(
            [first[str(i)] for i in "012"]
        )


def test_tag_records(model, tmp_path):
    folder = model("tag")
    found = said(folder, write_jsonl(tmp_path / "x.jsonl", inputs("tag")))
    assert [r["words"] for r in found] == [text.split() for text in TEXTS]
    for record in found:
        assert len(record["tags"]) == len(record["words"])
        # as the training file has them, not in BIOES, in which they are learned
        assert set(record["tags"]) <= {"O", "B-X", "I-X"}
    lines = tmp_path / "x.txt"
    lines.write_text("\n".join(TEXTS) + "\n")
    for one, two in zip(found, said(folder, lines), strict=True):
        nearly(one, two)
    columns = tmp_path / "x.conll"
    columns.write_text("\n\n".join("\n".join(text.split()) for text in TEXTS) + "\n")
    for one, two in zip(found, said(folder, columns), strict=True):
        nearly(one, two)


def test_sentences_of_equal_length_are_not_columns(model, tmp_path):
    (tmp_path / "x.txt").write_text("the old farmer\nthe young baker\n")
    found = said(model("tag"), tmp_path / "x.txt")
    assert [r["words"] for r in found] == [["the", "old", "farmer"], ["the", "young", "baker"]]


def test_question_records(model, tmp_path):
    source = write_jsonl(tmp_path / "x.jsonl", inputs("qa"))
    never = said(model("qa", null_threshold=-1e9), source)
    assert {r["answer"] for r in never} == {""}
    always = said(model("qa", null_threshold=1e9), source)
    for record, row in zip(always, inputs("qa"), strict=True):
        assert record["answer"]
        assert record["answer"] in row["context"]
        assert record["answer"] == record["n_best"][0]["text"]
        assert len(record["n_best"]) <= 4
        scores = [each["score"] for each in record["n_best"]]
        assert scores == sorted(scores, reverse=True)
        assert sum(each["probability"] for each in record["n_best"]) == pytest.approx(1)
    sure = said(model("qa", has_unanswerable=False, null_threshold=-1e9), source)
    assert all(r["answer"] for r in sure)


def test_long_context(model, tmp_path):
    context = " ".join([TEXTS[1]] * 8)
    source = write_jsonl(tmp_path / "x.jsonl", [{"question": "what", "context": context}])
    (found,) = said(model("qa", has_unanswerable=False, max_answer_length=3), source)
    assert found["answer"] in context
    assert np.isfinite(found["null"])


def test_glue_files(model_folder, quick, console, tmp_path):
    """A model for a GLUE task has no columns in its card and reads GLUE files."""
    data = tmp_path / "glue" / "RTE"
    data.mkdir(parents=True)
    head = "index\tsentence1\tsentence2"
    rows = [f"{i}\t{TEXTS[i % 5]}\t{TEXTS[i % 3]}" for i in range(12)]
    for split in ("train", "dev"):
        labelled = [f"{r}\t{('entailment', 'not_entailment')[i % 2]}" for i, r in enumerate(rows)]
        (data / f"{split}.tsv").write_text("\n".join([f"{head}\tlabel", *labelled]) + "\n")
    (data / "test.tsv").write_text("\n".join([head, *rows]) + "\n")
    config = replace(quick, epochs=1, batch_size=4)
    finetune(str(model_folder), load_task("rte", data), tmp_path / "out", [0], config, console)
    text = (tmp_path / "out" / "predictions" / "seed-0" / "test.jsonl").read_text()
    wanted = [json.loads(line) for line in text.splitlines()]
    for one, two in zip(wanted, said(str(tmp_path / "out"), data / "test.tsv"), strict=True):
        nearly(one, two)
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS))
    with pytest.raises(UserError, match="needs two texts"):
        said(str(tmp_path / "out"), tmp_path / "lines.txt")


def test_full_stops_are_removed_as_in_training(model_folder, quick, console, tmp_path):
    """If the MNLI train file has no full stops, `predict` removes them too."""
    data = tmp_path / "MNLI"
    data.mkdir()
    head = "index\tsentence1\tsentence2\tgold_label"
    labels = ("contradiction", "entailment", "neutral")
    for name, stop in (("train_partial", ""), ("dev_matched", ".")):
        rows = (f"{i}\t{TEXTS[i % 5]}{stop}\t{TEXTS[i % 3]}{stop}" for i in range(12))
        lines = [f"{row}\t{labels[i % 3]}" for i, row in enumerate(rows)]
        (data / f"{name}.tsv").write_text("\n".join([head, *lines]) + "\n")
    out, config = tmp_path / "out", replace(quick, epochs=1, batch_size=4)
    finetune(str(model_folder), load_task("mnli", data), out, [0], config, console)
    text = (out / "predictions" / "seed-0" / "dev.jsonl").read_text()
    wanted = [json.loads(line) for line in text.splitlines()]
    for one, two in zip(wanted, said(str(out), data / "dev_matched.tsv"), strict=True):
        nearly(one, two)


def test_own_file_named_like_a_glue_task(model_folder, quick, console, tmp_path):
    rows = [f"{text}\t{('no', 'yes')[i % 2]}" for i, text in enumerate(TEXTS * 4)]
    data = tmp_path / "rte.tsv"
    data.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    config = replace(quick, epochs=1, batch_size=4)
    task = load_task("classify", data)
    assert task.name == "rte"
    finetune(str(model_folder), task, tmp_path / "out", [0], config, console)
    assert len(said(str(tmp_path / "out"), data)) == len(rows)


def test_model_from_the_hub(tuned, reviews, tmp_path, monkeypatch):
    """The download includes all required files."""
    from fnmatch import fnmatch

    def download(name, allow_patterns):
        assert name == "someone/reviews"
        for path in (tuned / "model").iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                (tmp_path / "hub").mkdir(exist_ok=True)
                shutil.copy(path, tmp_path / "hub")
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert said("someone/reviews", reviews / "dev.csv") == said(str(tuned), reviews / "dev.csv")


def test_line_endings(tuned, tmp_path):
    (tmp_path / "x.txt").write_bytes(b"the old bread\rcargo\r\ndig\n")
    assert [r["id"] for r in said(str(tuned), tmp_path / "x.txt")] == ["1", "2", "3"]


def test_the_command(electra, tuned, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\ncargo – schön\n")
    code, out, err = electra("predict", tuned, tmp_path / "x.txt")
    assert (code, err) == (0, "")
    found = [json.loads(line) for line in out.splitlines()]
    assert [r["label"] for r in found] == ["bread", "cargo"]
    code, shown, err = electra("predict", tuned, tmp_path / "x.txt", "--out", tmp_path / "y.jsonl")
    assert (code, shown, err) == (0, "", "")
    assert (tmp_path / "y.jsonl").read_text() == out
    assert {p.name for p in tmp_path.iterdir()} == {"x.txt", "y.jsonl"}  # no temporary file


def test_output_to_a_symlink_or_pipe(electra, tuned, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    (tmp_path / "there").mkdir()
    link, pipe = tmp_path / "link.jsonl", tmp_path / "pipe"
    link.symlink_to("there/y.jsonl")
    assert electra("predict", tuned, tmp_path / "x.txt", "--out", link) == (0, "", "")
    assert link.is_symlink()
    assert "bread" in (tmp_path / "there" / "y.jsonl").read_text()
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert electra("predict", tuned, tmp_path / "x.txt", "--out", pipe) == (0, "", "")
    assert pipe.is_fifo()
    assert b"bread" in os.read(reader, 10_000)
    os.close(reader)


def test_closed_standard_output(unread, tuned, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    assert unread("predict", tuned, tmp_path / "x.txt") == 141


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", "review\nthe old bread\n", "no column 'text', it has: review"),
        ("x.csv", "text,label\n ,y\n ,x\n", "no row with a text in the column 'text'"),
        ("x.txt", "\n\n", "is empty"),
        ("x.pdf", "%PDF", "not a table that can be read"),
        ("x.jsonl", "{", "line 1 is not valid JSON"),
    ],
)
def test_bad_input_writes_nothing(name, content, message, refused, tuned, tmp_path):
    (tmp_path / name).write_text(content)
    (tmp_path / "out.jsonl").write_text("before\n")
    sentence = refused("predict", tuned, tmp_path / name, "--out", tmp_path / "out.jsonl")
    assert message in sentence
    assert (tmp_path / "out.jsonl").read_text() == "before\n"
    assert {p.name for p in tmp_path.iterdir()} == {name, "out.jsonl"}


def test_wrong_paths(refused, tuned, model_folder, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    assert "no file" in refused("predict", tuned, tmp_path / "none.txt")
    assert "not a fine-tuned model" in refused("predict", model_folder, tmp_path / "x.txt")
    assert "There is no model at" in refused("predict", tmp_path / "none", tmp_path / "x.txt")


def test_missing_output_folder(electra, tuned, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    out = tmp_path / "no" / "y.jsonl"
    code, _, err = electra("predict", tuned, tmp_path / "x.txt", "--out", out)
    assert (code == 0 and out.is_file()) or (code == 2 and str(out.parent) in err)


def test_output_that_is_a_folder(refused, tuned, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    for out in (tmp_path, tmp_path / "x.txt" / "y.jsonl"):
        assert str(out.parent) in refused("predict", tuned, tmp_path / "x.txt", "--out", out)


def test_input_is_not_overwritten(refused, tuned, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    (tmp_path / "link.txt").symlink_to("x.txt")
    for out in (tmp_path / "x.txt", tmp_path / "link.txt"):
        assert "is the input" in refused("predict", tuned, tmp_path / "x.txt", "--out", out)
    assert (tmp_path / "x.txt").read_text() == "the old bread\n"


def test_pairs_need_a_table(refused, model, tmp_path):
    (tmp_path / "x.txt").write_text("the old bread\n")
    for kind in ("pair", "choice"):
        assert "needs two texts" in refused("predict", model(kind), tmp_path / "x.txt")


def test_cards_of_these_tests_are_realistic(tuned):
    assert read_card(tuned / "model").columns == CARDS["classify"].columns


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)]
)
def test_precision_and_beam_size_are_used(precision, dtype, model, tmp_path, monkeypatch):
    seen = {}

    def spy(network, features, kind, **named):
        seen.update(named, beam_size=kind.card.beam_size)
        raise UserError("seen")

    monkeypatch.setattr("electra.finetune.predict.infer", spy)
    source = write_jsonl(tmp_path / "x.jsonl", inputs("qa"))
    with pytest.raises(UserError, match="seen"):
        list(predict(model("qa"), source, device="cpu", precision=precision))
    assert (seen["dtype"], seen["beam_size"]) == (dtype, CARDS["qa"].beam_size)


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5])
def test_null_threshold(threshold):
    card = replace(CARDS["qa"], null_threshold=threshold)
    for null in (-1.0, -0.25, 0.25, 1.0):
        record = make_kind(card).finalize(None, {"answer": "barn", "null": null})
        assert record == {"answer": "" if null > threshold else "barn", "null": null}


@pytest.mark.parametrize("chunk", [20_000, 1])
def test_truncated_texts_are_counted(chunk, electra, model, tmp_path, monkeypatch):
    monkeypatch.setattr(predict_module, "CHUNK", chunk)
    (tmp_path / "x.txt").write_text("dig\n" + "old " * 63 + "\ndig\n" + "old " * 80 + "\n")
    code, out, err = electra("predict", model("classify"), tmp_path / "x.txt")
    assert code == 0
    assert len(out.splitlines()) == 4
    assert err == (
        "warning: 2 of 4 examples longer than 64 tokens were truncated; the first is '2'.\n"
    )


def test_truncated_questions_are_counted(electra, model, tmp_path):
    rows = [{"question": "old " * n, "context": "the old bread"} for n in (2, 7)]
    source = write_jsonl(tmp_path / "x.jsonl", [{"id": f"q{i}", **r} for i, r in enumerate(rows)])
    code, _, err = electra("predict", model("qa", max_question_length=4), source)
    assert code == 0
    assert "1 of 2 examples with a question longer than 4 tokens were truncated" in err
    assert "the first is 'q1'" in err


def test_a_model_with_nan_weights_is_refused(refused, model, tmp_path):
    folder = model("classify")
    path = Path(folder) / "model.safetensors"
    weights = load_file(path)
    weights["head.output.weight"][0, 3] = float("nan")
    save_file(weights, path)
    (tmp_path / "x.txt").write_text("the old bread\n")
    sentence = refused("predict", folder, tmp_path / "x.txt")
    assert "head.output.weight holds NaN or infinity" in sentence
    assert "lower lr" in sentence


def test_one_word_per_line(model, tmp_path):
    (tmp_path / "x.txt").write_text("the\nold\nfarmer\n\nthe\nbaker\n")
    found = said(model("tag"), tmp_path / "x.txt")
    assert [r["words"] for r in found] == [["the", "old", "farmer"], ["the", "baker"]]
