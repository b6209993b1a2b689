"""Can you beat it? You and the discriminator guess which words the generator replaced."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from electra.api import Model
from electra.errors import UserError
from electra.play.tokens import Word, corrupt_and_detect, join_words

ATTEMPTS = 20
"""Samples before giving up: a good generator often samples the original token."""
SENTENCES = (
    "The committee met on Tuesday to decide how the money for the new bridge should be spent.",
    "After the storm the fishermen repaired their nets and waited for the sea to become calm.",
    "The doctor asked the patient to rest for a week and to drink plenty of water.",
    "In the winter months the road over the mountain is closed, and the village is very quiet.",
    "The teacher read the letter aloud, and the children listened without saying a word.",
    "Farmers in the valley have grown wheat and barley for more than a thousand years.",
    "The government promised lower taxes, better schools and peace with all its neighbours.",
    "She opened the window, looked at the garden and decided to plant an apple tree.",
    "The train to the capital leaves at six in the morning and arrives before noon.",
    "An old map in the library showed a river that no longer exists.",
    "The engineers tested the engine for three days before the ship left the harbour.",
    "He wrote a long report about the trade between the two countries and sent it to Congress.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A corrupted text, the player's choice, and the score so far."""

    words: tuple[Word, ...] = ()
    chosen: frozenset[int] = frozenset()
    finished: bool = False
    player: int = 0
    model: int = 0
    total: int = 0
    """Replaced words found by each, and their number, over all finished rounds."""

    @property
    def replaced(self) -> frozenset[int]:
        """The words that were replaced."""
        return frozenset(i for i, word in enumerate(self.words) if word.replaced)

    @property
    def suspected(self) -> frozenset[int]:
        """The model's choice: as many words as were replaced, the most suspicious ones."""
        order = sorted(range(len(self.words)), key=lambda i: -self.words[i].suspicion)
        return frozenset(order[: len(self.replaced)])


def new_round(
    before: Round, model: Model, text: str, *, mask_rate: float = 0.15, seed: int = 0
) -> Round:
    """Corrupt a text so that at least one word is replaced; the score is kept."""
    for attempt in range(ATTEMPTS):
        tokens = corrupt_and_detect(model, text, mask_rate, 1.0, seed * ATTEMPTS + attempt)
        words = tuple(join_words(tokens))
        if any(word.replaced for word in words):
            return replace(before, words=words, chosen=frozenset(), finished=False)
    raise UserError(
        "The generator put the original words back each time: try a longer text or a higher rate."
    )


def toggle(game: Round, index: int) -> Round:
    """Choose a word, or take the choice back; no more words than were replaced."""
    if game.finished or not 0 <= index < len(game.words):
        return game
    if index in game.chosen:
        return replace(game, chosen=game.chosen - {index})
    if len(game.chosen) == len(game.replaced):
        return game
    return replace(game, chosen=game.chosen | {index})


def finish(game: Round) -> Round:
    """Reveal the answer and add up the score."""
    if game.finished or not game.words:
        return game
    return replace(
        game,
        finished=True,
        player=game.player + len(game.chosen & game.replaced),
        model=game.model + len(game.suspected & game.replaced),
        total=game.total + len(game.replaced),
    )


def sentence(number: int, sentences: Sequence[str] = SENTENCES) -> str:
    """Return one of the sentences; the numbers go round."""
    return sentences[number % len(sentences)]
