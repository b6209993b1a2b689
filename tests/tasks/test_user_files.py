"""Loading a task from your own files."""

import gzip
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.load import load_task
from electra.tasks.user_files import load_user_task, read_user_examples


def reviews(count: int, start: int = 0) -> list[dict]:
    labels = ("good", "bad", "fair")
    return [{"text": f"film {i}", "label": labels[i % 3]} for i in range(start, start + count)]


def refusal(kind: str, path: Path, **columns: str) -> str:
    with pytest.raises(UserError) as error:
        load_user_task(kind, path, **columns)
    return str(error.value)


@pytest.mark.parametrize("ending", ["csv", "tsv", "tab", "jsonl", "json"])
@pytest.mark.parametrize("dev", ["dev", "valid", "validation", "valid-v1.3", "DEV"])
def test_folder_with_train_dev_and_test(write_rows, tmp_path, ending, dev):
    write_rows(tmp_path / f"train.{ending}", *reviews(6))
    write_rows(tmp_path / f"{dev}.{ending}", *reviews(3, 10))
    write_rows(tmp_path / f"test.{ending}", {"text": "film 20"})
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


def test_one_file_is_split_by_its_texts(write_rows, tmp_path):
    rows = reviews(97)
    task = load_user_task("classify", write_rows(tmp_path / "film.csv", *rows))
    again = load_user_task("classify", write_rows(tmp_path / "other.jsonl", *reversed(rows)))
    dev = {e.text for e in task.splits["dev"]}
    assert len(dev) == len(task.splits["dev"]) == 10
    assert dev == {e.text for e in again.splits["dev"]}
    assert dev.isdisjoint(e.text for e in task.splits["train"])
    assert len(task.splits["train"]) == 87
    assert task.name == "film"
    (warning,) = task.warnings
    assert "no dev file: 10 of the 97" in warning


def test_dev_split_keeps_rare_labels_and_equal_texts_together(write_rows, tmp_path):
    rows = [{"text": f"x{i}", "label": str(i)} for i in range(20)]  # each label once
    rows += [{"text": "the same", "label": "0"}] * 10
    task = load_user_task("classify", write_rows(tmp_path / "a.csv", *rows))
    assert {e.label for e in task.splits["train"]} == set(range(20))
    assert {e.text for e in task.splits["dev"]} <= {"the same", "x0"}
    assert sum(e.text == "the same" for e in task.splits["train"]) in (0, 10)


def test_ids_default_to_line_numbers(write_rows, tmp_path):
    task = load_user_task("classify", write_rows(tmp_path / "a.csv", *reviews(4)))
    examples = [*task.splits["train"], *task.splits["dev"]]
    assert sorted(e.id for e in examples) == ["2", "3", "4", "5"]
    rows = [{"id": f"r{i}", **row} for i, row in enumerate(reviews(4))]
    task = load_user_task("classify", write_rows(tmp_path / "b.csv", *rows))
    assert {e.id for e in task.splits["train"]} < {"r0", "r1", "r2", "r3"}
    path = write_rows(tmp_path / "c.jsonl", {"id": 0, "text": "a"}, {"id": None, "text": "b"})
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
def test_order_of_labels(write_rows, tmp_path, given, labels):
    rows = [{"text": f"x{i}", "label": given[i % len(given)]} for i in range(12)]
    assert load_user_task("classify", write_rows(tmp_path / "a.jsonl", *rows)).labels == labels


def test_regress_on_pairs(write_rows, tmp_path):
    rows = [{"sentence1": f"a{i}", "sentence2": f"b{i}", "label": i / 2} for i in range(20)]
    task = load_user_task("regress", write_rows(tmp_path / "a.jsonl", *rows))
    assert (task.kind, task.labels, task.metric) == ("regress", (), "spearman")
    assert task.columns == {"text": "sentence1", "pair": "sentence2", "label": "label"}
    labels = sorted(e.label for split in ("train", "dev") for e in task.splits[split])
    assert labels == [i / 2 for i in range(20)]
    first = task.splits["train"][0]
    assert first.pair == first.text.replace("a", "b")


def train_and_dev(
    write_rows, folder: Path, dev: list[dict], train: list[dict] | None = None
) -> Path:
    write_rows(folder / "train.jsonl", *(train or reviews(6)))
    write_rows(folder / "dev.jsonl", *dev)
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
def test_errors_name_file_and_line(write_rows, tmp_path, dev, words):
    message = refusal("classify", train_and_dev(write_rows, tmp_path, dev))
    assert words in message
    assert str(tmp_path / "dev.jsonl") in message


@pytest.mark.parametrize("bad", ["many", "nan", "inf", "3,5", True])
def test_regression_labels_must_be_numbers(write_rows, tmp_path, bad):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": bad}]
    message = refusal("regress", write_rows(tmp_path / "a.jsonl", *rows))
    assert f"'{tmp_path / 'a.jsonl'}' line 2: the label" in message
    assert "is not a number" in message


