"""`electra study`: its options."""

from pathlib import Path


def test_every_option_of_a_study_arrives(electra, monkeypatch):
    given = {}
    monkeypatch.setattr("electra.studies.score.build_scorers", lambda **_: [])
    monkeypatch.setattr(
        "electra.studies.run.run_study",
        lambda study, **named: given.update(named, study=study) or 3,
    )
    code, _, _ = electra(
        *(
            "study",
            "objectives",
            "data.batch_size=8",
            "--data",
            "d",
            "--out",
            "o",
            "--scale",
            "small",
        ),
        *("--budget", "7e9flops", "--seeds", "3,7", "--arms", "bert,ELECTRA"),
        *("--reuse", "x", "--reuse", "y"),
    )
    assert code == 3  # what the study returns
    study = given.pop("study")
    assert (study.scale.name, study.budget) == ("small", 7e9)
    assert [arm.name for arm in study.arms] == ["ELECTRA", "BERT"]
    expected = {
        "data": Path("d"),
        "out": Path("o"),
        "seeds": [3, 7],
        "overrides": ["data.batch_size=8"],
    }
    expected |= {"scorers": [], "reuse": [Path("x"), Path("y")]}
    assert {name: given[name] for name in expected} == expected
    assert given["command"].startswith("electra study objectives data.batch_size=8 --data d")
