"""`electra glue` on made-up folders: every task, one table, and the file for GLUE's server."""

import json
import random
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from electra.errors import UserError
from electra.finetune import glue as glue_module
from electra.finetune.glue import (
    AVERAGED,
    PUBLISHED,
    average,
    markdown,
    missing_tasks,
    plot_scores,
    run_glue,
    select_tasks,
    summary_line,
)
from electra.finetune.results import add_result, read_results
from electra.tasks.examples import Task

WORDS = ("old", "young", "tired", "farmer", "sailor", "baker", "plough", "sail", "knead", "dig")
QUICK = ("lr=3e-3", "epochs=1", "batch_size=8", "device=cpu")


def write(path: Path, *rows: tuple[object, ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows), encoding="utf-8")


def text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 8)))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """GLUE with four of its tasks, the columns as in the official files."""
    root, rng = tmp_path_factory.mktemp("glue"), random.Random(0)
    for split, count in (("train", 24), ("dev", 10)):
        labels = [(number % 2, "") for number in range(count)]
        write(root / f"CoLA/{split}.tsv", *(("gj", *label, text(rng)) for label in labels))
        head = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
        rows = [(number % 2, 1, 2, text(rng), text(rng)) for number in range(count)]
        write(root / f"MRPC/{split}.tsv", head, *rows)
        head = ("index", "genre", "sentence1", "sentence2", "score")
        rows = [(number, "news", text(rng), text(rng), number % 6) for number in range(count)]
        write(root / f"STS-B/{split}.tsv", head, *rows)
    names = ("contradiction", "entailment", "neutral")
    for split, count in (("train", 24), ("dev_matched", 9), ("dev_mismatched", 6)):
        head = ("index", "sentence1", "sentence2", "gold_label")
        rows = [(number, text(rng), text(rng), names[number % 3]) for number in range(count)]
        write(root / f"MNLI/{split}.tsv", head, *rows)
    write(root / "CoLA/test.tsv", ("index", "sentence"), *((n, text(rng)) for n in range(7)))
    head = ("index", "#1 ID", "#2 ID", "#1 String", "#2 String")
    write(root / "MRPC/test.tsv", head, *((n, 1, 2, text(rng), text(rng)) for n in range(5)))
    head = ("index", "genre", "sentence1", "sentence2")
    write(root / "STS-B/test.tsv", head, *((n, "news", text(rng), text(rng)) for n in range(4)))
    head = ("index", "sentence1", "sentence2")
    for name, count in (("MNLI/test_matched", 3), ("MNLI/test_mismatched", 4), ("AX/AX", 2)):
        write(root / f"{name}.tsv", head, *((n, text(rng), text(rng)) for n in range(count)))
    return root


@pytest.fixture(scope="module")
def done(data, model_folder, tmp_path_factory):
    """All of it with two seeds: the folder, and what the command printed."""
    import io

    from rich.console import Console

    from electra.config import override
    from electra.finetune.settings import FinetuneConfig

    out, console = tmp_path_factory.mktemp("scores") / "out", Console(file=io.StringIO(), width=200)
    config = override(FinetuneConfig(), QUICK)
    rows = run_glue(str(model_folder), data, out, [0, 1], config, console)
    return out, rows, console.file.getvalue()


def test_output_folder(done):
    out, rows, _ = done
    assert [row["task"] for row in rows] == ["cola", "mrpc", "stsb", "mnli"]
    assert [row["metric"] for row in rows] == ["matthews", "accuracy", "spearman", "accuracy"]
    assert json.loads((out / "summary.json").read_text()) == {"tasks": rows, "average": None}
    lines = [json.loads(each) for each in (out / "results.jsonl").read_text().splitlines()]
    assert [(r["task"], r["seed"]) for r in lines] == [
        (name, seed) for name in ("cola", "mrpc", "stsb", "mnli") for seed in (0, 1)
    ]
    for row in rows:
        scores = [r["score"] for r in lines if r["task"] == row["task"]]
        assert row["median"] == row["mean"] == pytest.approx(sum(scores) / 2)
        assert (row["lowest"], row["highest"]) == (min(scores), max(scores))
        assert row["seeds"] == 2
        assert row["failed"] == [r["seed"] for r in read_results(out / row["task"]) if r["failed"]]
    assert rows[0]["metrics"].keys() == {"matthews", "accuracy"}
    assert rows[2]["metrics"].keys() == {"spearman", "pearson"}
    assert rows[3]["metrics"].keys() == {"accuracy", "dev_mismatched_accuracy"}


