"""`finetune`: results per seed, crashes, resuming, and the best model."""

import io
import itertools
import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from rich.progress import Progress
from safetensors.torch import load_file, save_file

from electra.errors import UserError
from electra.finetune import task_run
from electra.finetune.predict import predict
from electra.finetune.results import read_results, summary
from electra.finetune.run import finetune, show_progress
from electra.finetune.settings import FinetuneConfig
from electra.finetune.task_model import load_task_model
from electra.tasks.load import load_task

# One step: fast, and the seeds still differ.
ONE_STEP = {"epochs": 0.1, "batch_size": 24, "warmup": 0.0}


@pytest.fixture
def start(model_folder, reviews, quick, tmp_path, console):
    """Fine-tune on the reviews: `start([0, 1], epochs=2)`."""

    def begin(seeds, out: str = "out", model=model_folder, data=reviews, **settings):
        task = load_task("classify", data)
        config = replace(quick, **(settings or ONE_STEP))
        return finetune(str(model), task, tmp_path / out, seeds, config, console)

    return begin


@pytest.fixture
def fitted(monkeypatch):
    """The groups of seeds that are trained."""
    groups: list[list[int]] = []
    original = task_run.fit

    def watched(networks, features, kind, config, seeds, **more):
        groups.append(list(seeds))
        return original(networks, features, kind, config, seeds, **more)

    monkeypatch.setattr(task_run, "fit", watched)
    return groups


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """All files except `process`."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "process"
    }


def test_output_folder(tuned, reviews):
    results = read_jsonl(tuned / "results.jsonl")
    assert [r["seed"] for r in results] == [0, 1]
    for result in results:
        assert result["task"] == reviews.name
        assert result["metric"] == "accuracy"
        assert result["score"] == result["accuracy"] > 0.95  # it has learned
        assert {"matthews", "f1"} <= result.keys()
        assert result["failed"] is False
        assert result["settings"]["lr"] == 3e-3
        assert result["settings"]["max_length"] == 64  # what counts, not the 0 of the default
        assert not {"device", "parallel_seeds", "precision"} & result["settings"].keys()
        assert result["seconds"] >= result["training_seconds"] > 0
        assert "cpu" in result["hardware"]
        assert len(result["model_sha256"]) == 64
    dev = load_task("classify", reviews).splits["dev"]
    for seed in (0, 1):
        lines = read_jsonl(tuned / "predictions" / f"seed-{seed}" / "dev.jsonl")
        assert [line["id"] for line in lines] == [e.id for e in dev]
        right = [r["label"] == ("bread", "cargo")[e.label] for r, e in zip(lines, dev, strict=True)]
        assert sum(right) / len(right) == results[seed]["score"]
        assert all(sum(r["probabilities"].values()) == pytest.approx(1) for r in lines)
    assert {p.name for p in tuned.iterdir()} == {"results.jsonl", "predictions", "model", "process"}


def test_finished_seeds_are_not_trained_again(start, fitted, tmp_path, console):
    start([0, 1])
    assert fitted == [[0], [1]]
    before = contents(tmp_path / "out")
    again = start([0, 1])
    assert fitted == [[0], [1]]
    assert [r["seed"] for r in again] == [0, 1]
    assert contents(tmp_path / "out") == before
    assert "already done: seed 0, 1" in console.file.getvalue()
    more = start([0, 5])  # what is returned is what was asked for
    assert fitted == [[0], [1], [5]]
    assert [r["seed"] for r in more] == [0, 5]
    assert [r["seed"] for r in read_results(tmp_path / "out")] == [0, 1, 5]


@pytest.mark.parametrize(("parallel_seeds", "groups"), [(0, [[4], [0], [2]]), (2, [[4, 0], [2]])])
def test_seeds_are_trained_in_groups(start, fitted, parallel_seeds, groups):
    results = start([4, 0, 2], parallel_seeds=parallel_seeds, **ONE_STEP)
    assert fitted == groups
    assert [r["together"] for r in results] == [len(group) for group in groups for _ in group]


def test_parallel_seeds_does_not_change_the_results(start, tmp_path):
    start([0, 1, 2], "alone", epochs=0.5)
    start([0, 1, 2], "together", epochs=0.5, parallel_seeds=3)
    for seed in range(3):
        place = f"predictions/seed-{seed}/dev.jsonl"
        alone, together = (read_jsonl(tmp_path / out / place) for out in ("alone", "together"))
        for one, two in zip(alone, together, strict=True):
            assert two["probabilities"] == pytest.approx(one["probabilities"], abs=1e-3)


def test_parallel_seeds_share_the_time(start, monkeypatch):
    monkeypatch.setattr(task_run.time, "monotonic", itertools.count().__next__)
    found = start([0, 1], parallel_seeds=2, **ONE_STEP)
    assert [r["training_seconds"] for r in found] == [0.5, 0.5]
    assert [r["seconds"] for r in found] == [1.0, 1.5]  # each reading of the clock adds a second


def test_results_with_other_hardware_settings_may_be_mixed(start, fitted):
    start([0])
    start([0, 1], parallel_seeds=2, precision="fp32", **ONE_STEP)
    assert fitted == [[0], [1]]


@pytest.mark.parametrize("place", ["fit", "add_result", "write_atomic", "save_tokenizer"])
def test_the_same_command_continues_after_a_crash(place, start, tmp_path, monkeypatch):
    # Each seed is better than the one before, so that each saves its model
    monkeypatch.setattr(task_run.TaskRun, "score", fake_scores({0: 0.3, 1: 0.4, 2: 0.5}))
    straight = start([0, 1, 2], "straight")
    original, calls = getattr(task_run, place), []

    def breaks(*given, **more):
        calls.append(1)
        if len(calls) == 2:  # the second seed's
            raise MemoryError("crash")
        return original(*given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(task_run, place, breaks)
        with pytest.raises(MemoryError):
            start([0, 1, 2])
    out = tmp_path / "out"
    assert [r["seed"] for r in read_results(out)] == [0]
    load_task_model(out / "model")  # whole
    results = start([0, 1, 2])
    assert [(r["seed"], r["score"]) for r in results] == [(r["seed"], r["score"]) for r in straight]
    wanted = contents(tmp_path / "straight")
    found = contents(out)
    assert found.keys() == wanted.keys()  # nothing half-written is left behind
    del wanted["results.jsonl"]  # it has times
    assert all(found[name] == data for name, data in wanted.items())


def test_crash_after_the_model_and_before_its_result(start, tmp_path):
    start([0])
    (tmp_path / "out" / "results.jsonl").unlink()
    assert [r["seed"] for r in start([0])] == [0]


@pytest.mark.parametrize("task", ["reviews", "kritiken-übel"])
def test_an_incomplete_last_line_is_ignored(task, start, tmp_path, fitted):
    """Also if it ends within a UTF-8 character."""
    start([0])
    path = tmp_path / "out" / "results.jsonl"
    whole = path.read_bytes()
    line = json.dumps({"task": task}, ensure_ascii=False).encode()
    cut = line.index("ü".encode()) + 1 if "ü" in task else len(line) - 1
    path.write_bytes(whole + line[:cut])
    results = start([0, 1])
    assert [r["seed"] for r in results] == [0, 1]
    assert fitted == [[0], [1]]
    assert path.read_bytes().startswith(whole)
    assert [r["seed"] for r in read_results(tmp_path / "out")] == [0, 1]


def changed_model(model_folder, folder: Path) -> Path:
    shutil.copytree(model_folder, folder)
    weights = load_file(folder / "model.safetensors")
    name = "electra.encoder.layer.1.output.LayerNorm.weight"
    # A last layer that says the same of everything, so that nothing can be told apart
    save_file(weights | {name: 0 * weights[name]}, folder / "model.safetensors")
    return folder


def test_other_settings_models_and_data_are_refused(start, model_folder, reviews, tmp_path):
    start([0])
    before = contents(tmp_path / "out")
    with pytest.raises(UserError, match=r"results with lr=0\.003, not 0\.001: choose another"):
        start([0, 1], lr=1e-3, **ONE_STEP)
    with pytest.raises(UserError, match="results with head=paper, not transformers"):
        start([0], head="transformers", **ONE_STEP)
    with pytest.raises(UserError, match="results of another model"):
        start([0, 1], model=changed_model(model_folder, tmp_path / "model"))
    other = tmp_path / reviews.name
    shutil.copytree(reviews, other)
    text = (other / "train.csv").read_text()
    (other / "train.csv").write_text(text.replace(",bread", ",cargo", 1))
    with pytest.raises(UserError, match="results of another data set"):
        start([0, 1], data=other)
    other.rename(tmp_path / "named")
    with pytest.raises(UserError, match="results of another task"):
        start([0, 1], data=tmp_path / "named")
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("parallel_seeds", [1, 2, 3])
def test_the_model_of_the_best_seed_is_kept(parallel_seeds, start, monkeypatch, reviews, tmp_path):
    """The best seed on dev, here the second of three."""
    monkeypatch.setattr(task_run.TaskRun, "score", fake_scores({7: 0.3, 8: 0.9, 9: 0.5}))
    start([7, 8, 9], parallel_seeds=parallel_seeds, **ONE_STEP)
    found = list(predict(str(tmp_path / "out"), reviews / "dev.csv", device="cpu"))
    for seed in (7, 8, 9):
        lines = read_jsonl(tmp_path / "out" / "predictions" / f"seed-{seed}" / "dev.jsonl")
        near = all(
            one["probabilities"] == pytest.approx(two["probabilities"], abs=1e-5)
            for one, two in zip(found, lines, strict=True)
        )
        assert near == (seed == 8)


def test_a_better_seed_of_a_later_call_replaces_the_model(start, monkeypatch, tmp_path):
    scores = {0: 0.5, 1: 0.4, 2: 0.6}
    monkeypatch.setattr(task_run.TaskRun, "score", fake_scores(scores))
    weights = {}
    for seed in scores:
        start([seed])
        weights[seed] = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    assert weights[0] == weights[1] != weights[2]


def test_failed_seeds_rank_last(start, monkeypatch, tmp_path):
    """If most of dev has one label, a constant prediction may score higher."""
    score = fake_scores({0: 0.9, 1: 0.5, 2: 0.95}, failed=(0, 2))
    monkeypatch.setattr(task_run.TaskRun, "score", score)
    weights = {}
    for seed in (0, 1, 2):
        start([seed])
        weights[seed] = (tmp_path / "out" / "model" / "model.safetensors").read_bytes()
    assert weights[0] != weights[1] == weights[2]


def fake_scores(scores, failed=()):
    original = task_run.TaskRun.score

    def score(self, seed, records, diverged):
        return original(self, seed, records, diverged) | {
            "score": scores[seed],
            "failed": seed in failed,
        }

    return score


def test_predictions_of_the_model_give_its_score(tuned, reviews):
    best = max(r["score"] for r in read_results(tuned))
    found = [r["label"] for r in predict(str(tuned), reviews / "dev.csv", device="cpu")]
    gold = [line.rpartition(",")[2] for line in (reviews / "dev.csv").read_text().splitlines()[1:]]
    assert np.mean([f == g for f, g in zip(found, gold, strict=True)]) == pytest.approx(best)


def test_failed_seeds_are_marked_and_counted(start, model_folder, tmp_path):
    same = changed_model(model_folder, tmp_path / "same")
    results = start([0, 1], model=same, lr=1e-9, epochs=0.1)
    assert [r["failed"] for r in results] == [True, True]
    assert [r["matthews"] for r in results] == [0.0, 0.0]
    found = summary([*results, results[0] | {"seed": 2, "score": 1.0, "failed": False}])
    assert found["failed"] == [0, 1]
    assert found["seeds"] == 3
    assert found["lowest"] == min(r["score"] for r in results)
    scores = [*(r["score"] for r in results), 1.0]
    assert found["deviation"] == pytest.approx(np.std(scores, ddof=1))
    assert found["median"] == np.median(scores)
    assert len(read_results(tmp_path / "out")) == 2


@pytest.mark.parametrize("lr", [1e9, 1e30])
def test_no_model_is_kept_if_every_seed_diverges(lr, start, fitted, tmp_path):
    for _ in range(2):  # also when the seeds are already done
        with pytest.raises(UserError, match=r"diverged for every seed.* lower lr \(it was 1e\+"):
            start([0, 1], lr=lr, epochs=0.5)
    assert fitted == [[0], [1]]
    assert not (tmp_path / "out" / "model").exists()
    results = read_results(tmp_path / "out")
    assert [(r["failed"], r["diverged"]) for r in results] == [(True, True)] * 2


@pytest.mark.parametrize("parallel_seeds", [1, 2])
def test_a_diverged_seed_is_never_the_best(parallel_seeds, start, monkeypatch, tmp_path):
    """Its score may be higher by chance; the other seed's model is kept."""
    build_model = task_run.TaskRun.build_model

    def broken(self, seed):
        model = build_model(self, seed)
        if seed == 0:
            with torch.no_grad():
                model.head.output.weight[0, 0] = float("nan")
        return model

    monkeypatch.setattr(task_run.TaskRun, "build_model", broken)
    monkeypatch.setattr(task_run.TaskRun, "score", fake_scores({0: 0.9, 1: 0.1}, failed=(0, 1)))
    results = start([0, 1], parallel_seeds=parallel_seeds, **ONE_STEP)
    assert [r["diverged"] for r in results] == [True, False]
    model, _ = load_task_model(tmp_path / "out" / "model")
    assert all(p.isfinite().all() for p in model.parameters())


