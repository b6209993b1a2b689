"""`electra detect` and `electra fill`: what they print, for people and as JSON."""

import json
import os

import pytest

import electra as package

TEXT = "the old farmer went to the oven ."


def test_detect_prints_each_token_with_its_probability(electra, finished):
    code, out, err = electra("detect", finished, TEXT)
    assert (code, err) == (0, "")
    expected = package.load(str(finished)).detect(TEXT)
    rows = out.splitlines()[-len(expected) :]
    assert rows == [f"{token.replaced:6.1%}  {token.token}" for token in expected]


def test_detect_as_json(electra, finished):
    code, out, _ = electra("detect", finished, TEXT, "--json")
    assert code == 0
    expected = package.load(str(finished)).detect(TEXT)
    assert [t["token"] for t in json.loads(out)] == [t.token for t in expected]
    assert [t["replaced"] for t in json.loads(out)] == [t.replaced for t in expected]


@pytest.fixture
def standard_input(tmp_path):
    """Put a text into standard input, as `< file` does."""
    kept = os.dup(0)

    def put(text: str) -> None:
        file = tmp_path / "input.txt"
        file.write_text(text, encoding="utf-8")
        opened = os.open(file, os.O_RDONLY)
        os.dup2(opened, 0)
        os.close(opened)

    yield put
    os.dup2(kept, 0)
    os.close(kept)


def test_a_text_from_standard_input(electra, refused, finished, standard_input):
    expected = electra("detect", finished, TEXT)
    standard_input(TEXT + "\n")
    assert electra("detect", finished, "-") == expected
    masked = "the [MASK] farmer"
    expected = electra("fill", finished, masked)
    standard_input(masked + "\n")
    assert electra("fill", finished, "-") == expected
    standard_input("\n")
    assert "'/dev/stdin' is empty" in refused("detect", finished, "-")


def test_markup_in_a_text_is_printed_as_it_is(electra, finished):
    code, out, err = electra("detect", finished, "the [bold]old[/bold] farmer")
    assert (code, err) == (0, "")
    assert "[" in out


def test_fill_prints_the_best_tokens_of_each_mask(electra, finished):
    code, out, _ = electra("fill", finished, "the [MASK] farmer [MASK] .", "--top", 3, "--json")
    assert code == 0
    masks = json.loads(out)
    assert [len(tokens) for tokens in masks] == [3, 3]
    for tokens in masks:
        probabilities = [token["probability"] for token in tokens]
        assert probabilities == sorted(probabilities, reverse=True)
    code, out, _ = electra("fill", finished, "the [MASK] farmer [MASK] .", "--top", 2)
    lines = out.splitlines()
    assert [lines[0], lines[3]] == ["[MASK] 1", "[MASK] 2"]
    assert [line.split()[1] for line in lines[1:3]] == [t["token"] for t in masks[0][:2]]


def test_fill_needs_at_least_one_token(electra, finished):
    code, _, err = electra("fill", finished, "the [MASK]", "--top", 0)
    assert code == 2
    assert "--top" in err


def test_score_wants_an_electric_model(refused, finished, tmp_path):
    sentences = tmp_path / "sentences.txt"
    sentences.write_text(TEXT, encoding="utf-8")
    assert "electric" in refused("score", finished, sentences)