def test_table_has_the_published_scores(done):
    out, rows, _ = done
    head, _, *lines = (out / "table.md").read_text().splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert columns[:3] == ["task", "metric", "median"]
    for shown, row in zip(lines, rows, strict=True):
        cells = dict(zip(columns, (c.strip() for c in shown.strip("|").split("|")), strict=True))
        assert cells["task"] == row["task"]
        assert cells["median"] == f"{100 * row['median']:.1f}"
        assert cells["failed"] == ", ".join(map(str, row["failed"]))
        place = AVERAGED.index(row["task"])
        assert cells["ELECTRA-Small (published)"] == f"{PUBLISHED['ELECTRA-Small'][place]:.1f}"


def test_submission_has_the_predictions_of_the_best_seed(done):
    out, _, printed = done
    assert "Submission for the GLUE server:" in printed
    with zipfile.ZipFile(out / "submission" / "submission.zip") as pack:
        files = {name: pack.read(name).decode().splitlines() for name in pack.namelist()}
    sizes = {name: len(lines) - 1 for name, lines in files.items()}
    assert sizes == {
        "CoLA.tsv": 7,
        "MRPC.tsv": 5,
        "STS-B.tsv": 4,
        "MNLI-m.tsv": 3,
        "MNLI-mm.tsv": 4,
        "AX.tsv": 2,
    }
    for name, task, split in (
        ("CoLA.tsv", "cola", "test"),
        ("MNLI-m.tsv", "mnli", "test"),
        ("MNLI-mm.tsv", "mnli", "test_mismatched"),
        ("AX.tsv", "mnli", "ax"),
    ):
        best = max(read_results(out / task), key=lambda r: r["score"])
        path = out / task / "predictions" / f"seed-{best['seed']}" / f"{split}.jsonl"
        said = [json.loads(each)["label"] for each in path.read_text().splitlines()]
        assert files[name] == [
            "index\tprediction",
            *(f"{n}\t{label}" for n, label in enumerate(said)),
        ]
    values = [float(each.split("\t")[1]) for each in files["STS-B.tsv"][1:]]
    assert all(0 <= value <= 5 for value in values)


def test_best_seed_is_submitted(tmp_path):
    said = {0: ["0", "0", "0"], 1: ["1", "0", "1"], 2: ["1", "1", "1"]}
    for seed, score in ((0, 0.2), (1, 0.9), (2, 0.5)):
        folder = tmp_path / "cola" / "predictions" / f"seed-{seed}"
        folder.mkdir(parents=True)
        lines = [json.dumps({"id": "x", "label": label}) + "\n" for label in said[seed]]
        (folder / "test.jsonl").write_text("".join(lines))
        add_result(tmp_path / "cola", {"seed": seed, "score": score, "failed": False})
    task = Task(name="cola", kind="classify", labels=("0", "1"), splits={"dev": [], "test": []})
    assert glue_module.best_test_predictions({"cola": task}, tmp_path)["cola"].tolist() == [1, 0, 1]


def test_command_continues_and_prints_the_table(
    electra, data, done, model_folder, tmp_path, monkeypatch
):
    out, rows, _ = done
    trained = []
    monkeypatch.setattr("electra.finetune.task_run.fit", lambda *given, **more: trained.append(1))
    command = ("glue", model_folder, *QUICK, "--data", data, "--out", out, "--seeds", 2)
    code, shown, err = electra(*command)
    assert code == 0, err
    assert not trained  # all was done before
    for row in rows:
        cells = next(each for each in shown.splitlines() if each.split()[:1] == [row["task"]])
        assert f"{100 * row['median']:.1f}" in cells
    assert "Average" not in shown  # four tasks are not eight
    assert (out / "glue.png").read_bytes().startswith(b"\x89PNG")
    code, shown, err = electra(*command, "--json")
    assert code == 0, err
    assert json.loads(shown) == rows


def test_plot_with_a_closed_standard_output(unread, data, done, model_folder):
    out, _, _ = done
    (out / "glue.png").unlink(missing_ok=True)
    assert unread("glue", model_folder, *QUICK, "--data", data, "--out", out, "--seeds", 2) == 0
    assert (out / "glue.png").is_file()


