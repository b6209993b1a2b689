"""Split a preparation into independent tasks, whose results do not depend on where they run."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.text.encode import Chunk, ChunkResult, Job, build_worker, open_tokenizer
from electra.text.journal import Journal
from electra.text.layouts import Layout
from electra.text.readers import Document, RecordCounts, chunk_documents, read_documents
from electra.text.shard_writer import (
    JOURNAL,
    TASKS,
    find_finished,
    other_request,
    source_entries,
)
from electra.text.shards import INDEX
from electra.text.sources import OnBytes, Source, find_sources
from electra.text.tokenizer import fingerprint, load_tokenizer, special_names, vocabulary

CHUNKS_PER_TASK = 1_000_000
"""The chunks of task n are numbered from n times this on, so that no task waits for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A preparation: what to read, how to encode it and where to write it."""

    job: Job
    names: dict[str, str]
    """The special tokens of the tokenizer by their roles."""
    request: dict[str, Any]
    """The options that decide what is in the shards, as the index stores them."""
    sources: list[Source]
    """The files to read, of which each of n tasks reads every n-th; none if the steps of a
    datatrove pipeline give the documents."""
    root: Path
    """The folder that relative names of files start from."""

    @property
    def folder(self) -> Path:
        """The folder of the shards."""
        return self.job.folder

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return int(self.request.get("tasks", 1))

    def sources_of(self, rank: int) -> list[Source]:
        """Return what one task reads."""
        return self.sources[rank :: self.tasks]

    def chunks_of(self, rank: int, on_bytes: OnBytes, counts: RecordCounts) -> Iterator[Chunk]:
        """Yield the numbered chunks of one task."""
        field = self.request["text_field"]
        return number_chunks(read_documents(self.sources_of(rank), field, on_bytes, counts), rank)


def new_plan(
    inputs: Sequence[str | Path],
    *,
    tokenizer: Path,
    out: Path,
    length: int,
    layout: Layout,
    held_out: float,
    seed: int,
    text_field: str,
    tasks: int = 1,
) -> Plan:
    """Find the inputs, load the tokenizer and check its special tokens."""
    names = [str(name) for name in inputs]
    sources = find_sources(names) if names else []
    if sources and tasks > len(sources):
        raise UserError(
            f"--tasks is {tasks}, and a task reads whole files, of which there "
            f"{'is 1' if len(sources) == 1 else f'are {len(sources)}'}: choose fewer tasks, "
            "or split the files."
        )
    job = new_job(tokenizer, out, length, layout, held_out, seed)
    request = {
        "inputs": names,
        "text_field": text_field,
        "tokenizer": fingerprint(open_tokenizer(job)),
        "length": length,
        "layout": layout,
        "held_out": held_out,
        "seed": seed,
    }
    return Plan(
        job=job,
        names=special_names(tokenizer),
        request=with_tasks(request, tasks),
        sources=sources,
        root=Path.cwd(),
    )


def new_job(path: Path, out: Path, length: int, layout: Layout, held_out: float, seed: int) -> Job:
    """Load the tokenizer, check its special tokens and collect what the workers need."""
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


def with_tasks(request: dict[str, Any], tasks: int) -> dict[str, Any]:
    """Add the number of tasks, unless it is 1, as in folders from before there were tasks."""
    return request | {"tasks": tasks} if tasks > 1 else request


def number_chunks(documents: Iterable[Document], rank: int) -> Iterator[Chunk]:
    """Yield a task's documents in numbered chunks, as UTF-8."""
    for count, chunk in enumerate(chunk_documents(documents)):
        if count == CHUNKS_PER_TASK:
            raise UserError(f"Task {rank} has more than {count:,} shards: use more --tasks.")
        number = rank * CHUNKS_PER_TASK + count
        yield number, [d.encode() if isinstance(d, str) else d for d in chunk]


def task_journal(folder: Path, rank: int) -> Path:
    """Return the journal of one task on a cluster."""
    return folder / TASKS / f"{rank:05}.jsonl"


def task_error(folder: Path, rank: int) -> Path:
    """Return the file in which a task on a cluster says why it failed."""
    return folder / TASKS / f"{rank:05}.error"


def run_task(
    plan: Plan, rank: int, chunks: Iterable[Chunk], counts: RecordCounts
) -> Iterator[ChunkResult]:
    """Encode the chunks of one task, yield each result, and note the end in the task's journal.

    A task that was interrupted, or that runs twice at once, writes the same files again.
    """
    journal, earlier = open_task(plan, rank)
    encode = build_worker(plan.job)
    done: dict[int, ChunkResult] = {}
    for chunk in chunks:
        result = find_finished(plan.folder, earlier, chunk) or encode(chunk)
        journal.append(result)
        done[result.number] = result
        yield result
    journal.results = done  # without chunks of an earlier, longer text
    journal.end = {
        "records": counts.records,
        "empty_records": counts.empty,
        "sources": source_entries(plan.sources_of(rank)),
    }
    journal.write()


def open_task(plan: Plan, rank: int) -> tuple[Journal, dict[int, ChunkResult]]:
    """Start the journal of a task; also return the chunks that an interrupted run has done."""
    if (plan.folder / INDEX).exists():
        raise UserError(
            f"'{plan.folder}' is already prepared: choose another folder, or delete that one."
        )
    journal = Journal(task_journal(plan.folder, rank), plan.request)
    journal.path.parent.mkdir(parents=True, exist_ok=True)
    earlier: dict[int, ChunkResult] = {}
    for path in filter(Path.exists, (plan.folder / JOURNAL, journal.path)):
        found = Journal.read(path)
        if found.request != plan.request:
            raise other_request(plan.folder, found.request, plan.request)
        earlier |= found.results
        if path == journal.path:
            journal.results = found.results
    journal.write()
    return journal, earlier
