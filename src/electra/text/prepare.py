"""Text to token shards: parallel, reproducible to the byte, and resumable."""

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.files import is_disk_full
from electra.run_dir import check_out_dir
from electra.text.encode import Chunk, ChunkResult, Job, build_worker
from electra.text.inspect import unknown_warnings
from electra.text.layouts import Layout
from electra.text.pool import WorkerPool
from electra.text.readers import RecordCounts, no_text
from electra.text.shard_writer import ShardWriter, find_finished, open_shard_writer
from electra.text.sources import is_pipe
from electra.text.tasks import Plan, new_plan

MIN_LENGTH, MAX_LENGTH = 8, 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a preparation has written; while it runs, what it has written so far."""

    total_bytes: int | None = None
    """Size of the inputs on disk; unknown for pipes and datasets of the Hugging Face Hub."""
    read_bytes: int = 0
    documents: int = 0
    rows: int = 0
    held_out_rows: int = 0
    tokens: int = 0
    """All tokens without padding, special tokens included."""
    text_tokens: int = 0
    """Tokens of the text, without special tokens."""
    lost_tokens: int = 0
    unknown: int = 0
    text_bytes: int = 0
    places: int = 0
    """All positions, padding included."""
    size: int = 0
    """Size of the shards in bytes."""
    shards: int = 0
    skipped: int = 0
    """Shards that an earlier, interrupted run had finished."""
    seconds: float = 0.0
    records: int = 0
    """Records read from JSON lines, tables and datasets."""
    empty_records: int = 0
    """Records without text, which are skipped."""
    already: bool = False
    """The folder was finished before and is unchanged."""

    @property
    def padding(self) -> float:
        """The share of positions that are padding."""
        return 1 - self.tokens / self.places if self.places else 0.0

    @property
    def unknown_rate(self) -> float:
        """The share of the text's tokens that are unknown."""
        return self.unknown / self.text_tokens if self.text_tokens else 0.0


ProgressFn = Callable[[Summary], None]


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
    tasks: int = 1,
    progress: ProgressFn | None = None,
) -> Summary:
    """Tokenize the inputs into sequences of `length` tokens and write them as shards to `out`."""
    check_options(length, layout, workers, held_out, seed, tasks)
    plan = new_plan(
        inputs,
        tokenizer=Path(tokenizer),
        out=Path(out),
        length=length,
        layout=layout,
        held_out=held_out,
        seed=seed,
        text_field=text_field,
        tasks=tasks,
    )
    return run_here(plan, workers, progress)


def run_here(plan: Plan, workers: int | None, progress: ProgressFn | None) -> Summary:
    """Run all tasks in the processes of this machine."""
    with (
        as_user_error(plan.folder),
        open_shard_writer(plan.folder, plan.request, plan.sources) as writer,
    ):
        if writer.finished:
            return finished_summary(writer)
        writer.save_tokenizer(plan.job.tokenizer, plan.names)
        return run(plan, writer, workers or os.cpu_count() or 1, progress)


def prepare_warnings(summary: Summary, text_field: str) -> list[str]:
    """Return warnings about text that is lost, each one sentence."""
    warnings = list(unknown_warnings(summary.unknown_rate))
    if summary.empty_records:
        warnings.append(
            f"records without text: {summary.empty_records:,} of {summary.records:,} were skipped "
            f"because '{text_field}' is null or empty; if the text is in another field, name it "
            "with --text-field."
        )
    return warnings


def folders_of_lengths(text: str, out: Path, inputs: Sequence[str | Path]) -> dict[int, Path]:
    """Parse `128` or `128,512`, and return the folder for each length: of several, a subfolder."""
    parts = [part.strip() for part in text.split(",")]
    whole = all(re.fullmatch("-?[0-9]{1,9}", part) for part in parts)
    if not whole or len(set(parts)) < len(parts):
        raise UserError(
            f"--length is '{text}': write a number of tokens, for example 128, or several, for "
            "example 128,512."
        )
    if len(parts) == 1:
        return {int(text): out}
    check_out_dir(out, "shards of several lengths", *parts)
    if pipe := next((name for name in inputs if is_pipe(Path(name))), None):
        raise UserError(
            f"'{pipe}' is a pipe, which can be read only once, and --length {text} reads the text "
            "once for each length: write it to a file, or give one length."
        )
    return {int(part): out / part for part in parts}


