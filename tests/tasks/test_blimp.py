"""Loading BLiMP."""

import json

import pytest

from electra.errors import UserError
from electra.tasks.blimp import Pair, load_blimp

RECORD = {
    "sentence_good": "The farmers plough.",
    "sentence_bad": "The farmers ploughs.",
    "field": "morphology",
    "linguistics_term": "agreement",
    "UID": "plural_1",
}


@pytest.mark.parametrize("inner", ["", "blimp", "data", "probes/blimp"])
def test_pairs(tmp_path, inner):
    folder = tmp_path / inner
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("b", "a"):
        lines = [json.dumps(RECORD | {"UID": name, "sentence_good": f"{name}{n}"}) for n in "12"]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    pairs = load_blimp(tmp_path)
    assert [pair.good for pair in pairs] == ["a1", "a2", "b1", "b2"]
    assert pairs[0] == Pair(
        phenomenon="agreement", paradigm="a", good="a1", bad="The farmers ploughs."
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "line 1 is not valid JSON"),
        ("", "is empty"),
        (
            json.dumps(RECORD) + '\n{"UID": "x"}',
            r"line 2 has no text in the column 'sentence_good'",
        ),
    ],
)
def test_invalid_files_are_refused(tmp_path, text, message):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_blimp(tmp_path)
    assert "bad.jsonl" in str(error.value)


def test_missing_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"holds no \.jsonl files"):
        load_blimp(tmp_path)
    with pytest.raises(UserError, match="There is no folder"):
        load_blimp(tmp_path / "nowhere")
