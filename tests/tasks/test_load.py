"""Loading a task by name, from files and pipes."""

import subprocess
import sys
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.tasks.load import MIN_STEPS, load_task


def reviews(count: int) -> list[dict]:
    return [{"text": f"film {i}", "label": ("good", "bad", "fair")[i % 3]} for i in range(count)]


def test_columns_of_questions(write_rows, tmp_path):
    row = {"frage": "Who?", "absatz": "The barn burns.", "antwort": "barn"}
    rows = [{"id": str(i), **row, "absatz": f"{row['absatz']} {i}"} for i in range(9)]
    path = write_rows(tmp_path / "a.jsonl", *rows)
    task = load_task("qa", path, text="frage", pair="absatz", label="antwort")
    example = task.splits["train"][0]
    assert (example.question, example.context[:8]) == ("Who?", "The barn")
    assert example.answers[0].text == "barn"
    assert task.columns == {"question": "frage", "context": "absatz", "answer": "antwort"}


@pytest.mark.parametrize("name", ["CoLA", "squad2", "conll2003"])
@pytest.mark.parametrize("option", ["text", "pair", "label"])
def test_known_tasks_refuse_column_options(tmp_path, name, option):
    with pytest.raises(UserError, match=f"--{option} is for your own files"):
        load_task(name, tmp_path, **{option: "x"})


def test_only_your_own_files_have_a_least_number_of_steps(write_rows, tmp_path):
    lines = [{"text": f"film {i}", "label": i % 2} for i in range(9)]
    own = load_task("classify", write_rows(tmp_path / "mine.jsonl", *lines))
    assert own.min_steps == MIN_STEPS > 0
    path = tmp_path / "train.txt"
    path.write_text("".join(f"w{i} B-PER\n\n" for i in range(9)), encoding="utf-8")
    assert load_task("tag", path).min_steps == MIN_STEPS
    assert load_task("conll2003", path).min_steps == 0


def test_tagging_refuses_pair(write_rows, tmp_path):
    path = write_rows(
        tmp_path / "a.jsonl", *[{"words": [f"w{i}"], "tags": ["X"]} for i in range(9)]
    )
    assert load_task("tag", path).kind == "tag"
    with pytest.raises(UserError, match="--pair"):
        load_task("tag", path, pair="words")


@pytest.mark.parametrize("name", ["reviews.csv", "reviews"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl"])
def test_a_named_pipe_is_read_like_a_file(write_rows, tmp_path, pipe, name, ending):
    if name.endswith(".csv") and ending == "jsonl":
        name = "reviews.jsonl"
    plain = write_rows(tmp_path / f"plain.{ending}", *reviews(30))
    piped = load_task("classify", pipe(name, plain.read_bytes()))
    assert piped.splits == load_task("classify", plain).splits
    assert piped.name == "reviews"


@pytest.mark.parametrize("kind", ["tag", "qa"])
@pytest.mark.parametrize("name", ["in.tsv", "in.jsonl", "in"])
def test_tags_and_questions_are_read_from_a_pipe(write_rows, tmp_path, pipe, kind, name):
    columns = {"tag": ("words", "tags"), "qa": ("question", "context", "answer")}[kind]
    rows = [dict(zip(columns, (f"w{i} x", f"A {i}", "A"), strict=False)) for i in range(12)]
    plain = write_rows(tmp_path / f"plain{Path(name).suffix or '.jsonl'}", *rows)
    piped = load_task(kind, pipe(name, plain.read_bytes()))
    assert piped.splits == load_task(kind, plain).splits


def test_conll_is_read_from_a_pipe(pipe):
    content = "".join(f"word{i} B-PER\n\n" for i in range(20)).encode()
    assert load_task("tag", pipe("in", content)).labels == ("S-PER",)


def test_process_substitution_and_standard_input_are_read(write_rows, tmp_path):
    path = write_rows(tmp_path / "a.csv", *reviews(30))
    code = (
        "import sys; from pathlib import Path; from electra.tasks.load import load_task; "
        "task = load_task('classify', Path(sys.argv[1])); print(task.name, task.labels)"
    )
    script = f'cat "{path}" | "$0" -c "$1" /dev/stdin; "$0" -c "$1" <(cat "{path}")'
    found = subprocess.run(
        ["bash", "-c", script, sys.executable, code], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["classify ('bad', 'fair', 'good')"] * 2


def test_a_model_in_the_place_of_the_task_is_explained(tmp_path, installed):
    installed("tiny-model-xx")
    for model in (str(tmp_path), "tiny-model-xx"):
        with pytest.raises(UserError, match="name the model first and then the task"):
            load_task(model, tmp_path)
