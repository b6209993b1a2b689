"""The journal of a preparation: what is read again after a crash."""

import json

import pytest

from electra.errors import UserError
from electra.text.encode import ChunkResult
from electra.text.journal import Journal

REQUEST = {"length": 64, "inputs": ["a\udcff.txt"]}
"""With a file name that is not UTF-8."""
NUMBERS = ("rows", "held_out", "tokens", "text_tokens", "lost_tokens", "unknown", "documents")


def result(number: int) -> ChunkResult:
    numbers = dict.fromkeys((*NUMBERS, "text_bytes", "size"), 7)
    return ChunkResult(number=number, text="hash", sha256="abc", **numbers)


@pytest.fixture
def journal(tmp_path):
    """A journal with two chunks."""
    made = Journal(tmp_path / "journal.jsonl", REQUEST)
    made.write()
    made.append(result(0))
    made.append(result(3))
    return made


def test_what_was_written_is_read(journal):
    assert Journal.read(journal.path) == journal
    journal.end = {"documents": 2}
    journal.write()
    assert Journal.read(journal.path) == journal


def test_a_line_that_was_cut_short_costs_its_chunk_alone(journal):
    whole = journal.path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole) - 1):
        journal.path.write_bytes(whole[:end])
        assert Journal.read(journal.path).results == {0: result(0)}


@pytest.mark.parametrize(
    "change", [{"rows": "7"}, {"rows": None}, {"more": 1}, {"number": 1.5}], ids=str
)
def test_a_line_with_other_fields_costs_its_chunk_alone(change, journal):
    lines = journal.path.read_bytes().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | change).encode()
    journal.path.write_bytes(b"\n".join(lines))
    assert Journal.read(journal.path).results == {3: result(3)}


@pytest.mark.parametrize("first", [b"", b"{", b"[]", b'{"request": 3}', b'{"end": {}}'])
def test_without_its_request_it_is_damaged(first, journal):
    journal.path.write_bytes(first + b"\n" + journal.path.read_bytes())
    with pytest.raises(UserError, match="is damaged: choose another --out"):
        Journal.read(journal.path)
