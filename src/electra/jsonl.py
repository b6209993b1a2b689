"""JSON lines: one record per line."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from electra.json_types import parse_json


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a file, or none if it does not exist; truncated lines are skipped."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    read = []
    for line in lines:
        try:
            record = parse_json(line)  # half a UTF-8 character is a ValueError too
        except ValueError:
            continue
        if isinstance(record, dict):
            read.append(record)
    return read


def to_json(record: Mapping[str, Any]) -> str:
    """One line of JSON; NaN and infinity, which JSON lacks, become null."""
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
