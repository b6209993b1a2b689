"""Text -> token shards: in parallel, repeatable to the byte, and continued where it stopped."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.files import is_disk_full
from electra.text.encode import Chunk, ChunkResult, Job, encode_chunk, open_encoder, open_tokenizer
from electra.text.inspect import unknown_warnings
from electra.text.pool import Pool
from electra.text.read import RecordCounts, read_chunks
from electra.text.rows import Layout
from electra.text.shard_writer import Target, open_target
from electra.text.sources import find_sources
from electra.text.tokenizer import fingerprint, load_tokenizer, special_names, vocabulary

SHORTEST_ROW, LONGEST_ROW = 8, 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a preparation has made; while it runs, what it has made so far."""

    total_bytes: int | None = None
    """Of the inputs on disk; unknown with datasets of the hub."""
    read_bytes: int = 0
    documents: int = 0
    rows: int = 0
    held_out_rows: int = 0
    tokens: int = 0
    """Of the rows, special tokens too."""
    text_tokens: int = 0
    """Of the text."""
    lost_tokens: int = 0
    unknown: int = 0
    text_bytes: int = 0
    places: int = 0
    size: int = 0
    """Bytes of the shards."""
    shards: int = 0
    skipped: int = 0
    """Shards that were there from an earlier run."""
    seconds: float = 0.0
    records: int = 0
    """Records that were read from JSON lines, tables and datasets."""
    empty_records: int = 0
    """Those without text, which were skipped."""
    already: bool = False
    """The target was there, whole, and is untouched."""

    @property
    def padding(self) -> float:
        """The share of the places that hold padding."""
        return 1 - self.tokens / self.places if self.places else 0.0

    @property
    def unknown_rate(self) -> float:
        """The share of the text's tokens that are the unknown one."""
        return self.unknown / self.text_tokens if self.text_tokens else 0.0


def prepare_warnings(summary: Summary, text_field: str) -> list[str]:
    """What the user should know before training, each in a sentence."""
    found = list(unknown_warnings(summary.unknown_rate))
    if summary.empty_records:
        found.append(
            f"records without text: {summary.empty_records:,} of {summary.records:,} were skipped, "
            f"their '{text_field}' is null or empty; if the text is in another field, name it with "
            "--text-field."
        )
    return found


Progress = Callable[[Summary], None]


def prepare(
    inputs: Sequence[str | Path],
    *,
    tokenizer: Path,
    out: Path,
    length: int = 128,
    layout: Layout = "pairs",
    workers: int | None = None,
    held_out: float = 0.01,
    seed: int = 1,
    text_field: str = "text",
    progress: Progress | None = None,
) -> Summary:
    """Tokenise the inputs into rows of `length` and write them as shards into the folder `out`."""
    check_options(length, layout, workers, held_out, seed)
    names = [str(name) for name in inputs]
    sources = find_sources(names)
    job = new_job(Path(tokenizer), Path(out), length, layout, held_out, seed)
    request = {
        "inputs": names,
        "text_field": text_field,
        "tokenizer": fingerprint(open_tokenizer(job)),
        "length": length,
        "layout": layout,
        "held_out": held_out,
        "seed": seed,
    }
    sizes = [source.size for source in sources]
    start = Summary(total_bytes=None if None in sizes else sum(s or 0 for s in sizes))
    with told_plainly(Path(out)), open_target(Path(out), request, sources) as target:
        if target.finished:
            return finished_summary(target)
        target.save_tokenizer(job.tokenizer, special_names(Path(tokenizer)))
        return run(job, target, start, workers or os.cpu_count() or 1, progress)


def check_options(
    length: int, layout: str, workers: int | None, held_out: float, seed: int
) -> None:
    """Refuse options that cannot work."""
    if not SHORTEST_ROW <= length <= LONGEST_ROW:
        raise UserError(
            f"--length is {length}: choose one from {SHORTEST_ROW} to {LONGEST_ROW}, as 128."
        )
    if layout not in ("pairs", "packed"):
        raise UserError(f"--layout is '{layout}': choose pairs or packed.")
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}: choose 1 or more.")
    if not 0 <= held_out < 1:
        raise UserError(f"--held-out is {held_out}: choose a share from 0 to below 1, as 0.01.")
    if not 0 <= seed < 1 << 63:
        raise UserError(f"--seed is {seed}: choose a number from 0 to 2^63 - 1.")


