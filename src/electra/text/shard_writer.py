"""Write a folder of shards: its journal, how it resumes, and the index that completes it."""

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from electra.errors import UserError
from electra.files import (
    TEMPORARY,
    file_sha256,
    is_disk_full,
    locked,
    make_folder,
    remove_temporary,
    write_atomic,
)
from electra.text.encode import Chunk, ChunkResult, Job, chunk_digest, shard_name
from electra.text.journal import ESCAPED, Journal
from electra.text.shards import FORMAT, INDEX, SHARD_NAME, TOKENIZER, read_index
from electra.text.sources import Source
from electra.text.tokenizer import save_tokenizer

JOURNAL = "journal.jsonl"
TASKS = "tasks"
"""The folder of the journals that tasks on a cluster write, one each."""
TOTAL_KEYS = ("documents", "rows", "tokens", "text_tokens", "lost_tokens", "unknown", "text_bytes")


@contextmanager
def open_shard_writer(
    folder: Path, request: dict[str, Any], sources: list[Source]
) -> Iterator["ShardWriter"]:
    """Lock the folder and yield its writer; refuse a folder that holds something else."""
    created = create_folder(folder)
    with locked(folder, f"Another `electra prepare` is writing to '{folder}': wait for it to end."):
        writer = ShardWriter(folder, request, sources)
        if writer.finished:
            writer.clean_up(created)  # the process may have ended just before it did
            yield writer
            return
        try:
            writer.remove_temporary()
            writer.journal.write()
            yield writer
        finally:
            writer.clean_up(created)


