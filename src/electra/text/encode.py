"""Encode one chunk of UTF-8 documents into one shard file: the work of a worker."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from electra.files import write_atomic
from electra.text.layouts import Layout, Spans, build_rows, packed_spans, pair_spans
from electra.text.plain_text import article_texts
from electra.text.readers import batched
from electra.text.tokenizer import Vocabulary
from electra.text.wikitext import WikiPage
from electra.text.wordpiece_cache import BATCH_BYTES, WordPieceCache, supports_cache

Chunk = tuple[int, list[bytes | WikiPage]]
"""The chunk's number and its documents."""
Encoder = Callable[[list[bytes]], tuple[npt.NDArray[Any], list[list[int]]]]
"""Documents -> all token ids, and for each document the number of tokens of each line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The options that all chunks of a preparation share."""

    folder: Path
    tokenizer: str
    """The content of `tokenizer.json`."""
    vocabulary: Vocabulary
    length: int
    layout: Layout
    held_out: float
    seed: int

    @property
    def dtype(self) -> str:
        """The smallest integer type that holds every token id."""
        return "uint16" if self.vocabulary.size <= 1 << 16 else "uint32"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkResult:
    """What one chunk became; a line of the journal."""

    number: int
    text: str
    """Hash of the chunk's text."""
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
    """Return the file name for the chunk with this number."""
    return f"shard-{number:05}.bin"


def chunk_digest(documents: list[bytes | WikiPage]) -> str:
    """Hash a chunk's text, so that a later run recognizes the chunk."""
    texts = [each.text if isinstance(each, WikiPage) else each for each in documents]
    return hashlib.blake2b(b"\0".join([*texts, b""]), digest_size=16).hexdigest()


def open_tokenizer(job: Job) -> Tokenizer:
    """Load the job's tokenizer for plain text."""
    tokenizer = Tokenizer.from_str(job.tokenizer)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    # "[SEP]" in a document is text, not a separator.
    tokenizer.encode_special_tokens = True
    return tokenizer


def build_encoder(job: Job) -> Encoder:
    """Return the word cache where it is exact, else the `tokenizers` library."""
    tokenizer = open_tokenizer(job)
    if supports_cache(tokenizer):
        return WordPieceCache(tokenizer, job.dtype)
    return partial(encode_with_library, tokenizer, job.dtype)


def build_worker(job: Job) -> Callable[[Chunk], ChunkResult]:
    """Return what a worker does with a chunk."""
    encoder = build_encoder(job)
    return lambda chunk: encode_chunk(job, encoder, *chunk)


def plain_documents(documents: list[bytes | WikiPage]) -> Iterator[bytes]:
    """Yield the documents, with the articles of Wikipedia dumps parsed."""
    for each in documents:
        if isinstance(each, WikiPage):
            yield from map(str.encode, article_texts(each))
        else:
            yield each


def encode_chunk(
    job: Job, encode: Encoder, number: int, documents: list[bytes | WikiPage]
) -> ChunkResult:
    """Tokenize the documents, lay them out as rows, held-out ones first, and write the shard."""
    digest = chunk_digest(documents)
    groups: tuple[list[bytes], list[bytes]] = ([], [])
    for document in plain_documents(documents):
        groups[not is_held_out(document, job)].append(document)
    random = np.random.default_rng([job.seed, number])
    parts, text_tokens, lost, unknown = [], 0, 0, 0
    for group in groups:
        ids, lines = encode(group)
        spans = layout_spans(lines, job, random)
        parts.append(rows_of(ids, spans, job))
        text_tokens += len(ids)
        lost += len(ids) - int(spans.count.sum())
        unknown += int(np.count_nonzero(ids == job.vocabulary.unk))
    buffers = [part.data.cast("B") for part in parts if len(part)]
    if buffers:
        write_atomic(job.folder / shard_name(number), *buffers)
    sha256 = hashlib.sha256()
    for buffer in buffers:
        sha256.update(buffer)
    return ChunkResult(
        number=number,
        text=digest,
        rows=sum(map(len, parts)),
        held_out=len(parts[0]),
        tokens=sum(int(part[:, -1].sum(dtype=np.int64)) for part in parts),
        text_tokens=text_tokens,
        lost_tokens=lost,
        unknown=unknown,
        documents=sum(map(len, groups)),
        text_bytes=sum(len(document) for group in groups for document in group),
        size=sum(buffer.nbytes for buffer in buffers),
        sha256=sha256.hexdigest(),
    )


def layout_spans(lines: list[list[int]], job: Job, random: np.random.Generator) -> Spans:
    """Return where the tokens of the documents go in the job's layout."""
    if job.layout == "pairs":
        return pair_spans(lines, job.length, random)
    return packed_spans(map(sum, lines), job.length)


def rows_of(ids: npt.NDArray[Any], spans: Spans, job: Job) -> npt.NDArray[Any]:
    """Build the rows with the job's layout and special tokens."""
    special = job.vocabulary
    return build_rows(
        ids,
        spans,
        layout=job.layout,
        length=job.length,
        pad=special.pad,
        cls=special.cls,
        sep=special.sep,
    )


def is_held_out(document: bytes, job: Job) -> bool:
    """Whether a document is for validation. A hash decides, so duplicates share a split."""
    salt = job.seed.to_bytes(16, "big", signed=True)
    value = hashlib.blake2b(document, digest_size=8, salt=salt).digest()
    return int.from_bytes(value, "big") < job.held_out * 2**64


def encode_with_library(
    tokenizer: Tokenizer, dtype: str, documents: list[bytes]
) -> tuple[npt.NDArray[Any], list[list[int]]]:
    """Encode documents line by line with the `tokenizers` library; see `Encoder`."""
    parts: list[npt.NDArray[Any]] = [np.empty(0, dtype=dtype)]
    counts: list[int] = []
    texts = map(bytes.decode, documents)
    lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
    for batch in batched(chain.from_iterable(lines), BATCH_BYTES, len):
        encoded = [e.ids for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        counts.extend(map(len, encoded))
        parts.append(np.array(list(chain.from_iterable(encoded)), dtype=dtype))
    each = iter(counts)
    return np.concatenate(parts), [[next(each) for _ in document] for document in lines]
