"""What a task is: labelled examples, and the rows of tokens that they become. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["classify", "regress", "choice", "tag", "qa"]
"""What is asked: one of some labels, a number, one of some texts, a tag per word, a span."""

IGNORED = -1
"""The target of a token that is not judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A text, or a pair of them, with one label: for `classify` and `regress`."""

    id: str
    text: str
    pair: str | None = None
    label: int | float | None = None
    """Number of the label in `Task.labels`, or the value to predict; None where it is hidden."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A text and its possible continuations or answers, one of which is right."""

    id: str
    text: str
    options: tuple[str, ...]
    label: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A sentence in words, each with its tag."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A span of a context; `start` counts characters."""

    text: str
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question about a context; no answers and not impossible means that they are hidden."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...] = ()
    impossible: bool = False


Example = Sentence | Choice | Tagged | Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Everything that fine-tuning needs to know of a task."""

    name: str
    kind: Kind
    splits: Mapping[str, Sequence[Any]]
    """`train` and `dev`, and what else there is (`test`, `dev_mismatched`): lists of examples of
    the class that belongs to the kind."""
    labels: tuple[str, ...] = ()
    """Of `classify` and `tag`."""
    metric: str = "accuracy"
    """The one that counts: a key of what `score` returns."""
    length: int = 128
    """Longest row in tokens."""
    epochs: float = 3
    swap: bool = False
    """Whether the pairs have no order, so that training sees them both ways round."""
    without_stops: bool = False
    """Whether final full stops were taken away, because the train file has none."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Of your own files: which column is the text, the pair, the label."""
    warnings: tuple[str, ...] = ()
    """What the user should know of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Examples as rows of tokens, [CLS] and [SEP] included, no padding."""

    ids: Sequence[npt.NDArray[np.int32]]
    first: npt.NDArray[np.int32]
    """Tokens of each row's first segment, its [CLS] and [SEP] included; the rest is the second."""
    target: npt.NDArray[Any] | Sequence[npt.NDArray[np.int64]] | None
    """`classify`: int64 (rows,); `regress`: float32 (rows,); `choice`: int64 (examples,); `tag`:
    an int64 array per row, as long as its ids, `IGNORED` where no word begins; `qa`: int64
    (rows, 3): first and last token of the answer, 1 if impossible. None where labels are hidden."""
    example: npt.NDArray[np.int64]
    """Number of the example that each row comes from; the rows of one follow one another."""
    rows_each: int = 1
    """Rows of every example that belong in one batch: the options of a `choice`."""
    spans: Sequence[npt.NDArray[np.int32]] = ()
    """`qa`: for each row an array (tokens, 2) with the place of each token in the context, in
    characters; (-1, -1) where the token is none of it, and (-1, end) where another window sees it
    with more context around it, so that no answer begins there. `tag`: (word, word + 1) at the
    first token of each word that is judged in the row, else (-1, -1)."""
    cut: int = 0
    """Examples that were too long and lost tokens: of a text, a question or a single word."""
    first_cut: int = -1
    """Number of the first of them."""