def test_files_are_strict_json(start, tmp_path):
    """NaN and Infinity are not valid JSON, although Python reads them."""
    with pytest.raises(UserError, match="diverged"):
        start([0], lr=1e30, epochs=0.5)
    files = list((tmp_path / "out").rglob("*.jsonl"))
    assert len(files) == 2
    for path in files:
        for line in path.read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


def test_results_with_old_setting_names_match(start, fitted, tmp_path):
    """Results of earlier versions: the seeds are done, and other values are still refused."""
    start([0])
    path = tmp_path / "out" / "results.jsonl"
    result = json.loads(path.read_text())
    old = {new: old for old, new in FinetuneConfig.RENAMED_KEYS.items()}
    settings = {old.get(name, name): value for name, value in result["settings"].items()}
    assert {"batch", "length", "stride", "beam", "null_weight"} <= settings.keys()
    del result["diverged"]
    path.write_text(json.dumps(result | {"settings": settings}) + "\n")
    assert [r["seed"] for r in start([0, 1])] == [0, 1]
    assert fitted == [[0], [1]]
    with pytest.raises(UserError, match=r"results with batch_size=24, not 12: choose another"):
        start([2], epochs=0.1, batch_size=12, warmup=0.0)


def test_unlabelled_test_split_is_predicted_but_not_scored(start, reviews, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(reviews, data)
    (data / "test.csv").write_text("id,text\nx1,the old bread\nx2,cargo dig\nx3,farmer\n")
    (result,) = start([0], data=data)
    assert not [name for name in result if name.startswith("test")]
    lines = read_jsonl(tmp_path / "out" / "predictions" / "seed-0" / "test.jsonl")
    assert [line["id"] for line in lines] == ["x1", "x2", "x3"]
    (data / "test.csv").write_text("text,label\nthe old bread,bread\ncargo dig,\n")
    (result,) = start([0], "half", data=data)  # one label is missing: no score of some rows only
    assert not [name for name in result if name.startswith("test")]


def test_labelled_test_split_is_scored(start, reviews, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(reviews, data)
    shutil.copy(reviews / "dev.csv", data / "test.csv")
    with (data / "test.csv").open("a") as file:
        file.write("the old bread,bread\nthe old bread,cargo\n")
    (result,) = start([0], data=data, epochs=5)
    assert result["score"] == result["accuracy"]
    wanted = (60 * result["accuracy"] + 1) / 62  # one of the two is wrong, whatever it says
    assert result["test_accuracy"] == pytest.approx(wanted)
    assert {"test_matthews", "test_f1"} <= result.keys()


def test_a_folder_in_use_is_refused(start, tmp_path):
    out = tmp_path / "out"
    code = (
        "import sys, pathlib; from electra.run_dir import lock_run_dir\n"
        "with lock_run_dir(pathlib.Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(UserError, match=f"in use by process {other.pid}"):
            start([0])
        other.communicate()
    assert len(start([0])) == 1  # and when it has gone, the folder is free


@pytest.mark.parametrize("head", ["paper", "transformers"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_question_answering_end_to_end(head, precision, model_folder, quick, tmp_path, console):
    """The answer is the word after 'bread'; some contexts have none."""
    rng = random.Random(0)
    names = ("old", "young", "tired", "proud", "clever", "quiet")
    for split, count in (("train", 60), ("dev", 20)):
        lines = []
        for number in range(count):
            words = [rng.choice(("farmer", "sailor", "baker")) for _ in range(6)]
            answer = rng.choice(names) if number % 4 else ""
            if answer:
                place = rng.randrange(6)
                words[place : place + 1] = ["bread", answer]
            record = {"question": "the", "context": " ".join(words), "answer": answer}
            lines.append(json.dumps(record))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    task = load_task("qa", tmp_path)
    config = replace(quick, head=head, epochs=2, beam_size=4, precision=precision, parallel_seeds=2)
    results = finetune(str(model_folder), task, tmp_path / "out", [0, 1], config, console)
    for result in results:
        assert {"f1", "exact_match", "best_f1", "best_f1_threshold"} <= result.keys()
        assert result["score"] == result["f1"]
    _, card = load_task_model(tmp_path / "out" / "model")
    best = max(results, key=lambda r: r["score"])
    assert card.has_unanswerable
    assert card.beam_size == 4
    lines = read_jsonl(tmp_path / "out" / "predictions" / "seed-0" / "dev.jsonl")
    assert max(len(line["n_best"]) for line in lines) == 4
    assert card.null_threshold == best["best_f1_threshold"]


def test_truncated_examples_are_reported(model_folder, tmp_path, console):
    rows = [
        f"{'old ' * (30 if n == 3 else 4)}{w},{w}" for n in range(12) for w in ("bread", "cargo")
    ]
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "dev"):
        (data / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    config = FinetuneConfig(max_length=16, epochs=1, batch_size=4, lr=1e-3, device="cpu")
    task = load_task("classify", data)
    finetune(str(model_folder), task, tmp_path / "out", [0], config, console)
    shown = " ".join(console.file.getvalue().split())
    # Line 1 is the header, so that the seventh row stands in line 8.
    assert (
        "train: 2 of 24 examples longer than 16 tokens were truncated; the first is '8'." in shown
    )


def test_the_progress_of_groups_that_report_once(monkeypatch):
    shown = []
    monkeypatch.setattr(Progress, "update", lambda *_, **values: shown.append(values))
    with show_progress(Console(file=io.StringIO(), force_terminal=True), "task", 2) as progress:
        progress(10, 10)
        progress(10, 10)
    assert [values["completed"] for values in shown] == [10, 20]
