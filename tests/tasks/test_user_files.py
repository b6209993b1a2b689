"""Tasks from one's own files: which columns count, which labels there are, what is refused."""

import csv
import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.dev_split import example_texts, make_dev_split
from electra.tasks.examples import Sentence
from electra.tasks.load import load_task
from electra.tasks.user_files import load_user_task, read_user_examples


def write(path: Path, *rows: dict) -> Path:
    """Rows as CSV, TSV or JSON lines, by the ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix in (".jsonl", ".json"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        separator = "," if path.suffix == ".csv" else "\t"
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def reviews(count: int, start: int = 0) -> list[dict]:
    labels = ("good", "bad", "fair")
    return [{"text": f"film {i}", "label": labels[i % 3]} for i in range(start, start + count)]


def refusal(kind: str, path: Path, **columns: str) -> str:
    with pytest.raises(UserError) as error:
        load_user_task(kind, path, **columns)
    return str(error.value)


@pytest.mark.parametrize("ending", ["csv", "tsv", "tab", "jsonl", "json"])
@pytest.mark.parametrize("dev", ["dev", "valid", "validation", "valid-v1.3", "DEV"])
def test_a_folder_with_train_dev_and_test(tmp_path, ending, dev):
    write(tmp_path / f"train.{ending}", *reviews(6))
    write(tmp_path / f"{dev}.{ending}", *reviews(3, 10))
    write(tmp_path / f"test.{ending}", {"text": "film 20"})
    task = load_user_task("classify", tmp_path)
    assert (task.kind, task.labels, task.metric) == (
        "classify",
        ("bad", "fair", "good"),
        "accuracy",
    )
    assert [e.label for e in task.splits["train"]] == [2, 0, 1, 2, 0, 1]
    assert [e.text for e in task.splits["dev"]] == ["film 10", "film 11", "film 12"]
    assert [(e.text, e.label) for e in task.splits["test"]] == [("film 20", None)]
    assert task.columns == {"text": "text", "label": "label"}
    assert task.name == tmp_path.name
    assert task.warnings == ()


def test_one_file_gives_a_dev_split_by_the_texts(tmp_path):
    rows = reviews(97)
    task = load_user_task("classify", write(tmp_path / "film.csv", *rows))
    again = load_user_task("classify", write(tmp_path / "other.jsonl", *reversed(rows)))
    dev = {e.text for e in task.splits["dev"]}
    assert len(dev) == len(task.splits["dev"]) == 10
    assert dev == {e.text for e in again.splits["dev"]}
    assert dev.isdisjoint(e.text for e in task.splits["train"])
    assert len(task.splits["train"]) == 87
    assert task.name == "film"
    (warning,) = task.warnings
    assert "no dev file: 10 of the 97" in warning


def test_rare_labels_and_equal_texts_stay_together(tmp_path):
    rows = [{"text": f"x{i}", "label": str(i)} for i in range(20)]  # each label once
    rows += [{"text": "the same", "label": "0"}] * 10
    task = load_user_task("classify", write(tmp_path / "a.csv", *rows))
    assert {e.label for e in task.splits["train"]} == set(range(20))
    assert {e.text for e in task.splits["dev"]} <= {"the same", "x0"}
    assert sum(e.text == "the same" for e in task.splits["train"]) in (0, 10)


def test_ids_are_the_file_s_or_the_lines(tmp_path):
    task = load_user_task("classify", write(tmp_path / "a.csv", *reviews(4)))
    examples = [*task.splits["train"], *task.splits["dev"]]
    assert sorted(e.id for e in examples) == ["2", "3", "4", "5"]
    rows = [{"id": f"r{i}", **row} for i, row in enumerate(reviews(4))]
    task = load_user_task("classify", write(tmp_path / "b.csv", *rows))
    assert {e.id for e in task.splits["train"]} < {"r0", "r1", "r2", "r3"}
    path = write(tmp_path / "c.jsonl", {"id": 0, "text": "a"}, {"id": None, "text": "b"})
    assert [e.id for e in read_user_examples(path, task.kind, task.columns)] == ["0", "2"]


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        (["10", "9", "-1"], ("-1", "9", "10")),
        (["10", "9", "x"], ("10", "9", "x")),
        ([2, 10, 1], ("1", "2", "10")),
        ([True, False], ("false", "true")),
        ([" a ", "b"], ("a", "b")),
    ],
)
def test_the_order_of_labels(tmp_path, given, labels):
    rows = [{"text": f"x{i}", "label": given[i % len(given)]} for i in range(12)]
    assert load_user_task("classify", write(tmp_path / "a.jsonl", *rows)).labels == labels


def test_regress_on_pairs(tmp_path):
    rows = [{"sentence1": f"a{i}", "sentence2": f"b{i}", "label": i / 2} for i in range(20)]
    task = load_user_task("regress", write(tmp_path / "a.jsonl", *rows))
    assert (task.kind, task.labels, task.metric) == ("regress", (), "spearman")
    assert task.columns == {"text": "sentence1", "pair": "sentence2", "label": "label"}
    labels = sorted(e.label for split in ("train", "dev") for e in task.splits[split])
    assert labels == [i / 2 for i in range(20)]
    first = task.splits["train"][0]
    assert first.pair == first.text.replace("a", "b")


PAIR = {"premise": "a", "hypothesis": "b", "label": "x", "other": "c"}


@pytest.mark.parametrize(
    ("row", "named", "columns"),
    [
        (PAIR, {}, ("premise", "hypothesis", "label")),
        (PAIR, {"text": "premise"}, ("premise", "hypothesis", "label")),
        (PAIR, {"pair": "hypothesis"}, ("premise", "hypothesis", "label")),
        (PAIR, {"text": "other", "pair": "premise"}, ("other", "premise", "label")),
        (
            PAIR,
            {"text": "other", "pair": "premise", "label": "label"},
            ("other", "premise", "label"),
        ),
        ({"text": "a", "pair": "b", "class": "c"}, {}, ("text", "pair", "class")),
        ({"text": "a", "text1": "b", "text2": "b", "class": "c"}, {}, ("text1", "text2", "class")),
        (
            {"text": "a", "text1": "b", "text2": "b", "class": "c"},
            {"pair": "text2"},
            ("text1", "text2", "class"),
        ),
    ],
)
def test_columns_of_a_pair(tmp_path, row, named, columns):
    rows = [{**row, columns[2]: label} for label in "xyxyxy"]
    for number, each in enumerate(rows):
        each[columns[0]] += str(number)
    task = load_user_task("pair", write(tmp_path / "a.csv", *rows), **named)
    assert task.kind == "classify"
    assert task.columns == dict(zip(("text", "pair", "label"), columns, strict=True))


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("classify", {"a": "1", "b": "2"}, "which column is the text in"),
        ("classify", {"sentence": "1", "review": "2", "label": "3"}, "which column is the text"),
        ("classify", {"text": "1", "pair": "2", "label": "3"}, "which column is the text"),
        ("classify", {"text": "1", "score": "2", "class": "3"}, "which column is the label"),
        ("pair", {"text": "1", "label": "2"}, "which columns are the two texts"),
        ("choice", {"question": "1", "label": "2"}, "which column is the list of options"),
    ],
)
def test_no_guess_where_there_is_doubt(tmp_path, kind, row, words):
    path = write(tmp_path / "a.csv", row, row)
    message = refusal(kind, path)
    assert words in message
    assert str(path) in message
    assert all(column in message for column in row)


def test_a_text_of_the_usual_name_is_no_doubt(tmp_path):
    rows = [{"text": f"{i}", "review": "x", "label": i % 2, "score": 3} for i in range(4)]
    task = load_user_task("classify", write(tmp_path / "a.csv", *rows))
    assert task.columns == {"text": "text", "label": "label"}


def train_and_dev(folder: Path, dev: list[dict], train: list[dict] | None = None) -> Path:
    write(folder / "train.jsonl", *(train or reviews(6)))
    write(folder / "dev.jsonl", *dev)
    return folder


@pytest.mark.parametrize(
    ("dev", "words"),
    [
        ([{"text": "x", "label": "good"}, {"text": "y", "label": "odd"}], "line 2: no row of the"),
        (
            [{"text": "  ", "label": "bad"}, {"label": "bad"}],
            "has no row with a text in the column",
        ),
        ([{"text": "x", "label": "good"}, {"text": "y", "label": None}], "line 2 has no label"),
        ([{"text": "x", "label": "good"}, {"text": "y"}], "line 2 has no label"),
        ([{"text": "x", "label": ["good"]}], "line 1: the label is a JSON list"),
        ([{"text": "x"}], "has no column 'label', it has: text"),
        ([{"txt": "x", "label": "good"}], "has no column 'text', it has: txt, label; did you mean"),
        ([{"text": 5, "label": "good"}], "line 1: the column 'text' holds a JSON number"),
    ],
)
def test_refusals_name_file_and_line(tmp_path, dev, words):
    message = refusal("classify", train_and_dev(tmp_path, dev))
    assert words in message
    assert str(tmp_path / "dev.jsonl") in message


@pytest.mark.parametrize("bad", ["many", "nan", "inf", "3,5", True])
def test_a_value_must_be_a_number(tmp_path, bad):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": bad}]
    message = refusal("regress", write(tmp_path / "a.jsonl", *rows))
    assert f"'{tmp_path / 'a.jsonl'}' line 2: the label" in message
    assert "is not a number" in message


def test_a_misspelt_column_is_named_with_its_option(tmp_path):
    path = write(tmp_path / "a.csv", *reviews(4))
    assert "did you mean 'text'? Name the right one with --text" in refusal(
        "classify", path, text="txt"
    )
    assert "no column 'second', it has: text, label" in refusal("classify", path, pair="second")
    assert "only the task choice takes more than one" in refusal(
        "classify", path, pair="text,label"
    )


def test_one_label_is_nothing_to_learn(tmp_path):
    path = write(tmp_path / "a.csv", *[{"text": f"x{i}", "label": "1"} for i in range(5)])
    assert "has the same label '1' in all rows" in refusal("classify", path)


def test_too_few_rows_for_a_dev_split(tmp_path):
    path = write(tmp_path / "a.csv", {"text": "x", "label": "1"}, {"text": "x", "label": "2"})
    assert "too few different examples" in refusal("classify", path)
    path = write(tmp_path / "b.csv", {"text": "x", "label": "1"})
    assert "too few different examples" in refusal("regress", path)
    path = write(tmp_path / "c.csv", {"text": "x", "label": "1"}, {"text": "y", "label": "2"})
    assert len(load_user_task("regress", path).splits["dev"]) == 1


def test_warnings_of_doubles_and_of_values_taken_for_classes(tmp_path):
    task = load_user_task("classify", train_and_dev(tmp_path / "a", reviews(4, 4)))
    assert len(task.warnings) == 1
    assert task.warnings[0].startswith("2 of the 4 rows")
    rows = [{"text": f"x{i}", "label": i / 10} for i in range(101)]
    task = load_user_task("classify", write(tmp_path / "b.jsonl", *rows, *rows))
    assert any("101 different numbers" in w and "regress" in w for w in task.warnings)
    assert len(load_user_task("regress", tmp_path / "b.jsonl").warnings) == 1


def test_files_that_are_missing_or_too_many(tmp_path):
    assert "no file or folder" in refusal("classify", tmp_path / "nowhere")
    assert "holds no train file" in refusal("classify", tmp_path)
    write(tmp_path / "train.csv", *reviews(4))
    write(tmp_path / "training.tsv", *reviews(4))
    assert "several files for train" in refusal("classify", tmp_path)


def test_other_names_are_no_splits(tmp_path):
    write(tmp_path / "train.csv", *reviews(30))
    write(tmp_path / "devices.csv", *reviews(4))
    (tmp_path / "test.md").write_text("notes")
    task = load_user_task("classify", tmp_path)
    assert set(task.splits) == {"train", "dev"}
    assert len(task.splits["dev"]) == 3


def riddles(count: int, options: int = 3) -> list[dict]:
    return [
        {
            "question": f"which {i}?",
            **{f"choice{n}": f"answer {i} {n}" for n in reversed(range(options))},
            "label": i % options,
        }
        for i in range(count)
    ]


def test_choices_in_columns(tmp_path):
    path = write(tmp_path / "a.csv", *riddles(12, 11))
    task = load_user_task("choice", path)
    assert (task.kind, task.metric, task.labels) == ("choice", "accuracy", ())
    first = task.splits["train"][0]
    number = first.text.removeprefix("which ").removesuffix("?")
    assert first.options == tuple(f"answer {number} {n}" for n in range(11))
    assert first.label == int(number) % 11
    path = write(tmp_path / "b.csv", *[{**row, "label": 1} for row in riddles(5)])
    named = load_user_task("choice", path, text="question", pair="choice2, choice0")
    assert named.columns["pair"] == "choice2,choice0"
    assert all(e.options[1].endswith(" 0") for e in named.splits["train"])


def test_choices_in_a_list_with_labels_by_number_or_text(tmp_path):
    rows = [
        {"question": f"q{i}", "choices": ["red", "7"], "label": given}
        for i, given in enumerate([0, "1", "red", 7, "7", 1.0])
    ]
    task = load_user_task("choice", write(tmp_path / "a.jsonl", *rows))
    found = {e.text: e.label for split in ("train", "dev") for e in task.splits[split]}
    assert [found[f"q{i}"] for i in range(6)] == [0, 1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"choices": ["a", "b", "c"], "label": 0}, "line 2 has 3 options where the first row"),
        ({"choices": ["a", "b"], "label": 2}, "line 2: the label '2' is not an option.*0 to 1"),
        ({"choices": ["a", "a"], "label": "a"}, "line 2: the label 'a' is not an option"),
        (
            {"choices": ["a"], "label": 0},
            "line 2: the column 'choices' is not a list",
        ),
        (
            {"choices": "a,b", "label": 0},
            "line 2: the column 'choices' is not a list",
        ),
        (
            {"choices": ["a", ""], "label": 0},
            "line 2: the column 'choices' is not a list",
        ),
        ({"choices": ["a", "b"]}, "line 2 has no label"),
    ],
)
def test_choices_that_are_refused(tmp_path, second, words):
    first = {"question": "q", "choices": ["a", "b"], "label": 0}
    path = write(tmp_path / "a.jsonl", first, {"question": "r", **second})
    with pytest.raises(UserError, match=words):
        load_user_task("choice", path)


def test_one_more_file_of_a_known_task(tmp_path):
    task = load_user_task("classify", write(tmp_path / "a.csv", *reviews(30)))
    new = write(tmp_path / "new.jsonl", {"text": "x"}, {"text": "y", "label": "good"})
    examples = read_user_examples(new, task.kind, task.columns)
    assert [(e.text, e.label) for e in examples] == [("x", None), ("y", None)]
    riddle = load_user_task("choice", write(tmp_path / "b.csv", *riddles(12)))
    row = riddles(1)[0]
    del row["label"]
    (example,) = read_user_examples(write(tmp_path / "c.csv", row), riddle.kind, riddle.columns)
    assert example.options == ("answer 0 0", "answer 0 1", "answer 0 2")
    assert example.label is None


def test_a_task_has_the_whole_name_of_its_folder(tmp_path, monkeypatch):
    write(tmp_path / "shop.de/train.csv", *reviews(9))
    assert load_user_task("classify", tmp_path / "shop.de").name == "shop.de"
    packed = tmp_path / "film.2.csv.gz"
    packed.write_bytes(gzip.compress(write(tmp_path / "film.csv", *reviews(20)).read_bytes()))
    assert load_user_task("classify", packed).name == "film.2"
    monkeypatch.chdir(tmp_path / "shop.de")
    assert load_user_task("classify", Path()).name == "shop.de"


@pytest.mark.parametrize("count", [100, 101])
def test_a_hundred_numbers_may_be_classes(tmp_path, count):
    rows = [{"text": f"x{i}", "label": i % count} for i in range(3 * count)]
    warnings = load_user_task("classify", write(tmp_path / "a.jsonl", *rows)).warnings
    assert any("regress" in warning for warning in warnings) == (count > 100)


def test_options_of_two_names_are_in_doubt(tmp_path):
    rows = [{"text": "x", "choice0": "a", "choice1": "b", "option2": "c", "label": 0}] * 4
    assert "list of options" in refusal("choice", write(tmp_path / "a.jsonl", *rows))


def test_neither_side_of_a_split_is_ever_empty(tmp_path):
    for number in range(20):
        texts = [f"a{number}", *["b"] * 19]
        examples = [Sentence(id=str(i), text=text, label=0.5) for i, text in enumerate(texts)]
        train, dev, _ = make_dev_split(tmp_path, examples, example_texts)
        assert len(train) + len(dev) == 20
        assert {e.text for e in train}.isdisjoint(e.text for e in dev)


def test_train_keeps_an_example_of_each_label_however_many_leave(tmp_path):
    for number in range(60):
        texts = [f"{number}-{i}" for i in range(16)]
        examples = [Sentence(id=t, text=t, label=i // 2) for i, t in enumerate(texts)]
        train, dev, _ = make_dev_split(tmp_path, examples, example_texts)
        assert len(dev) == 2
        assert {e.label for e in train} == set(range(8))


def test_questions_have_their_columns_by_name(tmp_path):
    row = {"frage": "Who?", "absatz": "The barn burns.", "antwort": "barn"}
    rows = [{"id": str(i), **row, "absatz": f"{row['absatz']} {i}"} for i in range(9)]
    path = write(tmp_path / "a.jsonl", *rows)
    task = load_task("qa", path, text="frage", pair="absatz", label="antwort")
    example = task.splits["train"][0]
    assert (example.question, example.context[:8]) == ("Who?", "The barn")
    assert example.answers[0].text == "barn"
    assert task.columns == {"question": "frage", "context": "absatz", "answer": "antwort"}


@pytest.mark.parametrize("name", ["CoLA", "squad2", "conll2003"])
@pytest.mark.parametrize("option", ["text", "pair", "label"])
def test_the_columns_of_known_tasks_are_not_the_user_s(tmp_path, name, option):
    with pytest.raises(UserError, match=f"--{option} is for your own files"):
        load_task(name, tmp_path, **{option: "x"})


def test_tags_have_no_second_text(tmp_path):
    path = write(tmp_path / "a.jsonl", *[{"words": [f"w{i}"], "tags": ["X"]} for i in range(9)])
    assert load_task("tag", path).kind == "tag"
    with pytest.raises(UserError, match="--pair"):
        load_task("tag", path, pair="words")


# ------------------------------------------------------------------ missing labels and empty texts


def warnings_of(path: Path, kind: str = "classify") -> list[str]:
    """The warnings of a task, without the one about the missing dev file."""
    return [w for w in load_task(kind, path).warnings if "no dev file" not in w]


@pytest.mark.parametrize("missing", ["nan", "NaN", "None", "NA", "n/a", "NULL", "-"])
def test_labels_that_look_like_missing_values_are_reported(tmp_path, missing):
    rows = [{"text": f"film {i}", "label": missing if i % 10 == 3 else "good"} for i in range(40)]
    (warning,) = warnings_of(write(tmp_path / "a.csv", *rows))
    assert "4 of 40 rows" in warning
    assert f"'{missing}' 4" in warning
    assert "delete these rows" in warning
    assert missing in load_task("classify", tmp_path / "a.csv").labels


def test_missing_labels_in_json_and_dev_files_are_reported(tmp_path):
    rows = [{"text": f"film {i}", "label": float("nan") if i < 2 else 1.0} for i in range(6)]
    write(tmp_path / "train.jsonl", *rows)
    write(tmp_path / "dev.jsonl", {"text": "new", "label": "nan"}, {"text": "other", "label": 1.0})
    train, dev = warnings_of(tmp_path)
    assert "2 of 6 rows" in train
    assert "1 of 2 rows" in dev
    assert str(tmp_path / "dev.jsonl") in dev


def test_ordinary_labels_are_not_reported(tmp_path):
    assert warnings_of(write(tmp_path / "a.csv", *reviews(30))) == []


@pytest.mark.parametrize("empty", ["", "  \t"])
def test_rows_without_text_are_skipped_and_counted(tmp_path, empty):
    rows = reviews(1500)
    rows[700]["text"] = rows[900]["text"] = empty
    path = write(tmp_path / "a.csv", *rows)
    (warning,) = warnings_of(path)
    assert warning.startswith(f"2 of 1,500 rows of '{path}' are skipped")
    assert "first on line 702" in warning
    task = load_task("classify", path)
    assert sum(len(split) for split in task.splits.values()) == 1498


def test_rows_without_a_second_text_or_an_option_are_skipped(tmp_path):
    rows = [{"premise": f"p{i}", "hypothesis": f"h{i}", "label": i % 2} for i in range(9)]
    rows[4]["hypothesis"] = None
    (warning,) = warnings_of(write(tmp_path / "a.jsonl", *rows), "pair")
    assert "'premise' or 'hypothesis' is empty, first on line 5" in warning
    rows = riddles(9)
    rows[2]["choice1"] = " "
    (warning,) = warnings_of(write(tmp_path / "b.csv", *rows), "choice")
    assert "1 of 9 rows" in warning


def test_a_file_without_any_text_is_refused(tmp_path):
    path = write(tmp_path / "a.csv", *[{"text": " ", "label": label} for label in "abab"])
    assert "has no row with a text in the column 'text'" in refusal("classify", path)


def test_prediction_skips_rows_without_text(tmp_path):
    path = write(
        tmp_path / "a.csv", {"text": "x", "n": 1}, {"text": "", "n": 1}, {"text": "y", "n": 2}
    )
    with pytest.warns(UserWarning, match="1 of 3 rows .* first on line 3"):
        examples = read_user_examples(path, "classify", {"text": "text"})
    assert [(e.id, e.text) for e in examples] == [("2", "x"), ("4", "y")]


# ------------------------------------------------------------------ pipes


@pytest.fixture
def pipe(tmp_path):
    """Write bytes into a named pipe, once, and return its path."""
    writers = []

    def make(name: str, content: bytes) -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        writers.append(threading.Thread(target=path.write_bytes, args=(content,)))
        writers[-1].start()
        return path

    yield make
    for writer in writers:
        writer.join(timeout=10)
        assert not writer.is_alive()


@pytest.mark.parametrize("name", ["reviews.csv", "reviews"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_named_pipe_is_read_like_a_file(tmp_path, pipe, name, ending):
    if name.endswith(".csv") and ending == "jsonl":
        name = "reviews.jsonl"
    plain = write(tmp_path / f"plain.{ending}", *reviews(30))
    piped = load_task("classify", pipe(name, plain.read_bytes()))
    assert piped.splits == load_task("classify", plain).splits
    assert piped.name == "reviews"


@pytest.mark.parametrize("kind", ["tag", "qa"])
@pytest.mark.parametrize("name", ["in.tsv", "in.jsonl", "in"])
def test_tags_and_questions_are_read_from_a_pipe(tmp_path, pipe, kind, name):
    columns = {"tag": ("words", "tags"), "qa": ("question", "context", "answer")}[kind]
    rows = [dict(zip(columns, (f"w{i} x", f"A {i}", "A"), strict=False)) for i in range(12)]
    plain = write(tmp_path / f"plain{Path(name).suffix or '.jsonl'}", *rows)
    piped = load_task(kind, pipe(name, plain.read_bytes()))
    assert piped.splits == load_task(kind, plain).splits


def test_conll_is_read_from_a_pipe(pipe):
    content = "".join(f"word{i} B-PER\n\n" for i in range(20)).encode()
    assert load_task("tag", pipe("in", content)).labels == ("S-PER",)


def test_process_substitution_and_standard_input_are_read(tmp_path):
    path = write(tmp_path / "a.csv", *reviews(30))
    code = (
        "import sys; from pathlib import Path; from electra.tasks.load import load_task; "
        "task = load_task('classify', Path(sys.argv[1])); print(task.name, task.labels)"
    )
    script = f'cat "{path}" | "$0" -c "$1" /dev/stdin; "$0" -c "$1" <(cat "{path}")'
    found = subprocess.run(
        ["bash", "-c", script, sys.executable, code], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["classify ('bad', 'fair', 'good')"] * 2