def check_options(
    length: int, layout: str, workers: int | None, held_out: float, seed: int, tasks: int
) -> None:
    """Reject options that cannot work."""
    if not MIN_LENGTH <= length <= MAX_LENGTH:
        raise UserError(
            f"--length is {length}: choose {MIN_LENGTH} to {MAX_LENGTH}, for example 128."
        )
    if layout not in ("pairs", "packed"):
        raise UserError(f"--layout is '{layout}': choose pairs or packed.")
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}: choose 1 or more.")
    if not 0 <= held_out < 1:
        raise UserError(
            f"--held-out is {held_out}: choose a share from 0 to below 1, for example 0.01."
        )
    if not 0 <= seed < 1 << 63:
        raise UserError(f"--seed is {seed}: choose a number from 0 to 2^63 - 1.")
    if tasks < 1:
        raise UserError(f"--tasks is {tasks}: choose 1 or more.")


def run(plan: Plan, writer: ShardWriter, workers: int, progress: ProgressFn | None) -> Summary:
    """Encode every chunk that is not finished yet, then write the index."""
    start_time = time.monotonic()
    sizes = [source.size for source in plan.sources]
    summary = Summary(total_bytes=None if None in sizes else sum(s or 0 for s in sizes))
    report = progress or (lambda summary: None)
    counts = RecordCounts()

    def on_bytes(count: int) -> None:
        nonlocal summary
        summary = replace(summary, read_bytes=summary.read_bytes + count)
        report(summary)

    def new_chunks() -> Iterator[Chunk]:
        nonlocal summary
        chunks = (plan.chunks_of(rank, on_bytes, counts) for rank in range(plan.tasks))
        for chunk in chain.from_iterable(chunks):
            if earlier := find_finished(plan.folder, writer.earlier, chunk):
                summary = replace(summary, skipped=summary.skipped + bool(earlier.rows))
                summary = add_result(summary, earlier, plan.job)
                writer.add_finished(earlier)
            else:
                yield chunk

    with chunk_encoder(plan.job, workers) as encode:
        for result in encode(new_chunks()):
            writer.record(result)
            summary = add_result(summary, result, plan.job)
            report(summary)
    complete(plan, writer)
    return replace(
        summary,
        held_out_rows=writer.totals["held_out_rows"],
        records=counts.records,
        empty_records=counts.empty,
        seconds=time.monotonic() - start_time,
    )


def complete(plan: Plan, writer: ShardWriter) -> None:
    """Write the index when all chunks are there."""
    if not writer.results:
        raise no_text(plan.request["inputs"])
    writer.check_sources_unchanged()
    writer.write_index(plan.job)


@contextmanager
def as_user_error(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system into a `UserError`."""
    try:
        yield
    except OSError as error:
        if is_disk_full(error):
            raise UserError(
                f"The disk is full: '{folder}' could not be written; free some space and run the "
                "same command again, it resumes where it stopped."
            ) from None
        raise UserError(
            f"'{error.filename or folder}' cannot be used: {error.strerror or error}."
        ) from None
    except MemoryError:
        raise UserError(
            "Memory ran out: run the same command again with fewer --workers; "
            "it resumes where it stopped."
        ) from None


EncodeFn = Callable[[Iterator[Chunk]], Iterator[ChunkResult]]


@contextmanager
def chunk_encoder(job: Job, workers: int) -> Iterator[EncodeFn]:
    """Yield a function that encodes chunks in this process or in worker processes."""
    if workers > 1:
        with WorkerPool(partial(build_worker, job), workers) as pool:
            yield pool.map
        return
    with one_core():
        encode = build_worker(job)
        yield lambda chunks: map(encode, chunks)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep the `tokenizers` library to one core: one worker, one core."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def add_result(summary: Summary, result: ChunkResult, job: Job) -> Summary:
    """Return the summary with one more chunk."""
    return replace(
        summary,
        documents=summary.documents + result.documents,
        rows=summary.rows + result.rows,
        held_out_rows=summary.held_out_rows + result.held_out,
        tokens=summary.tokens + result.tokens,
        text_tokens=summary.text_tokens + result.text_tokens,
        lost_tokens=summary.lost_tokens + result.lost_tokens,
        unknown=summary.unknown + result.unknown,
        text_bytes=summary.text_bytes + result.text_bytes,
        places=summary.places + result.rows * job.length,
        size=summary.size + result.size,
        shards=summary.shards + bool(result.rows),
    )


def finished_summary(writer: ShardWriter) -> Summary:
    """Return the summary of a folder that was finished earlier."""
    totals: dict[str, Any] = dict(writer.totals)
    totals.pop("padding")
    return Summary(**totals, already=True)
