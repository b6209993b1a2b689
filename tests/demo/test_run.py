"""`electra demo`, with a few training steps."""

import json
import re
from dataclasses import replace

import pytest
from PIL import Image

from electra.demo import released, run
from electra.errors import UserError


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(run, "TRAIN_EXAMPLES", 64)
    monkeypatch.setattr(run, "DEV_EXAMPLES", 64)
    monkeypatch.setattr(run, "NUM_SEEDS", 1)
    monkeypatch.setattr(run, "FINETUNE", replace(run.FINETUNE, epochs=1))


def test_demo_runs_and_replaces_an_earlier_one(quick, tmp_path, console):
    out = tmp_path / "[" / "b]demo"  # must not be read as markup
    run.run_demo(out, "20steps", console)
    shown = console.file.getvalue()
    for word in ("recall", "AUC", "corrupted", "detected", "pre-trained", "from scratch"):
        assert word in shown
    assert shown.count("order, train: ") == 1  # the warning about truncated sentences
    assert "electra pretrain fast.small --data shards" in shown
    assert Image.open(out / "report.png").size > (800, 400)
    result = json.loads((out / "demo.json").read_text())
    assert set(result["order_accuracy"]) == {"pre-trained", "from scratch"}
    run.run_demo(out, "2steps", console)


def test_the_second_act_compares_the_released_model(
    quick, installed, monkeypatch, tmp_path, console
):
    installed("tiny-model-xx")
    monkeypatch.setattr(released, "RELEASED_MODEL", "tiny-model-xx")
    monkeypatch.setattr(run, "RELEASED_MODEL", "tiny-model-xx")
    run.run_demo(tmp_path / "demo", "2steps", console)
    result = json.loads((tmp_path / "demo" / "demo.json").read_text())
    first, second = console.file.getvalue().split("The released model beside the toy")
    assert "median" in first
    (toy,) = result["order_accuracy"]["pre-trained"]  # one seed
    accuracies = result["released"]["order_accuracy"]
    assert list(accuracies) == ["toy", "tiny-model-xx"]
    assert accuracies["toy"] == toy
    row = "".join(rf" +{accuracy:.1%}" for accuracy in accuracies.values())
    assert re.search(rf"word order task, fine-tuned{row} +50\.0%", second)
    assert "electra finetune" in second


def test_a_folder_with_other_files_is_refused(tmp_path, console):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="not from an earlier demo"):
        run.run_demo(tmp_path, None, console)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_an_invalid_budget_deletes_nothing(tmp_path, console):
    (tmp_path / "demo.json").write_text("{}")
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="not a budget"):
        run.run_demo(tmp_path, "soon", console)
    assert (tmp_path / "run").is_dir()


def test_replaced_tokens_are_marked():
    marked = run.mark_replaced(["the", "farm", "##er", "sings"], [False, False, True, True])
    assert marked.plain == "the farm<er> <sings>"