def create_folder(folder: Path) -> bool:
    """Create a folder, and return whether it was missing."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file: name a folder with --out.")
    created = not folder.exists()
    try:
        make_folder(folder)
    except OSError as error:
        full = "the disk is full, free some space and run the same command again"
        why = full if is_disk_full(error) else error.strerror
        raise UserError(f"'{folder}' cannot be created: {why}.") from None
    return created


def source_entries(sources: list[Source]) -> list[dict[str, Any]]:
    """Return what the index says about the inputs, by which a change is noticed."""
    return [{"name": s.name, "size": s.size, "modified": s.modified} for s in sources]


def other_request(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> UserError:
    """Return the error for a folder of other options, which names the differences."""
    there, here = {"tasks": 1} | there, {"tasks": 1} | here
    differences = ", ".join(
        key if key == "tokenizer" else f"{key} {there.get(key)} there, {here[key]} here"
        for key in here
        if there.get(key) != here[key]
    )
    return UserError(
        f"'{folder}' holds shards of another preparation (different: {differences}): "
        "choose another --out, or delete that folder."
    )


class ShardWriter:
    """A folder of shards, the chunks in its journal, and whether it is finished."""

    def __init__(self, folder: Path, request: dict[str, Any], sources: list[Source]) -> None:
        self.folder = folder
        self.request = request
        self.sources = source_entries(sources)
        self.pipes = [s.name for s in sources if s.pipe]
        self.journal = Journal(folder / JOURNAL, request)
        self.tasks: list[Journal] = []
        self.earlier: dict[int, ChunkResult] = {}
        self.results: dict[int, ChunkResult] = {}
        self.totals: dict[str, Any] = {}
        self.finished = self.check_folder()

    def check_folder(self) -> bool:
        """Return whether the folder is finished; refuse one that holds something else."""
        if (self.folder / INDEX).exists():
            index = read_index(self.folder)
            if index["request"] != self.request:
                raise other_request(self.folder, index["request"], self.request)
            if index["sources"] != self.sources:
                raise UserError(
                    f"'{self.folder}' was prepared from other versions of these files: "
                    "choose another --out, or delete that folder."
                )
            if self.pipes:
                raise UserError(
                    f"'{self.folder}' is already prepared, and what comes through the pipe "
                    f"'{self.pipes[0]}' cannot be compared with it: choose another --out, or "
                    "delete that folder."
                )
            self.totals = index["totals"]
            return True
        if self.journal.path.exists() or (self.folder / TASKS).is_dir():
            self.read_journals()
            return False
        foreign = [p.name for p in self.folder.iterdir() if not p.name.endswith(TEMPORARY)]
        if foreign:
            raise UserError(
                f"'{self.folder}' holds other files ('{sorted(foreign)[0]}'): "
                "name a new or empty folder with --out."
            )
        return False

    def read_journals(self) -> None:
        """Load the chunks that an interrupted run, or its tasks on a cluster, have recorded."""
        self.tasks = [Journal.read(path) for path in sorted(self.folder.glob(f"{TASKS}/*.jsonl"))]
        main = [Journal.read(self.journal.path)] if self.journal.path.exists() else []
        for journal in (*main, *self.tasks):
            if journal.request != self.request:
                raise other_request(self.folder, journal.request, self.request)
            self.earlier |= journal.results
        self.journal.results = dict(self.earlier)

    def save_tokenizer(self, content: str, names: dict[str, str]) -> None:
        """Save the tokenizer next to the shards."""
        save_tokenizer(Tokenizer.from_str(content), self.folder / TOKENIZER, names=names)

    def add_finished(self, result: ChunkResult) -> None:
        """Add a chunk of an interrupted run."""
        self.results[result.number] = result

    def record(self, result: ChunkResult) -> None:
        """Add a new chunk, whose shard is on disk, and append it to the journal."""
        self.results[result.number] = result
        self.journal.append(result)

    def check_sources_unchanged(self) -> None:
        """Refuse inputs that changed while they were read."""
        for source in self.sources:
            path = Path(str(source["name"]))
            if source["size"] is None or not path.is_file():  # a deleted file was read to its end
                continue
            state = path.stat()
            if (state.st_size, state.st_mtime_ns) != (source["size"], source["modified"]):
                raise UserError(
                    f"'{path}' changed while it was read: run the same command again when nothing "
                    "writes to it; it resumes where it stopped."
                )

    def write_index(self, job: Job) -> None:
        """Write the index, which completes the folder."""
        results = [self.results[number] for number in sorted(self.results)]
        rows = sum(each.rows for each in results)
        if rows < 2:
            self.results.clear()
            raise UserError(
                f"The text gives {rows} sequence{'' if rows == 1 else 's'} of {job.length} tokens, "
                "training needs 2 or more: add text, or choose a smaller --length."
            )
        full = [each for each in results if each.rows]
        held_out = held_out_counts(
            [each.rows for each in full], [each.held_out for each in full], job
        )
        index = {
            "format": FORMAT,
            "length": job.length,
            "layout": job.layout,
            "dtype": job.dtype,
            "seed": job.seed,
            "tokenizer": self.request["tokenizer"],
            "vocabulary_size": job.vocabulary.size,
            "held_out": job.held_out,
            "request": self.request,
            "sources": self.sources,
            "totals": sum_results(results, sum(held_out), job),
            "shards": [
                {
                    "file": shard_name(each.number),
                    "rows": each.rows,
                    "held_out": count,
                    "tokens": each.tokens,
                    "sha256": each.sha256,
                }
                for each, count in zip(full, held_out, strict=True)
            ],
        }
        self.remove_shards(keep={shard_name(each.number) for each in full})
        content = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
        write_atomic(self.folder / INDEX, content.encode(errors=ESCAPED))
        self.totals = index["totals"]
        self.finished = True

    def clean_up(self, created: bool) -> None:
        """Remove temporary files, and everything if no chunk was finished."""
        self.remove_temporary()
        if self.finished:
            with suppress(OSError):
                self.journal.path.unlink()
            shutil.rmtree(self.folder / TASKS, ignore_errors=True)
        elif not self.results and not self.earlier:
            with suppress(OSError):
                self.journal.path.unlink()
            shutil.rmtree(self.folder / TOKENIZER, ignore_errors=True)
            self.remove_shards(keep=set())
            if created:
                with suppress(OSError):
                    self.folder.rmdir()

    def remove_shards(self, keep: set[str]) -> None:
        """Remove other shards, left by an interrupted run over a longer text."""
        for path in self.folder.iterdir():
            if SHARD_NAME.fullmatch(path.name) and path.name not in keep:
                path.unlink()

    def remove_temporary(self) -> None:
        """Remove what an interrupted write has left."""
        for folder in (self.folder, self.folder / TOKENIZER, self.folder / TASKS):
            remove_temporary(folder)


def find_finished(
    folder: Path, earlier: dict[int, ChunkResult], chunk: Chunk
) -> ChunkResult | None:
    """Return the earlier result of this chunk if its text is the same and its shard is intact."""
    number, documents = chunk
    result = earlier.get(number)
    if result is None or result.text != chunk_digest(documents):
        return None
    path = folder / shard_name(number)
    if result.rows and not (path.is_file() and file_sha256(path) == result.sha256):
        return None
    return result


def sum_results(results: list[ChunkResult], held_out_rows: int, job: Job) -> dict[str, Any]:
    """Return the totals of all chunks, as the index stores them."""
    totals: dict[str, Any] = {
        key: sum(getattr(each, key) for each in results) for key in TOTAL_KEYS
    }
    totals |= {
        "held_out_rows": held_out_rows,
        "places": totals["rows"] * job.length,
        "size": sum(each.size for each in results),
        "shards": sum(bool(each.rows) for each in results),
    }
    totals["padding"] = round(1 - totals["tokens"] / totals["places"], 6)
    return totals


def held_out_counts(rows: list[int], held_out: list[int], job: Job) -> list[int]:
    """Return the held-out rows of each shard; a tiny corpus gets at least one row per split."""
    if 0 < sum(held_out) < sum(rows) or job.held_out == 0:
        return held_out
    # The hash picked no document, or all of them: hold out the first rows instead.
    wanted = min(max(1, math.ceil(job.held_out * sum(rows))), rows[0], sum(rows) - 1)
    return [wanted] + [0] * (len(rows) - 1)