def test_a_single_label_is_refused(write_rows, tmp_path):
    path = write_rows(tmp_path / "a.csv", *[{"text": f"x{i}", "label": "1"} for i in range(5)])
    assert "has the same label '1' in all rows" in refusal("classify", path)


def test_a_label_for_nearly_every_row_is_refused(write_rows, tmp_path):
    rows = [{"text": ("good", "bad")[i % 2], "label": f"film {i % 19}"} for i in range(20)]
    assert "19 different labels in 20 rows" in refusal(
        "classify", write_rows(tmp_path / "a.csv", *rows)
    )
    rows = [{"text": f"film {i}", "label": f"star {i % 18}"} for i in range(20)]
    task = load_user_task("classify", write_rows(tmp_path / "b.csv", *rows))
    assert len(task.labels) == 18


def test_too_few_rows_for_a_dev_split(write_rows, tmp_path):
    path = write_rows(tmp_path / "a.csv", {"text": "x", "label": "1"}, {"text": "x", "label": "2"})
    assert "too few different examples" in refusal("classify", path)
    path = write_rows(tmp_path / "b.csv", {"text": "x", "label": "1"})
    assert "too few different examples" in refusal("regress", path)
    path = write_rows(tmp_path / "c.csv", {"text": "x", "label": "1"}, {"text": "y", "label": "2"})
    assert len(load_user_task("regress", path).splits["dev"]) == 1


def test_warnings_about_overlap_and_numeric_labels(write_rows, tmp_path):
    task = load_user_task("classify", train_and_dev(write_rows, tmp_path / "a", reviews(4, 4)))
    assert len(task.warnings) == 1
    assert task.warnings[0].startswith("2 of the 4 rows")
    rows = [{"text": f"x{i}", "label": i / 10} for i in range(101)]
    task = load_user_task("classify", write_rows(tmp_path / "b.jsonl", *rows, *rows))
    assert any("101 different numbers" in w and "regress" in w for w in task.warnings)
    assert len(load_user_task("regress", tmp_path / "b.jsonl").warnings) == 1


def questions(count: int, options: int = 3) -> list[dict]:
    return [
        {
            "question": f"which {i}?",
            **{f"choice{n}": f"answer {i} {n}" for n in reversed(range(options))},
            "label": i % options,
        }
        for i in range(count)
    ]


def test_choices_in_columns(write_rows, tmp_path):
    path = write_rows(tmp_path / "a.csv", *questions(12, 11))
    task = load_user_task("choice", path)
    assert (task.kind, task.metric, task.labels) == ("choice", "accuracy", ())
    first = task.splits["train"][0]
    number = first.text.removeprefix("which ").removesuffix("?")
    assert first.options == tuple(f"answer {number} {n}" for n in range(11))
    assert first.label == int(number) % 11
    path = write_rows(tmp_path / "b.csv", *[{**row, "label": 1} for row in questions(5)])
    named = load_user_task("choice", path, text="question", pair="choice2, choice0")
    assert named.columns["pair"] == "choice2,choice0"
    assert all(e.options[1].endswith(" 0") for e in named.splits["train"])


def test_choices_in_a_list_with_labels_by_index_or_text(write_rows, tmp_path):
    rows = [
        {"question": f"q{i}", "choices": ["red", "7"], "label": given}
        for i, given in enumerate([0, "1", "red", 7, "7", 1.0])
    ]
    task = load_user_task("choice", write_rows(tmp_path / "a.jsonl", *rows))
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
def test_invalid_choices_are_refused(write_rows, tmp_path, second, words):
    first = {"question": "q", "choices": ["a", "b"], "label": 0}
    path = write_rows(tmp_path / "a.jsonl", first, {"question": "r", **second})
    with pytest.raises(UserError, match=words):
        load_user_task("choice", path)


def test_read_user_examples(write_rows, tmp_path):
    task = load_user_task("classify", write_rows(tmp_path / "a.csv", *reviews(30)))
    new = write_rows(tmp_path / "new.jsonl", {"text": "x"}, {"text": "y", "label": "good"})
    examples = read_user_examples(new, task.kind, task.columns)
    assert [(e.text, e.label) for e in examples] == [("x", None), ("y", None)]
    choices = load_user_task("choice", write_rows(tmp_path / "b.csv", *questions(12)))
    row = questions(1)[0]
    del row["label"]
    (example,) = read_user_examples(
        write_rows(tmp_path / "c.csv", row), choices.kind, choices.columns
    )
    assert example.options == ("answer 0 0", "answer 0 1", "answer 0 2")
    assert example.label is None


