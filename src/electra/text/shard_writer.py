"""The folder that a preparation writes: what is there, what may go on, what is finished."""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from electra.errors import UserError
from electra.files import TEMPORARY, file_sha256, locked, write_atomic
from electra.text.encode import ChunkResult, Job, chunk_digest, shard_name
from electra.text.shards import FORMAT, INDEX, TOKENIZER, read_index
from electra.text.sources import Source
from electra.text.tokenizer import save_tokenizer

JOURNAL = "journal.jsonl"
ESCAPED = "backslashreplace"  # of a file's name that is not UTF-8; JSON has the same escape
SHARD = re.compile(r"shard-\d{5,}\.bin")
TOTALS = ("documents", "rows", "tokens", "text_tokens", "lost_tokens", "unknown", "text_bytes")


@contextmanager
def open_target(folder: Path, request: dict[str, Any], sources: list[Source]) -> Iterator["Target"]:
    """The target for this request, locked; refused when the folder holds something else."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"'{folder}' is a file: name a folder with --out.")
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"'{folder}' cannot be made: {error.strerror}.") from None
    with locked(folder, f"Another  electra prepare  is writing to '{folder}': wait for it to end."):
        target = Target(folder, request, sources)
        if target.finished:
            yield target
            return
        try:
            target.begin()
            yield target
        finally:
            target.tidy(made)


class Target:
    """The folder, the chunks that are recorded in its journal, and whether it is finished."""

    def __init__(self, folder: Path, request: dict[str, Any], sources: list[Source]) -> None:
        self.folder = folder
        self.request = request
        self.sources = [{"name": s.name, "size": s.size, "modified": s.modified} for s in sources]
        self.pipes = [s.name for s in sources if s.pipe]
        self.earlier: dict[int, ChunkResult] = {}
        self.done: dict[int, ChunkResult] = {}
        self.totals: dict[str, Any] = {}
        self.finished = self.look()

    def look(self) -> bool:
        """Whether the folder is finished; refuses one that holds something else."""
        if (self.folder / INDEX).exists():
            index = read_index(self.folder)
            if index["request"] != self.request:
                raise self.refusal(index["request"])
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
        if (self.folder / JOURNAL).exists():
            self.read_journal()
            return False
        foreign = [p.name for p in self.folder.iterdir() if not p.name.endswith(TEMPORARY)]
        if foreign:
            raise UserError(
                f"'{self.folder}' holds other files ('{sorted(foreign)[0]}'): "
                "name a new or empty folder with --out."
            )
        return False

    def refusal(self, other: dict[str, Any]) -> UserError:
        """The error for a folder of another request, which names what differs."""
        keys = [key for key in self.request if other.get(key) != self.request[key]]
        what = ", ".join(
            key if key == "tokenizer" else f"{key} {other.get(key)} there, {self.request[key]} here"
            for key in keys
        )
        return UserError(
            f"'{self.folder}' holds shards of another preparation (different: {what}): "
            "choose another --out, or delete that folder."
        )

    def read_journal(self) -> None:
        """Take up the chunks that an unfinished run has recorded."""
        lines = (self.folder / JOURNAL).read_bytes().split(b"\n")
        try:
            other = json.loads(lines[0])["request"]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"'{self.folder / JOURNAL}' is damaged: choose another --out, "
                "or delete that folder."
            ) from None
        if other != self.request:
            raise self.refusal(other)
        for line in lines[1:]:
            # A line that a crash has cut short only costs its chunk.
            with suppress(ValueError, TypeError):
                done = ChunkResult(**json.loads(line))
                self.earlier[done.number] = done

    def begin(self) -> None:
        """Write the journal's first line, or all of it without a line that was cut short."""
        self.remove_temporary()
        lines = [{"request": self.request}, *(asdict(done) for done in self.earlier.values())]
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_atomic(self.folder / JOURNAL, content.encode(errors=ESCAPED))

    def save_tokenizer(self, content: str, names: dict[str, str]) -> None:
        """Put the tokenizer beside the shards."""
        save_tokenizer(Tokenizer.from_str(content), self.folder / TOKENIZER, names=names)

    def known(self, number: int, documents: list[bytes]) -> ChunkResult | None:
        """The record of this very chunk, if its shard is there and whole."""
        done = self.earlier.get(number)
        if done is None or done.text != chunk_digest(documents):
            return None
        path = self.folder / shard_name(number)
        if done.rows and not (path.is_file() and file_sha256(path) == done.sha256):
            return None
        return done

    def keep(self, done: ChunkResult) -> None:
        """Count a chunk of an earlier run."""
        self.done[done.number] = done

    def record(self, done: ChunkResult) -> None:
        """Count a new chunk and note it in the journal, after its shard is safely on disk."""
        self.done[done.number] = done
        with (self.folder / JOURNAL).open("ab") as file:
            file.write((json.dumps(asdict(done)) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())

    def refuse_changed(self) -> None:
        """Refuse a file that is not what it was at the beginning: half of it may have been read."""
        for source in self.sources:
            path = Path(str(source["name"]))
            if source["size"] is None or not path.is_file():  # what is gone now was read whole
                continue
            state = path.stat()
            if (state.st_size, state.st_mtime_ns) != (source["size"], source["modified"]):
                raise UserError(
                    f"'{path}' has changed while it was read: run the same command again when "
                    "nothing writes to it; it goes on where it stopped."
                )

    def finish(self, job: Job) -> int:
        """Write the index, which makes the folder valid, and return the rows held out."""
        done = [self.done[number] for number in sorted(self.done)]
        rows = sum(each.rows for each in done)
        if rows < 2:
            self.done.clear()
            raise UserError(
                f"The text gives {rows} row{'' if rows == 1 else 's'} of {job.length} tokens, "
                "training needs 2 or more: give more text, or a smaller --length."
            )
        full = [each for each in done if each.rows]
        held = split_rows([each.rows for each in full], [each.held_out for each in full], job)
        totals: dict[str, Any] = {key: sum(getattr(d, key) for d in done) for key in TOTALS}
        totals |= {
            "held_out_rows": sum(held),
            "places": rows * job.length,
            "size": sum(each.size for each in done),
            "shards": len(full),
        }
        totals["padding"] = round(1 - totals["tokens"] / totals["places"], 6)
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
            "totals": totals,
            "shards": [
                {
                    "file": shard_name(each.number),
                    "rows": each.rows,
                    "held_out": count,
                    "tokens": each.tokens,
                    "sha256": each.sha256,
                }
                for each, count in zip(full, held, strict=True)
            ],
        }
        self.remove_shards(keep={shard_name(each.number) for each in full})
        content = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
        write_atomic(self.folder / INDEX, content.encode(errors=ESCAPED))
        self.finished = True
        return sum(held)

    def tidy(self, made: bool) -> None:
        """Leave no temporary file, and nothing at all when nothing was done."""
        self.remove_temporary()
        if self.finished:
            with suppress(OSError):
                (self.folder / JOURNAL).unlink()
        elif not self.done and not self.earlier:
            with suppress(OSError):
                (self.folder / JOURNAL).unlink()
            shutil.rmtree(self.folder / TOKENIZER, ignore_errors=True)
            self.remove_shards(keep=set())
            if made:
                with suppress(OSError):
                    self.folder.rmdir()

    def remove_shards(self, keep: set[str]) -> None:
        """Remove other shards, as of a text that was longer when an earlier run stopped."""
        for path in self.folder.iterdir():
            if SHARD.fullmatch(path.name) and path.name not in keep:
                path.unlink()

    def remove_temporary(self) -> None:
        """Remove what a write that was broken off has left."""
        for path in [*self.folder.glob("*" + TEMPORARY), *self.folder.glob("*/*" + TEMPORARY)]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    path.unlink()


def split_rows(rows: list[int], held: list[int], job: Job) -> list[int]:
    """The held-out rows of each shard; a tiny corpus gives up some of its first ones."""
    if 0 < sum(held) < sum(rows) or job.held_out == 0:
        return held
    # No document, or every one, was drawn: the first rows are taken, at least one left to train.
    wanted = min(max(1, math.ceil(job.held_out * sum(rows))), rows[0], sum(rows) - 1)
    return [wanted] + [0] * (len(rows) - 1)
