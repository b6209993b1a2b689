"""A dev split where there is none, and what train and dev share."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from electra.errors import UserError
from electra.tasks.examples import Choice, Sentence

SHARE = 0.1
"""Of the examples, that serve as dev."""

Item = TypeVar("Item")
Key = Callable[[Any], tuple[str, ...]]
"""The texts of an example: examples with the same ones stay on the same side."""


def set_aside(path: Path, examples: Sequence[Item], key: Key) -> tuple[list[Item], list[Item], str]:
    """Train, dev and what the user should know, where a file has to serve for both.

    Chosen by a hash of the texts: the same for the same examples in any order. Equal texts stay
    together; the last example of a label stays in train where that leaves a dev.
    """
    chosen = choose(examples, key, keep=True) or choose(examples, key, keep=False)
    train = [e for i, e in enumerate(examples) if i not in chosen]
    dev = [e for i, e in enumerate(examples) if i in chosen]
    if not dev or not train:
        raise UserError(
            f"'{path}' has too little to set some aside for dev: add to it, or name a folder with "
            "a train and a dev file."
        )
    warning = (
        f"There is no dev file: {len(dev):,} of the {len(examples):,} examples of '{path}' serve "
        "as one, chosen by a hash of their text, and are not trained on; scores on them compare "
        "with no published ones."
    )
    return train, dev, warning


def content(example: Sentence | Choice) -> tuple[str, ...]:
    """What a model reads of an example."""
    if isinstance(example, Choice):
        return (example.text, *example.options)
    return (example.text,) if example.pair is None else (example.text, example.pair)


def choose(examples: Sequence[Any], key: Key, *, keep: bool) -> set[int]:
    """The numbers of the examples that go to dev; `keep` leaves every label one in train."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, example in enumerate(examples):
        groups.setdefault(key(example), []).append(number)
    labels = [getattr(example, "label", None) for example in examples]
    left = Counter(labels)
    keep = keep and all(isinstance(label, int) for label in labels)
    wanted = max(1, round(SHARE * len(examples)))
    dev: set[int] = set()
    for texts in sorted(groups, key=text_hash):
        if len(dev) >= wanted:
            break
        taken = Counter(labels[i] for i in groups[texts])
        last = keep and any(left[label] <= count for label, count in taken.items())
        if not last and len(dev) + len(groups[texts]) < len(examples):
            dev.update(groups[texts])
            left.subtract(taken)
    return dev


def text_hash(texts: tuple[str, ...]) -> bytes:
    """A hash that does not change between runs and machines."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()


def shared(train: Sequence[Sentence | Choice], dev: Sequence[Sentence | Choice]) -> int:
    """Examples of dev whose texts are also in train."""
    seen = {content(example) for example in train}
    return sum(content(example) in seen for example in dev)