def test_task_name(write_rows, tmp_path, monkeypatch):
    write_rows(tmp_path / "shop.de/train.csv", *reviews(9))
    assert load_user_task("classify", tmp_path / "shop.de").name == "shop.de"
    packed = tmp_path / "film.2.csv.gz"
    packed.write_bytes(gzip.compress(write_rows(tmp_path / "film.csv", *reviews(20)).read_bytes()))
    assert load_user_task("classify", packed).name == "film.2"
    monkeypatch.chdir(tmp_path / "shop.de")
    assert load_user_task("classify", Path()).name == "shop.de"


@pytest.mark.parametrize("count", [100, 101])
def test_numeric_labels_are_reported_above_100(write_rows, tmp_path, count):
    rows = [{"text": f"x{i}", "label": i % count} for i in range(3 * count)]
    warnings = load_user_task("classify", write_rows(tmp_path / "a.jsonl", *rows)).warnings
    assert any("regress" in warning for warning in warnings) == (count > 100)


# ------------------------------------------------------------------ missing labels and empty texts


def warnings_of(path: Path, kind: str = "classify") -> list[str]:
    """The warnings of a task, without the one about the missing dev file."""
    return [w for w in load_task(kind, path).warnings if "no dev file" not in w]


@pytest.mark.parametrize("missing", ["nan", "NaN", "None", "NA", "n/a", "NULL", "-"])
def test_labels_that_look_like_missing_values_are_reported(write_rows, tmp_path, missing):
    rows = [{"text": f"film {i}", "label": missing if i % 10 == 3 else "good"} for i in range(40)]
    (warning,) = warnings_of(write_rows(tmp_path / "a.csv", *rows))
    assert "4 of 40 rows" in warning
    assert f"'{missing}' 4" in warning
    assert "delete these rows" in warning
    assert missing in load_task("classify", tmp_path / "a.csv").labels


def test_missing_labels_in_json_and_dev_files_are_reported(write_rows, tmp_path):
    rows = [{"text": f"film {i}", "label": float("nan") if i < 2 else 1.0} for i in range(6)]
    write_rows(tmp_path / "train.jsonl", *rows)
    write_rows(
        tmp_path / "dev.jsonl", {"text": "new", "label": "nan"}, {"text": "other", "label": 1.0}
    )
    train, dev = warnings_of(tmp_path)
    assert "2 of 6 rows" in train
    assert "1 of 2 rows" in dev
    assert str(tmp_path / "dev.jsonl") in dev


def test_empty_labels_of_the_test_file_are_not_reported(write_rows, tmp_path):
    write_rows(tmp_path / "train.jsonl", *reviews(6))
    write_rows(tmp_path / "dev.jsonl", *reviews(3, 10))
    write_rows(tmp_path / "test.jsonl", {"text": "new", "label": None})
    assert warnings_of(tmp_path) == []


def test_ordinary_labels_are_not_reported(write_rows, tmp_path):
    assert warnings_of(write_rows(tmp_path / "a.csv", *reviews(30))) == []


@pytest.mark.parametrize("empty", ["", "  \t"])
def test_rows_without_text_are_skipped_and_counted(write_rows, tmp_path, empty):
    rows = reviews(1500)
    rows[700]["text"] = rows[900]["text"] = empty
    path = write_rows(tmp_path / "a.csv", *rows)
    (warning,) = warnings_of(path)
    assert warning.startswith(f"2 of 1,500 rows of '{path}' are skipped")
    assert "first on line 702" in warning
    task = load_task("classify", path)
    assert sum(len(split) for split in task.splits.values()) == 1498


def test_rows_without_a_second_text_or_an_option_are_skipped(write_rows, tmp_path):
    rows = [{"premise": f"p{i}", "hypothesis": f"h{i}", "label": i % 2} for i in range(9)]
    rows[4]["hypothesis"] = None
    (warning,) = warnings_of(write_rows(tmp_path / "a.jsonl", *rows), "pair")
    assert "'premise' or 'hypothesis' is empty, first on line 5" in warning
    rows = questions(9)
    rows[2]["choice1"] = " "
    (warning,) = warnings_of(write_rows(tmp_path / "b.csv", *rows), "choice")
    assert "1 of 9 rows" in warning


def test_a_file_without_any_text_is_refused(write_rows, tmp_path):
    path = write_rows(tmp_path / "a.csv", *[{"text": " ", "label": label} for label in "abab"])
    assert "has no row with a text in the column 'text'" in refusal("classify", path)


def test_prediction_skips_rows_without_text(write_rows, tmp_path):
    path = write_rows(
        tmp_path / "a.csv", {"text": "x", "n": 1}, {"text": "", "n": 1}, {"text": "y", "n": 2}
    )
    with pytest.warns(UserWarning, match="1 of 3 rows .* first on line 3"):
        examples = read_user_examples(path, "classify", {"text": "text"})
    assert [(e.id, e.text) for e in examples] == [("2", "x"), ("4", "y")]
