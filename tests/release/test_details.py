"""The YAML file of a card: strict about names, optional in everything."""

import json

import pytest

from electra.errors import UserError
from electra.release.details import CardDetails, read_details, read_evaluations


@pytest.fixture
def details(tmp_path):
    """Read details from text."""

    def read(text: str) -> CardDetails:
        (tmp_path / "card.yaml").write_text(text)
        return read_details(tmp_path / "card.yaml")

    return read


def test_everything_is_optional(details):
    assert read_details(None) == CardDetails() == details("{}")


def test_lists_of_groups_and_of_values(details):
    found = details(
        "data:\n- {name: Books, license: CC0-1.0, amount: 40 M tokens}\n- name: Web\n"
        "limitations: [one, two]\nwatts: 650\n"
    )
    assert [source.name for source in found.data] == ["Books", "Web"]
    assert found.data[0].license == "CC0-1.0"
    assert found.limitations == ("one", "two")
    assert found.watts == 650


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("licence: x", "no setting 'licence': did you mean 'license'"),
        ("data: [{nam: x}]", r"no setting 'data\.1\.nam': did you mean 'data\.1\.name'"),
        ("data: Books", "'data' is a list, not 'Books'"),
        ("data: [Books]", "'data' is a list of groups of settings, not of 'Books'"),
        ("minutes: many", "'minutes' takes a number, not 'many'"),
        ("watts: -3", "'watts' is negative"),
        ("- x", "holds no settings"),
        ("a: [", "is not valid YAML"),
    ],
)
def test_mistakes_are_named(details, text, message):
    with pytest.raises(UserError, match=message):
        details(text)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="There is no file"):
        read_details(tmp_path / "none.yaml")


def test_scores_are_summarised_over_seeds(details, tmp_path):
    lines = [
        {"task": "cola", "metric": "matthews", "score": s, "seed": i, "failed": i == 2}
        for i, s in enumerate((0.5, 0.6, 0.1))
    ]
    lines.append({"task": "rte", "metric": "accuracy", "score": 0.7, "seed": 0, "failed": False})
    lines.append({"summary": True, "median": 0.55})  # has no seed
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = details(
        "evaluations:\n- {title: GLUE, file: results.jsonl}\n"
        "- {title: BLiMP, scores: [{task: blimp, score: 0.739}]}\n"
    )
    glue, blimp = read_evaluations(found, tmp_path)
    assert [row["task"] for row in glue.rows] == ["cola", "rte"]
    assert glue.rows[0]["median"] == 0.5
    assert (glue.rows[0]["lowest"], glue.rows[0]["highest"]) == (0.1, 0.6)
    assert glue.rows[0]["failed"] == [2]
    assert blimp.rows[0]["median"] == 0.739
    assert blimp.rows[0]["metric"] == "accuracy"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no scores"),
        ('{"task": "a", "seed": 1}', "has no scores"),
        ('{"task": "a", "seed": 1, "metric": "f1", "score": null}', 'of "a" is not a number'),
    ],
)
def test_files_without_scores(details, tmp_path, content, message):
    (tmp_path / "results.jsonl").write_text(content)
    found = details("evaluations: [{file: results.jsonl}]")
    with pytest.raises(UserError, match=message):
        read_evaluations(found, tmp_path)
    with pytest.raises(UserError, match="neither a file nor scores"):
        read_evaluations(details("evaluations: [{title: x}]"), tmp_path)