def test_without_matplotlib_only_the_plot_is_missing(
    electra, data, done, model_folder, monkeypatch
):
    out, _, _ = done
    (out / "glue.png").unlink(missing_ok=True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, shown, err = electra(
        *("glue", model_folder, *QUICK, "--data", data, "--out", out, "--seeds", 2)
    )
    assert code == 0
    assert "stsb" in shown
    assert "warning: no plot:" in err
    assert "pip install 'electra[plot]'" in err
    assert not (out / "glue.png").exists()


def test_tasks_option(electra, refused, data, model_folder, tmp_path):
    out = tmp_path / "[out]"  # no markup
    command = ("glue", model_folder, *QUICK, "--data", data, "--out", out)
    code, shown, err = electra(*command, "--seeds", 1, "--tasks", "STS-B, cola", "--json")
    assert code == 0, err
    assert [row["task"] for row in json.loads(shown)] == ["cola", "stsb"]
    assert f"Submission for the GLUE server: {out / 'submission' / 'submission.zip'}" in err
    assert not (out / "mrpc").exists()
    sentence = refused(*command, "--tasks", "cola,colla")
    assert "no task colla" in sentence
    assert "choose from cola, mrpc, stsb, mnli" in sentence
    assert "needs the task mnli" in refused(*command, "--tasks", "cola", "--from-mnli")
    assert "There is no folder" in refused(
        *("glue", model_folder, "--data", tmp_path / "none", "--out", tmp_path / "new")
    )
    (tmp_path / "empty").mkdir()
    assert "has no GLUE task" in refused(
        *("glue", model_folder, "--data", tmp_path / "empty", "--out", tmp_path / "new")
    )
    assert not (tmp_path / "new").exists()


def test_other_results_are_refused(refused, data, model_folder, tmp_path):
    (tmp_path / "results.jsonl").write_text("of a study\n")
    sentence = refused("glue", model_folder, *QUICK, "--data", data, "--out", tmp_path)
    assert "is not empty and holds no scores of GLUE: choose another --out" in sentence
    assert [p.name for p in tmp_path.iterdir()] == ["results.jsonl"]
    assert (tmp_path / "results.jsonl").read_text() == "of a study\n"


def test_from_mnli(data, model_folder, quick, tmp_path, console, monkeypatch):
    begun = []
    original = glue_module.finetune

    def watched(model, task, *given):
        begun.append((task.name, model))
        return original(model, task, *given)

    monkeypatch.setattr(glue_module, "finetune", watched)
    config = replace(quick, epochs=0.4, batch_size=8)
    given = (str(model_folder), data, tmp_path / "out", [0], config, console)
    run_glue(*given, only=["cola", "mrpc", "mnli"], from_mnli=True)
    assert begun == [
        ("mnli", str(model_folder)),
        ("cola", str(model_folder)),
        ("mrpc", str(tmp_path / "out" / "mnli" / "model")),
    ]


def test_select_tasks():
    there = ["cola", "mrpc", "mnli", "rte"]
    assert select_tasks(there, [], False, Path("x")) == there
    assert select_tasks(there, ["rte", "cola"], False, Path("x")) == ["cola", "rte"]
    assert select_tasks(there, [], True, Path("x")) == ["mnli", "cola", "mrpc", "rte"]
    with pytest.raises(UserError):
        select_tasks([], [], False, Path("x"))


def row(task: str, median: float = 0.5, failed: tuple[int, ...] = ()) -> dict:
    spread = {"mean": 0.5, "deviation": 0.1, "lowest": 0.2, "highest": 0.9}
    return {"task": task, "metric": "m", "median": median, "seeds": 5, "failed": failed, **spread}


def test_missing_tasks_are_named():
    names = [name for name in AVERAGED if name not in ("cola", "rte")]
    assert missing_tasks(names, Path("glue")) == ["'glue' lacks cola, rte: no average is computed."]
    assert missing_tasks([*AVERAGED, "wnli"], Path("glue")) == []


def test_average_needs_all_eight_tasks():
    rows = [row(name, 0.1 * place) for place, name in enumerate(AVERAGED)]
    assert average(rows) == pytest.approx(0.35)
    assert average([*rows, row("wnli", 99.0)]) == pytest.approx(0.35)  # WNLI is none of them
    assert "eight tasks: 35.00" in markdown(rows)
    assert "eight" not in markdown(rows[1:])
    for missing in range(8):
        assert average([r for place, r in enumerate(rows) if place != missing]) is None


def test_summary_line_names_failed_seeds():
    assert "learned nothing: seed 1, 3" in summary_line(row("cola", failed=(1, 3)))
    assert "nothing" not in summary_line(row("cola"))
    assert "| 5 | 1, 3 |" in markdown([row("cola", failed=(1, 3))])


def test_published_averages():
    """Table 8 of the paper and the README of google-research/electra give these averages."""
    means = {name: sum(scores) / len(scores) for name, scores in PUBLISHED.items()}
    assert all(len(scores) == len(AVERAGED) for scores in PUBLISHED.values())
    assert means["ELECTRA-Small"] < means["ELECTRA-Base"] < means["ELECTRA-Large"]


def test_plot_has_seeds_and_medians(tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn, original = [], Axes.plot

    def plot(axes, *given, **named):
        drawn.append(given[:2])
        return original(axes, *given, **named)

    (tmp_path / "rte").mkdir()
    for seed, score in enumerate((0.25, 0.5, 0.75)):
        add_result(tmp_path / "rte", {"seed": seed, "score": score})
    monkeypatch.setattr(Axes, "plot", plot)
    plot_scores([row("rte", 0.5)], tmp_path)
    assert drawn[:2] == [([0, 0, 0], [25.0, 50.0, 75.0]), ([-0.3, 0.3], [50.0, 50.0])]
    assert [heights for _, heights in drawn[2:]] == [[66.7], [82.7]]  # Small and Base
