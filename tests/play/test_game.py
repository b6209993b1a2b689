"""The game: as many guesses as words were replaced, for the player and for the model."""

import pytest

from electra.errors import UserError
from electra.play.game import SENTENCES, Round, finish, new_round, sentence, toggle
from electra.play.tokens import Word

WORDS = tuple(
    Word(text=text, suspicion=suspicion, replaced=replaced, original="")
    for text, suspicion, replaced in [
        ("the", 0.1, False),
        ("cat", 0.4, True),
        ("sat", 0.9, False),
        ("down", 0.8, True),
    ]
)


def test_a_round_by_hand():
    game = Round(words=WORDS)
    assert game.replaced == {1, 3}
    assert game.suspected == {2, 3}  # the two most suspicious: one of them is right
    game = toggle(toggle(toggle(game, 0), 0), 1)  # the first choice is taken back
    assert game.chosen == {1}
    game = toggle(game, 3)
    assert toggle(game, 2).chosen == {1, 3}  # no third guess
    done = finish(game)
    assert (done.player, done.model, done.total, done.finished) == (2, 1, 2, True)
    assert finish(done) == done  # counted once
    assert toggle(done, 1) == done
    assert toggle(game, 17) == game


def test_the_score_is_kept_over_rounds(model):
    done = finish(toggle(Round(words=WORDS), 1))
    again = new_round(done, model, "the old farmer went to the field .", seed=2)
    assert (again.player, again.model, again.total) == (1, 1, 2)
    assert again.replaced
    assert not again.chosen
    assert not again.finished


def test_nothing_replaced_is_said(monkeypatch, model):
    monkeypatch.setattr("electra.play.game.corrupt_and_detect", lambda *_: [])
    with pytest.raises(UserError, match="original words back"):
        new_round(Round(), model, "a")


def test_sentences_go_round():
    assert sentence(0) == sentence(len(SENTENCES)) == SENTENCES[0]
    assert finish(Round()) == Round()
