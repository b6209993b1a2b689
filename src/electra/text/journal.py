"""The journal of a preparation: its request, then one line per finished chunk."""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from electra.errors import UserError
from electra.files import write_atomic
from electra.json_types import check_fields, parse_json
from electra.text.encode import ChunkResult

# File names that are not UTF-8 are escaped; JSON reads the same escape.
ESCAPED = "backslashreplace"


@dataclass(slots=True)
class Journal:
    """A file that grows by a line with each chunk, so that an interrupted run can resume."""

    path: Path
    request: dict[str, Any]
    results: dict[int, ChunkResult] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    """What a task has noted at its end; None while chunks are missing."""

    @classmethod
    def read(cls, path: Path) -> "Journal":
        """Read a journal. A line that was cut short by a crash only costs its chunk."""
        lines = path.read_bytes().split(b"\n")
        try:
            journal = cls(path, dict(parse_json(lines[0])["request"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"'{path}' is damaged: choose another --out, or delete that folder."
            ) from None
        for line in lines[1:]:
            with suppress(ValueError, TypeError, AttributeError):
                entry = parse_json(line)
                if "end" in entry:
                    journal.end = dict(entry["end"])
                else:
                    check_fields(ChunkResult, entry)
                    result = ChunkResult(**entry)
                    journal.results[result.number] = result
        return journal

    def write(self) -> None:
        """Write the whole file, or nothing."""
        lines = [{"request": self.request}, *map(asdict, self.results.values())]
        if self.end is not None:
            lines.append({"end": self.end})
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        write_atomic(self.path, content.encode(errors=ESCAPED))

    def append(self, result: ChunkResult) -> None:
        """Add a chunk, whose shard is on disk."""
        self.results[result.number] = result
        with self.path.open("ab") as file:
            file.write((json.dumps(asdict(result)) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
