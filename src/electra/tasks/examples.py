"""Labelled examples, the tasks they belong to, and the features a model reads. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["classify", "regress", "choice", "tag", "qa"]
"""What the model predicts: a label, a number, one of several options, a tag per word, a span."""

IGNORE_INDEX = -1
"""The label of a token that does not count in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A text or a pair of texts with one label, for `classify` and `regress`."""

    id: str
    text: str
    pair: str | None = None
    label: int | float | None = None
    """Index of the label in `Task.labels`, or the value to predict; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A text and several options, one of which is correct."""

    id: str
    text: str
    options: tuple[str, ...]
    label: int | None = None
    """Index of the correct option; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A sentence as words, each with its tag."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    """None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A span of a context; `start` counts characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a context.

    Without `answers`, the question is unanswerable if `impossible`, else its answer is unknown.
    """

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    impossible: bool = False


Example = Sentence | Choice | Tagged | Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task with its examples and defaults."""

    name: str
    kind: Kind
    splits: Mapping[str, Sequence[Any]]
    """Examples by split: `train`, `dev`, and others such as `test` or `dev_mismatched`."""
    labels: tuple[str, ...] = ()
    """Label names of `classify` and `tag`."""
    metric: str = "accuracy"
    """The main metric, one of those that scoring returns."""
    max_length: int = 128
    """Default maximum sequence length in tokens."""
    epochs: float = 3
    """Default number of epochs."""
    min_steps: int = 0
    """Fewest training steps by default: with few examples there are more epochs."""
    swap: bool = False
    """Whether pairs have no order, so that training uses both orders."""
    without_stops: bool = False
    """Whether final full stops were removed because the train file has none."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """For your own files: the column of each role (`text`, `pair`, `label`)."""
    warnings: tuple[str, ...] = ()
    """What the user should know about the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Examples as rows of token ids, with [CLS] and [SEP] and without padding."""

    input_ids: Sequence[npt.NDArray[np.int32]]
    segment_start: npt.NDArray[np.int32]
    """Where the second segment of each row starts; the row's length if there is none."""
    labels: npt.NDArray[Any] | Sequence[npt.NDArray[np.int64]] | None
    """None if unknown, else by kind:

    - `classify`: int64 (rows,)
    - `regress`: float32 (rows,)
    - `choice`: int64 (examples,)
    - `tag`: one int64 array (tokens,) per row, `IGNORE_INDEX` except at the first token of a word
    - `qa`: int64 (rows, 3): first and last token of the answer, and 1 if unanswerable
    """
    example_index: npt.NDArray[np.int64]
    """The example of each row; the rows of one example are consecutive."""
    rows_per_example: int = 1
    """Rows that must stay in one batch: the number of options of a `choice`."""
    offsets: Sequence[npt.NDArray[np.int32]] = ()
    """One array (tokens, 2) per row that maps tokens back to the example, (-1, -1) for none.

    - `qa`: start and end character in the context. The start is -1 if another window has more
      context around the token, so that each answer starts in one window only.
    - `tag`: (word, word + 1) at the first token of each word that this row predicts.
    """
    num_truncated: int = 0
    """Examples that lost tokens: of a text, a question or a single word."""
    first_truncated: int = -1
    """Index of the first truncated example, or -1."""
