"""JSON from files that others may have written: parse it, and check its types before use."""

import json
import typing
from collections.abc import Mapping
from typing import Any, Literal

MAX_NUMBER = 2**63
"""Larger numbers are no sizes, counts or steps, and may take seconds to print."""

MAX_SHOWN = 40
"""Characters of a value in an error message."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a ValueError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Raise a ValueError where an object of JSON differs from the types of a dataclass's fields."""
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        if name in hints and not has_type(value, hints[name]):
            raise ValueError(f"'{name}' has a value of the wrong type")


def has_type(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is an int, float, str, bool, literal, list or dict as declared."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return isinstance(value, str) and value in arguments
    if origin is dict:
        return isinstance(value, dict) and all(has_type(v, arguments[1]) for v in value.values())
    if origin is list:
        return isinstance(value, list) and all(has_type(v, arguments[0]) for v in value)
    if kind is float and type(value) is float:
        return True
    if kind in (int, float):
        return type(value) is int and abs(value) < MAX_NUMBER
    return type(value) is kind


def shown(value: Any) -> str:
    """A value for an error message: the first characters of its JSON."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
