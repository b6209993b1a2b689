"""The demo, with a run of a few steps."""

import importlib.util
import json
from dataclasses import replace

import pytest
from PIL import Image

from electra.demo import run, speeches
from electra.errors import UserError


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(run, "LABELLED", 64)
    monkeypatch.setattr(run, "JUDGED", 64)
    monkeypatch.setattr(run, "SEEDS", 1)
    monkeypatch.setattr(run, "TUNING", replace(run.TUNING, epochs=1))


def test_the_whole_way(quick, tmp_path, console):
    out = tmp_path / "[" / "b]demo"  # a path is no markup
    run.run_demo(out, "20steps", console)
    shown = console.file.getvalue()
    for words in ("recall", "AUC", "generator", "verdict", "pre-trained", "from scratch"):
        assert words in shown
    assert "electra pretrain paper.small --data shards" in shown
    assert Image.open(out / "report.png").size > (800, 400)
    result = json.loads((out / "demo.json").read_text())
    assert set(result["order_accuracy"]) == {"pre-trained", "from scratch"}
    run.run_demo(out, "2steps", console)  # a second one takes the place of the first


def test_a_folder_of_something_else_is_left_alone(tmp_path, console):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="not of an earlier demo"):
        run.run_demo(tmp_path, None, console)
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_a_wrong_budget_costs_nothing(tmp_path, console):
    (tmp_path / "demo.json").write_text("{}")
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="not a budget"):
        run.run_demo(tmp_path, "soon", console)
    assert (tmp_path / "run").is_dir()


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"electra\[demo\]"):
        speeches.read_speeches()


def test_the_labelled_task():
    learned, aside = speeches.split(speeches.read_speeches())
    assert len(aside) == (len(learned) + len(aside)) // speeches.SET_ASIDE
    found = speeches.sentences(aside, 100, seed=3)
    assert sum(s.disordered for s in found) == 50
    texts = [" ".join(speech).lower() for speech in aside]
    for sentence in found:
        as_spoken = any(sentence.text in text for text in texts)
        assert as_spoken != sentence.disordered
    assert found == speeches.sentences(aside, 100, seed=3)
