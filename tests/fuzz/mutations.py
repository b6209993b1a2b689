"""Hostile changes to valid files, as strategies of hypothesis."""

import json
import re
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

DEEP = 3000
"""Levels of nesting: more than Python's recursion limit."""
PIECES = (
    *(b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\x1b[2J", b'"'),
    *(b"\t", b",", b";", b"=", b"-", b"../", b"/etc/passwd", b"null", b"NaN", b"[]", b"{}"),
    *(b"-1", b"1e999", b"9" * 5000, b"0x" + b"f" * 5000, b"1:1:1", b"2020-99-99", b"\xc2\xb2"),
    *(b"[" * DEEP, b"{" * DEEP, b'{"a":' * DEEP, b"<a>" * 60, b"{{" * DEEP, b"[[" * DEEP),
    *(b"&a [*a]", b"!!python/object/apply:os.system [true]", b"\x80" * 3000, b"\xff" * 9),
    *(b'<!DOCTYPE a [<!ENTITY b "c">]>', b"<?xml version='1.0' encoding='rot13'?>", b"&#55296;"),
)
DEEP_MARK = "nested too deeply"
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 0.5, -1e308, float("nan"), float("inf")),
    *("", "a", "../x", "/etc/passwd", "\ud800", "\0", "<b>", "9" * 5000, "O", DEEP_MARK, "²"),
    *([], [None], [[]], ["a"], {}, {"a": None}, {"": {}}, [0, 0]),
)
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


@st.composite
def byte_changes(draw: st.DrawFn, seed: bytes) -> bytes:
    """Cut, flip, insert, delete, repeat and swap some bytes."""
    data = seed
    for _ in range(draw(st.integers(1, 3))):
        start, stop = sorted(draw(st.integers(0, len(data))) for _ in range(2))
        data = draw(st.sampled_from(CHANGES))(draw, data, start, stop)
    return data


def cut(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    return data[:stop]


def flip(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    bit = 1 << draw(st.integers(0, 7))
    return data[:start] + bytes(byte ^ bit for byte in data[start : start + 1]) + data[start + 1 :]


def insert(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    return data[:start] + draw(st.sampled_from(PIECES)) + data[start:]


def replace(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    return data[:start] + draw(st.sampled_from(PIECES)) + data[stop:]


def delete(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    return data[:start] + data[stop:]


def repeat(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    return data[:stop] + data[start:stop] * draw(st.integers(1, 3)) + data[stop:]


def move(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    return data[stop:] + data[start:stop] + data[:start]


def renumber(draw: st.DrawFn, data: bytes, start: int, stop: int) -> bytes:
    match = NUMBER.search(data, start) or NUMBER.search(data)
    if match is None:
        return data
    return data[: match.start()] + draw(st.sampled_from(PIECES)) + data[match.end() :]


Change = Callable[[st.DrawFn, bytes, int, int], bytes]
CHANGES: tuple[Change, ...] = (cut, flip, insert, replace, delete, repeat, move, renumber)


@st.composite
def json_changes(draw: st.DrawFn, seed: bytes) -> bytes:
    """Replace, remove or repeat some values of JSON, or of one line of JSON lines."""
    parts = [seed]
    try:
        json.loads(seed)
    except ValueError:
        parts = seed.splitlines(keepends=True)
    number = draw(st.integers(0, len(parts) - 1))
    try:
        tree = json.loads(parts[number])
    except ValueError:
        return draw(byte_changes(seed))
    for _ in range(draw(st.integers(1, 3))):
        tree = change_value(draw, tree)
    text = json.dumps(tree).replace(f'"{DEEP_MARK}"', "[" * DEEP + "]" * DEEP)
    if draw(st.booleans()) and text.startswith("{") and len(text) > 2:
        text = text[:-1] + ", " + text[1:]  # each key twice
    parts[number] = text.encode() + b"\n"
    return b"".join(parts)


def change_value(draw: st.DrawFn, tree: Any) -> Any:
    """Change one value anywhere in a tree."""
    if not isinstance(tree, dict | list) or not tree or draw(st.integers(0, 9)) == 0:
        return draw(st.sampled_from(VALUES))
    keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
    key = draw(st.sampled_from(keys))
    copy = tree.copy()
    action = draw(st.integers(0, 5))
    if action == 0:
        del copy[key]
    elif action == 1 and isinstance(copy, dict):
        copy[draw(st.sampled_from(("", "x", "kind", "../x", "\ud800")))] = copy.pop(key)
    else:
        copy[key] = change_value(draw, tree[key])
    return copy


def hostile(seed: bytes) -> st.SearchStrategy[bytes]:
    """A valid file with hostile changes; of JSON, also changes that leave it JSON."""
    changes = byte_changes(seed)
    return changes | json_changes(seed) if seed.lstrip()[:1] in (b"{", b"[") else changes
