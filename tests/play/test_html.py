"""The parts of the page: what they show, and that no text becomes a tag."""

import re

import pytest

from electra.hub.heat_map import JudgedToken, heat_map
from electra.hub.inference import PredictedToken
from electra.play import html
from electra.play.game import Round, finish
from electra.play.scores import Ranked
from electra.play.tokens import Word

EVIL = '<img src=x onerror="alert(1)">'


def judged(text: str, suspicion: float = 0.25, **known) -> JudgedToken:
    known = {"begins_word": True, **known}
    return JudgedToken(token=text, text=text, suspicion=suspicion, **known)


@pytest.mark.parametrize(
    "page",
    [
        heat_map([judged(EVIL, original=EVIL, original_text=EVIL)]),
        html.token_panel(
            judged(
                EVIL,
                original=EVIL,
                original_text=EVIL,
                proposals=(PredictedToken(token=EVIL, probability=0.5),),
            ),
            0,
        ),
        html.all_proposals(
            [judged(EVIL, masked=True, proposals=(PredictedToken(token=EVIL, probability=0.5),))]
        ),
        html.compared(EVIL, [judged(EVIL)]),
        html.game_board(
            Round(
                words=(Word(text=EVIL, suspicion=0.5, replaced=True, original=EVIL),), finished=True
            )
        ),
        html.ranking([Ranked(sentence=EVIL, score=-1.0)], False),
        html.record({"label": EVIL, "probabilities": {EVIL: 1.0}}),
        html.record({"words": [EVIL], "tags": [EVIL]}),
        html.record({"answer": EVIL}),
    ],
)
def test_texts_are_escaped(page):
    assert "&lt;img" in page
    assert "<img" not in page
    assert 'onerror="' not in page


def test_proposals():
    items = [PredictedToken(token="a", probability=0.5), PredictedToken(token="b", probability=0.1)]
    page = html.proposals(items, "b", 4)
    assert page.count('data-index="4"') == 2
    assert 'class="proposal taken" style="--p:0.100"><b>b</b><small>10.0%</small>' in page
    assert html.all_proposals([judged("a")]) == ""


def test_a_game_shows_the_answer_only_at_its_end():
    words = (
        Word(text="a", suspicion=0.9, replaced=False, original="a"),
        Word(text="b", suspicion=0.2, replaced=True, original="c"),
    )
    game = Round(words=words, chosen=frozenset({1}))
    before = html.game_board(game)
    assert "was-replaced" not in before
    assert "0.9" not in before
    assert "<s>" not in before
    assert 'aria-pressed="true"' in before
    assert "1 word was replaced" in html.game_status(game)
    after = html.game_board(finish(game))
    assert "<b>b</b><s>c</s><small>you</small>" in after
    assert "<b>a</b><small>model</small>" in after
    assert "You win!" in html.game_status(finish(game))
    lost = finish(Round(words=words, chosen=frozenset({0})))
    assert "wrong" in html.game_board(lost)
    assert "<b>b</b><s>c</s><small>&nbsp;</small>" in html.game_board(lost)
    assert html.game_board(lost).count("<s>") == 1
    assert "A draw." in html.game_status(lost)


def test_rankings():
    items = [Ranked(sentence="x", score=-0.1), Ranked(sentence="y", score=-0.5)]
    assert re.findall(r"<small>(.*?)</small>", html.ranking(items, False)) == ["90.5%", "60.7%"]
    assert re.findall(r"--p:([\d.]+)", html.ranking(items, True)) == ["1.000", "0.000"]
    assert re.findall(r"<small>(.*?)</small>", html.ranking(items, True)) == ["-0.100", "-0.500"]


def test_records():
    assert ">0.250<" in html.record({"value": 0.25})
    assert "no answer" in html.record({"answer": ""})
    page = html.record({"label": "b", "probabilities": {"a": 0.2, "b": 0.8}})
    assert page.index("<b>b</b>") < page.index("<b>a</b>")
