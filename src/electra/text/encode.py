"""One chunk of documents, which are UTF-8 here -> one shard file; what a worker does."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.files import write_atomic
from electra.text.rows import Layout, Places, fill, packed, pairs
from electra.text.tokenizer import Vocabulary
from electra.text.wordcache import WordCache, batches, words_suffice

Chunk = tuple[int, list[bytes]]
"""Its number and its documents."""
Tokenise = Callable[[list[bytes]], tuple[npt.NDArray[Any], list[list[int]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is the same for every chunk of a preparation."""

    folder: Path
    tokenizer: str
    """The content of tokenizer.json."""
    vocabulary: Vocabulary
    length: int
    layout: Layout
    held_out: float
    seed: int

    @property
    def dtype(self) -> str:
        """The smallest type that holds every id."""
        return "uint16" if self.vocabulary.size <= 1 << 16 else "uint32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What became of one chunk."""

    number: int
    text: str
    """Digest of the chunk's text."""
    rows: int
    held_out: int
    tokens: int
    text_tokens: int
    lost_tokens: int
    unknown: int
    documents: int
    text_bytes: int
    size: int
    sha256: str


def shard_name(number: int) -> str:
    """The file of the chunk with this number."""
    return f"shard-{number:05}.bin"


def chunk_digest(documents: list[bytes]) -> str:
    """A hash of a chunk's text, by which a later run knows it again."""
    return hashlib.blake2b(b"\0".join([*documents, b""]), digest_size=16).hexdigest()


def open_tokenizer(job: Job) -> Tokenizer:
    """The job's tokenizer, for text only."""
    tokenizer = Tokenizer.from_str(job.tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # The text "[SEP]" in a document is text and no separator.
    tokenizer.encode_special_tokens = True
    return tokenizer


def open_encoder(job: Job) -> Tokenise:
    """The way from documents to ids: by words where that is exact, else the library alone."""
    tokenizer = open_tokenizer(job)
    if words_suffice(tokenizer):
        return WordCache(tokenizer, job.dtype)
    return partial(tokenised, tokenizer, job.dtype)


def encode_chunk(job: Job, tokenise: Tokenise, number: int, documents: list[bytes]) -> ChunkResult:
    """Tokenise the documents, lay them out in rows, held-out ones first, and write the shard."""
    groups: tuple[list[bytes], list[bytes]] = ([], [])
    for document in documents:
        groups[not is_held_out(document, job)].append(document)
    random = np.random.default_rng([job.seed, number])
    parts, text_tokens, lost, unknown = [], 0, 0, 0
    for group in groups:
        ids, lines = tokenise(group)
        spots = place(lines, job, random)
        parts.append(fill_rows(ids, spots, job))
        text_tokens += len(ids)
        lost += len(ids) - int(spots.count.sum())
        unknown += int(np.count_nonzero(ids == job.vocabulary.unk))
    content = [part.data.cast("B") for part in parts if len(part)]
    if content:
        write_atomic(job.folder / shard_name(number), *content)
    state = hashlib.sha256()
    for some in content:
        state.update(some)
    return ChunkResult(
        number=number,
        text=chunk_digest(documents),
        rows=sum(map(len, parts)),
        held_out=len(parts[0]),
        tokens=sum(int(part[:, -1].sum(dtype=np.int64)) for part in parts),
        text_tokens=text_tokens,
        lost_tokens=lost,
        unknown=unknown,
        documents=len(documents),
        text_bytes=sum(map(len, documents)),
        size=sum(some.nbytes for some in content),
        sha256=state.hexdigest(),
    )


def place(lines: list[list[int]], job: Job, random: np.random.Generator) -> Places:
    """Where the tokens of the documents go in the job's layout."""
    if job.layout == "pairs":
        return pairs(lines, job.length, random)
    return packed(map(sum, lines), job.length)


def fill_rows(ids: npt.NDArray[Any], spots: Places, job: Job) -> npt.NDArray[Any]:
    """The rows with the tokens in their places."""
    marks = job.vocabulary
    return fill(
        ids,
        spots,
        layout=job.layout,
        length=job.length,
        pad=marks.pad,
        cls=marks.cls,
        sep=marks.sep,
    )


def is_held_out(document: bytes, job: Job) -> bool:
    """Whether a document is for validation: decided by its text, so that equals stay together."""
    salt = job.seed.to_bytes(16, "big", signed=True)
    value = hashlib.blake2b(document, digest_size=8, salt=salt).digest()
    return int.from_bytes(value, "big") < job.held_out * 2**64


def tokenised(
    tokenizer: Tokenizer, dtype: str, documents: list[bytes]
) -> tuple[npt.NDArray[Any], list[list[int]]]:
    """All ids in one array, and for each document the numbers of ids of its lines."""
    parts: list[npt.NDArray[Any]] = [np.empty(0, dtype=dtype)]
    counts: list[int] = []
    texts = map(bytes.decode, documents)
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    for batch in batches(chain.from_iterable(lines)):
        found = [e.ids for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        counts.extend(map(len, found))
        parts.append(np.array(list(chain.from_iterable(found)), dtype=dtype))
    each = iter(counts)
    return np.concatenate(parts), [[next(each) for _ in document] for document in lines]
