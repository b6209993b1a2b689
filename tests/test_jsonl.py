"""JSON lines."""

import json
import math

from electra.jsonl import read_jsonl, to_json


def test_json_has_null_for_nan_and_infinity_at_any_depth():
    record = {"a": math.nan, "b": [1.5, (math.inf, {"c": -math.inf})]}
    assert json.loads(to_json(record)) == {"a": None, "b": [1.5, [None, {"c": None}]]}


def test_lines_that_are_no_records_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n5\n[1]\n' + b"[" * 10_000 + b'\n\xff\n{"a": 2}\n{"a"')
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]
