"""Files of JSON lines: a record each."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a file, none without a file; one that a crash cut short is passed over."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    read = []
    for line in lines:
        try:
            read.append(json.loads(line))  # half a letter is an error here, too
        except ValueError:
            continue
    return read


def to_json(record: Mapping[str, Any]) -> str:
    """A line of JSON, which has no word for a value that is not a number: null takes its place."""
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
