"""JSON lines."""

import json
import math

from electra.jsonl import to_json


def test_json_has_null_for_nan_and_infinity_at_any_depth():
    record = {"a": math.nan, "b": [1.5, (math.inf, {"c": -math.inf})]}
    assert json.loads(to_json(record)) == {"a": None, "b": [1.5, [None, {"c": None}]]}
