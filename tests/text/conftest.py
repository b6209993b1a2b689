"""A small invented language, and tokenizers learnt from it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from electra.text.tokenizer import train_tokenizer

SYLLABLES = [
    "ka",
    "ri",
    "to",
    "men",
    "sul",
    "va",
    "pe",
    "no",
    "shi",
    "dra",
    "lu",
    "bex",
    "öm",
    "té",
]


def invented_text(documents: int, seed: int = 0, lines: int = 6, words: int = 12) -> str:
    """Documents of lines of invented words, blank lines between them."""
    dice = random.Random(seed)
    lexicon = ["".join(dice.choices(SYLLABLES, k=dice.randint(1, 4))) for _ in range(400)]

    def line() -> str:
        some = dice.choices(lexicon, k=dice.randint(1, 2 * words))
        return " ".join(some).capitalize() + dice.choice(".!?")

    return "\n\n".join(
        "\n".join(line() for _ in range(dice.randint(1, 2 * lines))) for _ in range(documents)
    )


@pytest.fixture(scope="session")
def make_text() -> Callable[..., str]:
    """The function that invents text."""
    return invented_text


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text file of some 200 documents."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text(invented_text(200) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a WordPiece tokenizer for the corpus."""
    out = tmp_path_factory.mktemp("tokenizer") / "wordpiece"
    train_tokenizer([corpus], out, vocab_size=300)
    return out