def new_job(path: Path, out: Path, length: int, layout: Layout, held_out: float, seed: int) -> Job:
    """What the workers need, with the tokenizer's special tokens checked."""
    tokenizer = load_tokenizer(path)
    return Job(
        folder=out,
        tokenizer=tokenizer.to_str(),
        vocabulary=vocabulary(tokenizer, special_names(path)),
        length=length,
        layout=layout,
        held_out=held_out,
        seed=seed,
    )


def run(
    job: Job, target: Target, start: Summary, workers: int, progress: Progress | None
) -> Summary:
    """Encode every chunk that is not there yet, then write the index."""
    began = time.monotonic()
    state = start
    report = progress or (lambda summary: None)
    counts = RecordCounts()

    def on_bytes(count: int) -> None:
        nonlocal state
        state = replace(state, read_bytes=state.read_bytes + count)
        report(state)

    def new_chunks() -> Iterator[Chunk]:
        nonlocal state
        request = target.request
        chunks = read_chunks(
            request["inputs"],
            text_field=request["text_field"],
            on_bytes=on_bytes,
            counts=counts,
        )
        for number, texts in enumerate(chunks):
            documents = list(map(str.encode, texts))
            if earlier := target.known(number, documents):
                state = replace(state, skipped=state.skipped + bool(earlier.rows))
                state = add(state, earlier, job)
                target.keep(earlier)
            else:
                yield number, documents

    with encoder(job, workers) as encode:
        for done in encode(new_chunks()):
            target.record(done)
            state = add(state, done, job)
            report(state)
    target.refuse_changed()
    held = target.finish(job)
    return replace(
        state,
        held_out_rows=held,
        records=counts.records,
        empty_records=counts.empty,
        seconds=time.monotonic() - began,
    )


@contextmanager
def told_plainly(folder: Path) -> Iterator[None]:
    """Turn what the system refuses into a sentence."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise UserError(
                f"The disk is full: '{folder}' could not be written; free some space and run the "
                "same command again, it goes on where it stopped."
            ) from None
        raise UserError(
            f"'{error.filename or folder}' cannot be used: {error.strerror or error}."
        ) from None
    except MemoryError:
        raise UserError(
            "Memory ran out: run the same command again with fewer --workers; "
            "it goes on where it stopped."
        ) from None


Encode = Callable[[Iterator[Chunk]], Iterator[ChunkResult]]


@contextmanager
def encoder(job: Job, workers: int) -> Iterator[Encode]:
    """The function that encodes chunks: in this process, or in several others."""
    if workers > 1:
        with Pool(job, workers) as pool:
            yield pool.map
        return
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one worker, one core
    tokenise = open_encoder(job)
    try:
        yield lambda chunks: (encode_chunk(job, tokenise, *chunk) for chunk in chunks)
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def add(state: Summary, done: ChunkResult, job: Job) -> Summary:
    """The state after one more chunk."""
    return replace(
        state,
        documents=state.documents + done.documents,
        rows=state.rows + done.rows,
        held_out_rows=state.held_out_rows + done.held_out,
        tokens=state.tokens + done.tokens,
        text_tokens=state.text_tokens + done.text_tokens,
        lost_tokens=state.lost_tokens + done.lost_tokens,
        unknown=state.unknown + done.unknown,
        text_bytes=state.text_bytes + done.text_bytes,
        places=state.places + done.rows * job.length,
        size=state.size + done.size,
        shards=state.shards + bool(done.rows),
    )


def finished_summary(target: Target) -> Summary:
    """The summary of a folder that was finished earlier."""
    totals: dict[str, Any] = dict(target.totals)
    totals.pop("padding")
    return Summary(**totals, already=True)
