"""Make a dev split where there is none, and count the overlap of train and dev."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from electra.errors import UserError
from electra.tasks.examples import Choice, Sentence

DEV_FRACTION = 0.1

Item = TypeVar("Item")
TextsOf = Callable[[Any], tuple[str, ...]]
"""The texts of an example; examples with equal texts go to the same split."""


def make_dev_split(
    path: Path, examples: Sequence[Item], texts_of: TextsOf
) -> tuple[list[Item], list[Item], str]:
    """Split examples into train and dev; also return a warning for the user.

    The choice depends on a hash of the texts, not on the order of the examples. Every label keeps
    an example in train if possible.
    """
    chosen = choose_dev(examples, texts_of, keep_labels=True)
    chosen = chosen or choose_dev(examples, texts_of, keep_labels=False)
    train = [e for i, e in enumerate(examples) if i not in chosen]
    dev = [e for i, e in enumerate(examples) if i in chosen]
    if not dev or not train:
        raise UserError(
            f"'{path}' has too few different examples for a dev split: add more, or use a folder "
            "with a train and a dev file."
        )
    warning = (
        f"There is no dev file: {len(dev):,} of the {len(examples):,} examples of '{path}', chosen "
        "by a hash of their text, are used for dev and not for training. Scores on them are not "
        "comparable with published ones."
    )
    return train, dev, warning


def example_texts(example: Sentence | Choice) -> tuple[str, ...]:
    """Return the texts that a model reads."""
    if isinstance(example, Choice):
        return (example.text, *example.options)
    return (example.text,) if example.pair is None else (example.text, example.pair)


def choose_dev(examples: Sequence[Any], texts_of: TextsOf, *, keep_labels: bool) -> set[int]:
    """Choose the indices for dev; `keep_labels` keeps an example of every label in train."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(texts_of(example), []).append(index)
    labels = [getattr(example, "label", None) for example in examples]
    remaining = Counter(labels)
    keep_labels = keep_labels and all(isinstance(label, int) for label in labels)
    wanted = max(1, round(DEV_FRACTION * len(examples)))
    dev: set[int] = set()
    for texts in sorted(groups, key=text_hash):
        if len(dev) >= wanted:
            break
        taken = Counter(labels[i] for i in groups[texts])
        last = keep_labels and any(remaining[label] <= count for label, count in taken.items())
        if not last and len(dev) + len(groups[texts]) < len(examples):
            dev.update(groups[texts])
            remaining.subtract(taken)
    return dev


def text_hash(texts: tuple[str, ...]) -> bytes:
    """Hash texts; the same on every machine and in every run."""
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=8).digest()


def count_overlap(train: Sequence[Sentence | Choice], dev: Sequence[Sentence | Choice]) -> int:
    """Count the dev examples whose texts are also in train."""
    seen = {example_texts(example) for example in train}
    return sum(example_texts(example) in seen for example in dev)
