"""Chunks of plain text, with the articles of Wikipedia dumps parsed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from electra.text.pool import WorkerPool
from electra.text.readers import CHUNK_BYTES, Document, clean, read_chunks, split_long
from electra.text.sources import OnBytes
from electra.text.wikitext import WikiPage, parse_page

NumberedTexts = tuple[int, list[str]]


def read_texts(
    inputs: Sequence[str | Path],
    *,
    text_field: str = "text",
    on_bytes: OnBytes | None = None,
    size: int = CHUNK_BYTES,
    workers: int = 1,
) -> Iterator[list[str]]:
    """Yield lists of documents in order; if there is something to parse, the workers do it."""
    chunks = read_chunks(inputs, text_field=text_field, on_bytes=on_bytes, size=size)
    for chunk in chunks:
        if workers > 1 and any(isinstance(document, WikiPage) for document in chunk):
            with WorkerPool(build_parser, workers) as pool:
                yield from in_order(pool.map(enumerate(chain([chunk], chunks))))
            return
        yield parse_documents(chunk)


def build_parser() -> Callable[[tuple[int, list[Document]]], NumberedTexts]:
    """Return what a worker does with a numbered chunk."""
    return lambda chunk: (chunk[0], parse_documents(chunk[1]))


def in_order(results: Iterable[NumberedTexts]) -> Iterator[list[str]]:
    """Yield numbered results in the order of their numbers."""
    waiting: dict[int, list[str]] = {}
    wanted = 0
    for number, result in results:
        waiting[number] = result
        while wanted in waiting:
            yield waiting.pop(wanted)
            wanted += 1


def parse_documents(documents: Iterable[Document]) -> list[str]:
    """Return the texts of a chunk."""
    texts: list[str] = []
    for document in documents:
        texts.extend(article_texts(document) if isinstance(document, WikiPage) else [document])
    return texts


def article_texts(page: WikiPage) -> list[str]:
    """Parse an article; it is one document, or none or several if it is empty or too long."""
    return list(split_long(clean(parse_page(page))))
