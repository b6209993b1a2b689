"""JSON from elsewhere: one kind of error, and types that are checked before use."""

from dataclasses import dataclass, field
from typing import Literal

import pytest

from electra.json_types import check_fields, has_type, parse_json, shown


@dataclass
class Record:
    count: int = 0
    rate: float = 0.0
    name: str = ""
    kind: Literal["a", "b"] = "a"
    names: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)


@pytest.mark.parametrize("text", ["[" * 10_000, b"\xff", "9" * 5000, "", '{"a": 1'])
def test_whatever_is_wrong_is_a_value_error(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


def test_right_types_pass():
    check_fields(Record, {"count": 3, "rate": 1, "name": "x", "kind": "b", "other": object()})
    check_fields(Record, {"rate": 0.5, "names": ["a"], "sizes": {"a": 1}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("count", True),
        ("count", 1.0),
        ("count", 2**63),
        ("rate", 10**400),
        ("rate", "1"),
        ("name", None),
        ("kind", "c"),
        ("kind", ["a"]),
        ("names", ["a", 1]),
        ("names", "a"),
        ("sizes", {"a": "1"}),
        ("sizes", [1]),
    ],
)
def test_wrong_types_are_named(name, value):
    with pytest.raises(ValueError, match=f"'{name}'"):
        check_fields(Record, {name: value})
    assert not has_type(value, Record.__annotations__[name])


def test_long_values_are_cut():
    assert shown({"a": [1]}) == '{"a": [1]}'
    assert len(shown("x" * 1000)) < 50
