"""The page without a browser: which tabs models get, and what its buttons answer."""

import pytest

from electra.errors import UserError
from electra.play.models import Choice
from electra.play.page import build_page
from electra.train.metrics_log import MetricsLog

gr = pytest.importorskip("gradio")


def labels(page, kind: str) -> list[str]:
    """The labels of all components of a kind, in their order."""
    found = [c["props"] for c in page.config["components"] if c["type"] == kind]
    return [props["label"] for props in found if props.get("visible", True)]


def handler(page, name: str):
    """The function that answers a button."""
    return next(f.fn for f in page.fns.values() if f.fn.__name__ == name)


@pytest.mark.parametrize(
    ("abilities", "tabs"),
    [
        (
            {"detects": True, "proposes": True},
            ["Corrupt and detect", "Can you beat it?", "Compare", "Score"],
        ),
        ({"detects": True}, ["Corrupt and detect", "Compare", "Score"]),
        ({"scores": True}, ["Score"]),
        ({"proposes": True}, []),
    ],
)
def test_a_model_gets_the_tabs_that_it_can_serve(abilities, tabs, tmp_path):
    models = {"mine": Choice(model=None, **abilities)}
    assert labels(build_page(models, None), "tabitem") == tabs
    assert labels(build_page(models, tmp_path), "tabitem") == [*tabs, "Runs"]


def test_a_choice_of_models_shows_where_there_are_several():
    one, two = Choice(model=None, detects=True), Choice(model=None, detects=True, proposes=True)
    assert labels(build_page({"one": one}, None), "dropdown") == []
    page = build_page({"one": one, "two": two}, None)
    # The game is for the second one alone
    assert labels(page, "dropdown") == ["Model", "First model", "Second model", "Model"]
    chosen = [c["props"]["value"] for c in page.config["components"] if c["type"] == "dropdown"]
    assert chosen == ["one", "two", "one", "two", "one"]


def test_errors_of_the_user_are_shown(monkeypatch):
    def refuse(*_):
        raise UserError("The text is empty.")

    monkeypatch.setattr("electra.play.tokens.detect", refuse)
    monkeypatch.setattr("electra.play.scores.rank", refuse)
    page = build_page({"one": Choice(model=None, detects=True)}, None)
    with pytest.raises(gr.Error, match="one has no generator: use “Detect only”"):
        handler(page, "on_corrupt")("one", "A text.", 0.15, 1.0)
    with pytest.raises(gr.Error, match="No token is chosen: click one first"):
        handler(page, "on_word")("one", [], -1, "word")
    for name in ("on_detect", "on_score"):
        with pytest.raises(gr.Error, match="The text is empty"):
            handler(page, name)("one", "")


def test_curves_are_drawn_again_only_when_they_are_new(tmp_path):
    run = tmp_path / "first"
    run.mkdir()
    line = {"mlm_loss": 1.5, "tokens": 9, "seconds": 1.0, "tokens_per_second": 9.0}
    MetricsLog(run).write("train", 1234, **line)
    tick = handler(build_page({}, tmp_path), "on_tick")
    _, seen, curves = tick(["first"], "")
    assert "1,234" in curves
    assert tick(["first"], seen)[2] == gr.skip()
    MetricsLog(run).write("train", 5678, **line)
    assert "5,678" in tick(["first"], seen)[2]
